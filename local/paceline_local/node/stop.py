"""Stops what a node has left running, without an API server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from pathlib import Path

from paceline_local.node import shim
from paceline_local.node.runtime import Attempt

POLL_SECONDS = 0.05
NODE_SECONDS = 10.0


def _shims(directory: Path) -> list[int]:
    """Descriptors (pidfd) of the live shims of a node."""
    found = []
    for path in directory.glob("pods/*/containers/*/*/running.json"):
        running = json.loads(path.read_text())
        if (path.parent / "exit.json").exists() or running["boot"] != shim.boot_id():
            continue
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(running["shim"])
            if shim.start_ticks(running["shim"]) == running["ticks"]:
                found.append(pidfd)
            else:
                os.close(pidfd)
    return found


def _signal(shims: list[int], number: signal.Signals) -> None:
    for pidfd in shims:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)


def _ended(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return False


def _wait(shims: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not all(_ended(pidfd) for pidfd in shims):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _end_node(directory: Path) -> None:
    """End the node process itself: it would start again what is stopped under its hands."""
    path = directory / "node.lock"
    deadline = time.monotonic() + NODE_SECONDS
    while path.exists():
        with open(path) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pid = int(lock.read() or 0)
        if pid and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
        if pid == os.getpid():
            return
        time.sleep(POLL_SECONDS)


def stop_pods(directory: Path, grace: float) -> int:
    """SIGTERM every container of the node in `directory`, SIGKILL after `grace` seconds; returns how many there were.

    Raises:
        TimeoutError: A container is still there ten seconds after SIGKILL.
    """
    _end_node(directory)
    shims = _shims(directory)
    try:
        _signal(shims, signal.SIGTERM)
        if not _wait(shims, grace):
            _signal(shims, signal.SIGUSR1)
            if not _wait(shims, NODE_SECONDS):
                raise TimeoutError(f"containers of {directory} do not end, not even by SIGKILL")
    finally:
        for pidfd in shims:
            os.close(pidfd)
    for path in directory.glob("pods/*/containers/*/*/running.json"):
        if not (path.parent / "exit.json").exists():
            Attempt(path.parent, "").kill_leftovers()
    return len(shims)
