"""Which key belongs to which tenant. Only hashes of keys are ever kept or read; nothing here logs a value."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})(?:\s+\*?-)?", re.IGNORECASE)
"""Also as `sha256sum` prints it, with a dash for the name of the file."""

_ENTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_OF_NOTHING = hashlib.sha256(b"").digest()

MOST_PROBLEMS = 20
"""Entries that are told one by one; of more there is a number."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The hashes of one Secret or file.

    Attributes:
        entries: SHA-256 of a key → name of its entry, which begins with the tenant's name.
        trouble: why no key can be checked now, for people; empty when they can. Then every request is refused.
        problems: entries that are left out, each with the reason, for whoever made them.
        outdated: why these are not the keys that are there now, but the last that could be read; empty when they are.
    """

    entries: Mapping[bytes, str] = field(default_factory=dict)
    trouble: str = ""
    problems: tuple[str, ...] = ()
    outdated: str = ""


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
    if len(wrong) > MOST_PROBLEMS:
        wrong[MOST_PROBLEMS:] = [f"and {len(wrong) - MOST_PROBLEMS} more"]
    return Keys(found, problems=tuple(wrong))


def tenant_of_entry(entry: str, names: Collection[str]) -> str:
    """The tenant that an entry is for: the longest of `names` that it is called after, else what is before the first
    dot. (A tenant's name may have dots itself.)

    Args:
        names: of the tenants, in something that finds one quickly, since there may be many entries.
    """
    name = entry
    while name:
        if name in names:
            return name
        name = name.rpartition(".")[0]
    return entry.partition(".")[0]


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key).digest()
