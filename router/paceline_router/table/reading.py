"""Reads a routes file in a process of its own. The parent gets one message: why the file is not taken, or the parts of
its table.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from paceline_router.table.apart import NotHeard, hear, keep_small
from paceline_router.table.file import RoutesFileError, read_table
from paceline_router.table.records import Replica, Service

Parts: TypeAlias = Mapping[str, bytes]
"""By service, its record and those of its replicas, pickled: equal bytes are an equal part of the table."""


class UnheardError(RoutesFileError):
    """The file was not read to an end: another try may bring it."""


def parts_of(path: Path) -> Parts:
    """Read the file here.

    Raises:
        RoutesFileError: see `read_table`.
    """
    table = read_table(path)
    replicas: dict[str, list[Replica]] = {key: [] for key in table.services}
    for replica in table.replicas.values():
        replicas[replica.service].append(replica)
    return {key: pickle.dumps((service, replicas[key])) for key, service in table.services.items()}


def opened(part: bytes) -> tuple[Service, list[Replica]]:
    """The records in a part that `parts_of` made, here or in a child of this process."""
    service, replicas = pickle.loads(part)
    return service, replicas


async def read_apart(path: Path) -> Parts:
    """Have the file read by a child of this process.

    Raises:
        RoutesFileError: see `read_table`.
        UnheardError: the child took too long, or ended without a word.
    """
    try:
        said = await hear("paceline_router.table.reading", str(path))
        fault, parts = msgspec.msgpack.decode(said, type=tuple[str | None, dict[str, bytes]])
    except NotHeard as exc:
        raise UnheardError(f"{path}: {exc}") from None
    except msgspec.DecodeError as exc:
        raise UnheardError(f"{path}: the process that read it was cut off ({exc})") from None
    if fault is not None:
        raise RoutesFileError(fault)
    return parts


def main() -> None:
    """The child: a message on standard output."""
    keep_small()
    fault, parts = None, {}
    try:
        parts = dict(parts_of(Path(sys.argv[1])))
    except RoutesFileError as exc:
        fault = str(exc)
    except Exception as exc:
        fault = f"{sys.argv[1]} cannot be read: {exc!r}"
    sys.stdout.buffer.write(msgspec.msgpack.encode((fault, parts)))


if __name__ == "__main__":
    main()
