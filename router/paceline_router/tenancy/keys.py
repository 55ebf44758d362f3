"""Which key belongs to which tenant. Only hashes of keys are ever kept or read; nothing here logs a value."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from paceline_router.table.yaml_file import FileFault, check_kind, read_text

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})(?:\s+\*?-)?", re.IGNORECASE)
"""Also as `sha256sum` prints it, with a dash for the name of the file."""

_ENTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_OF_NOTHING = hashlib.sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class Keys:
    """The hashes of one Secret or file.

    Attributes:
        entries: SHA-256 of a key → name of its entry, which begins with the tenant's name.
        trouble: why no key can be checked now, for people; empty when they can. Then every request is refused.
        problems: entries that are left out, each with the reason, for whoever made them.
    """

    entries: Mapping[bytes, str] = field(default_factory=dict)
    trouble: str = ""
    problems: tuple[str, ...] = ()


def keys_from_secret(data: Mapping[str, Any] | None) -> Keys:
    """Read `data` of a Secret as the API has it, with values in base64."""
    entries: dict[str, str] = {}
    problems: list[str] = []
    for name, value in (data or {}).items():
        try:
            entries[name] = base64.b64decode(value, validate=True).decode("ascii")
        except (TypeError, ValueError, binascii.Error):
            problems.append(f"{name[:253]}: not the hex SHA-256 of a key")
    return keys_from_entries(entries, problems)


def keys_from_entries(entries: Mapping[str, str], problems: Iterable[str] = ()) -> Keys:
    """Check entries: name → SHA-256 of a key, 64 hex digits.

    A hash that two entries have belongs to neither: nobody could say whose the request is.
    """
    found: dict[bytes, str] = {}
    twice: set[bytes] = set()
    wrong = list(problems)
    for name, value in sorted(entries.items()):
        if _ENTRY.fullmatch(name) is None:
            wrong.append(f"{name[:253]}: begin the name of the entry with the name of a tenant")
            continue
        match = _DIGEST.fullmatch(value.strip())
        if match is None:
            wrong.append(f"{name}: not the hex SHA-256 of a key; make it with: printf %s KEY | sha256sum")
            continue
        digest = bytes.fromhex(match[1])
        if digest == _OF_NOTHING:
            wrong.append(f"{name}: the SHA-256 of an empty key")
        elif digest in found:
            twice.add(digest)
            wrong.append(f"{name}: the same key as {found[digest]}; it counts for neither")
        else:
            found[digest] = name
    for digest in twice:
        del found[digest]
    return Keys(found, problems=tuple(wrong))


def tenant_of_entry(entry: str, names: Iterable[str]) -> str:
    """The tenant that an entry is for: the longest of `names` that it is called after, else what is before the first
    dot. (A tenant's name may have dots itself.)
    """
    known = [name for name in names if entry == name or entry.startswith(name + ".")]
    return max(known, key=len) if known else entry.partition(".")[0]


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key).digest()


class KeysFile:
    """`tenancy.keysFile`: a YAML or JSON mapping, name of the entry → hex SHA-256, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys = Keys(trouble=f"the file {path} has not been read yet")
        self._seen: tuple[int, int, int] | None = (-1, -1, -1)

    def refresh(self) -> bool:
        """Read the file if it has changed; True when `keys` are new. A file that is gone or cannot be understood
        leaves no key valid: revoking by deleting the file must work.
        """
        seen = self._stat()
        if seen == self._seen:
            return False
        self._seen = seen
        self.keys = self._read()
        return True

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> Keys:
        try:
            check_kind(self.path.stat())
        except OSError as exc:
            return Keys(trouble=f"the file {self.path} cannot be read: {exc.strerror}")
        except FileFault as exc:
            return Keys(trouble=f"the file {self.path} is not read: {exc}")
        try:
            raw: Any = yaml.safe_load(read_text(self.path))
        except OSError as exc:
            return Keys(trouble=f"the file {self.path} cannot be read: {exc.strerror}")
        except (yaml.YAMLError, RecursionError, ValueError):
            # The parser's own words quote the file.
            return Keys(trouble=f"the file {self.path} is not YAML")
        if raw is None:
            raw = {}
        if not isinstance(raw, dict):
            return Keys(trouble=f"the file {self.path} is not a mapping of names to hashes")
        # YAML takes a hash of digits only for a number, and 12e34… too.
        bad = [f"{name}: write the hash in quotes" for name, value in raw.items() if not isinstance(value, str)]
        return keys_from_entries({str(name): value for name, value in raw.items() if isinstance(value, str)}, bad)
