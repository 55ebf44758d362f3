"""Has a child of this process read a file, since what holds the interpreter in a thread holds a loop up as well."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from typing import Final

READ_SECONDS: Final = 120.0
"""Longest reading; a routes file with 12,500 replicas takes about two seconds."""

MEMORY_BYTES: Final = 4 * 1024**3
"""Of the reading process's address space, many times what the largest files within the bounds take."""

NICENESS: Final = 10
"""Requests come before what is read."""


class NotHeard(Exception):
    """The child said nothing; the message says why."""


async def hear(module: str, *arguments: str) -> bytes:
    """What a module, run in a process of its own, writes to standard output.

    Raises:
        NotHeard: it could not be started, took too long, or ended without a word.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as exc:
        raise NotHeard(f"no process can be started to read it ({exc.strerror})") from exc
    try:
        said, _ = await asyncio.wait_for(child.communicate(), READ_SECONDS)
    except TimeoutError:
        raise NotHeard(f"it takes longer than {READ_SECONDS:g} s to read; make it smaller") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
    if not said:
        raise NotHeard(f"the process that read it ended with code {child.returncode}")
    return said


def keep_small() -> None:
    """Set the bounds of such a process, in it."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
