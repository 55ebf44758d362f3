"""Locks between processes, released by the kernel when their holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline_local.progress import Progress, Waiting, silent, ticks


@contextmanager
def locked(
    path: Path, what: str, progress: Progress = silent, timeout: float = 3600.0, remove: bool = False
) -> Iterator[None]:
    """Hold the lock file `path`, waiting for another process that holds it.

    Args:
        path: The lock file; made if absent.
        what: What the other process is doing, for the progress line and the error.
        progress: Told about a wait.
        timeout: Seconds to wait at most.
        remove: Remove the file at the end.

    Raises:
        TimeoutError: The lock was not free in time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    say = Waiting(progress)
    for waited in ticks(timeout):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file while this process waited; such a lock holds nobody off.
            if _is_file(descriptor, path):
                break
        except BlockingIOError:
            say(waited, f"waiting for another process, {what}")
        os.close(descriptor)
    else:
        raise TimeoutError(f"another process has held {path} for {timeout:.0f} s, {what}")
    try:
        yield
    finally:
        if remove:
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
