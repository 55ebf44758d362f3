"""A file of keys (`keysFile`): a YAML or JSON mapping, name of the entry → hex SHA-256. Read by a child of the router,
whatever is in it, several at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import yaml

from paceline_router.table.apart import NotHeard, hear, keep_small
from paceline_router.table.yaml_file import FileFault, check_kind, read_text
from paceline_router.tenancy.keys import Keys, keys_from_entries

MAX_BYTES: Final = 1024 * 1024
"""As much as a Secret may have, some ten thousand keys."""

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_keys(path: Path) -> Keys:
    """What the file has now. No words about it quote from it: who takes a key for its hash has a secret there."""
    who = f"the file {path}"
    try:
        found = path.stat()
        check_kind(found)
    except OSError as exc:
        return Keys(trouble=f"{who} cannot be read: {exc.strerror}")
    except FileFault as exc:
        return Keys(trouble=f"{who} is not read: {exc}")
    if found.st_size > MAX_BYTES:
        return Keys(trouble=f"{who} is larger than {MAX_BYTES >> 10} KiB; remove keys, or divide the service")
    try:
        node = yaml.compose(read_text(path), _Loader)
    except OSError as exc:
        return Keys(trouble=f"{who} cannot be read: {exc.strerror}")
    except (FileFault, yaml.YAMLError):
        return Keys(trouble=f"{who} is not YAML")
    return _keys_of(who, node)


def _keys_of(who: str, node: yaml.Node | None) -> Keys:
    """The keys in a document; None is an empty one. Values are taken as they are written, since a hash may look like a
    number.
    """
    if node is None:
        return Keys()
    if not isinstance(node, yaml.MappingNode):
        return Keys(trouble=f"{who} is not a mapping of names to hashes; write a line `TENANT: HASH` for each key")
    entries: dict[str, str] = {}
    problems: list[str] = []
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            problems.append(f"in line {key.start_mark.line + 1}: its name is no text; write the name of a tenant")
            continue
        name = str(key.value)
        if name in entries:
            problems.append(f"{name[:253]}: it is there twice, and the last counts; call another key {name[:200]}.2")
        entries[name] = value.value if isinstance(value, yaml.ScalarNode) else ""
    return keys_from_entries(entries, problems)


async def read_apart(paths: Sequence[Path]) -> list[Keys]:
    """Have the files read by a child of this process.

    Raises:
        NotHeard: the child said nothing.
    """
    said = await hear("paceline_router.tenancy.keys_reading", *map(str, paths))
    try:
        return msgspec.msgpack.decode(said, type=list[Keys])
    except msgspec.DecodeError as exc:
        raise NotHeard(f"the process that read it was cut off ({exc})") from None


def main() -> None:
    """The child: a message on standard output."""
    keep_small()
    sys.stdout.buffer.write(msgspec.msgpack.encode([read_keys(Path(path)) for path in sys.argv[1:]]))


if __name__ == "__main__":
    main()
