"""Processes under test: started in a session of their own, held still while others have a turn, ended for certain."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

PR_SET_PDEATHSIG = 1
LOG_TAIL = 2000
STOP_SECONDS = 20.0
TICKS = os.sysconf("SC_CLK_TCK")
WANTED_FILES = 65_536


class ProcessGroup:
    """A process with all that it starts. Use as a context manager, so that it ends with the benchmark.

    Args:
        command: what to run.
        environment: added to this process's.
        log: file that takes stderr, and stdout unless `piped`.
        piped: stdin and stdout are pipes to here.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, piped: bool = False
    ) -> None:
        self._log = log
        with log.open("wb") as stream:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else stream,
                stderr=stream,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        """Of the process that was started; also the id of its session."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        """Only where it is piped."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Only where it is piped."""
        assert self._process.stdout is not None
        return self._process.stdout

    def ended(self) -> int | None:
        """Its exit code, `None` while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> int | None:
        """Its exit code once it has ended, `None` if it has not within `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def pause(self) -> None:
        """Hold everything in it still."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        os.killpg(self.pid, signal.SIGCONT)

    def terminate(self, patience: float = STOP_SECONDS) -> int | None:
        """Ask it to end; its exit code, `None` if it did not within `patience` seconds."""
        with contextlib.suppress(ProcessLookupError):
            self.resume()
            self._process.terminate()
        return self.wait(patience)

    def close(self) -> None:
        """End everything in it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def members(self) -> Iterator[int]:
        """Process ids of everything alive in its session (Linux)."""
        for entry in Path("/proc").iterdir():
            fields = _stat(int(entry.name)) if entry.name.isdigit() else None
            if fields and int(fields[3]) == self.pid and fields[0] not in "ZX":
                yield int(entry.name)

    def cpu_seconds(self) -> float:
        """User and system time of everything alive in it, all threads (Linux)."""
        found = (_stat(pid) for pid in self.members())
        return sum((int(fields[11]) + int(fields[12])) / TICKS for fields in found if fields)

    def words(self, what: str) -> str:
        """`what` happened, with the end of what it printed."""
        tail = self._log.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
        return f"{what}; it said:\n{tail}" if tail else what

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rss_bytes(pid: int) -> int | None:
    """Resident memory of one process (Linux); `None` if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * resource.getpagesize()


def open_files(pid: int) -> int:
    """Descriptors that one process has open (Linux).

    Raises:
        OSError: it is gone.
    """
    return len(os.listdir(f"/proc/{pid}/fd"))


def command_line(pid: int) -> str:
    """With what a process was started; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def free_port() -> int:
    """A port of this machine's loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def raise_file_limit() -> None:
    """Take as many open files as are allowed: each stream is a socket here and one in the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even while it is held still (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _stat(pid: int) -> list[str] | None:
    """Fields of `/proc/PID/stat` after the name: state, parent, group, session, …; `None` if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
