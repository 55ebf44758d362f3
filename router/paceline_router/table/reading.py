"""Reads a routes file in a process of its own, since what holds the interpreter in a thread holds a loop up as well.

The parent gets one message: why the file is not taken, or the parts of its table.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from paceline_router.table.file import RoutesFileError, read_table
from paceline_router.table.records import Replica, Service

Parts: TypeAlias = Mapping[str, bytes]
"""By service, its record and those of its replicas, pickled: equal bytes are an equal part of the table."""

READ_SECONDS: Final = 120.0
"""Longest reading of a file; one with 12,500 replicas takes about two seconds."""

MEMORY_BYTES: Final = 4 * 1024**3
"""Of the reading process's address space, many times what the largest file within the bounds takes."""

NICENESS: Final = 10
"""Requests come before the next table."""


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
        RoutesFileError: see `read_table`; or the child took too long, or ended without a word.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline_router.table.reading", str(path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        said, _ = await asyncio.wait_for(child.communicate(), READ_SECONDS)
    except TimeoutError:
        raise RoutesFileError(f"{path}: it takes longer than {READ_SECONDS:g} s to read; make it smaller") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
    try:
        fault, parts = msgspec.msgpack.decode(said, type=tuple[str | None, dict[str, bytes]])
    except msgspec.DecodeError:
        raise RoutesFileError(f"{path}: the process that read it ended with code {child.returncode}") from None
    if fault is not None:
        raise RoutesFileError(fault)
    return parts


def main() -> None:
    """The child: a message on standard output."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
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
