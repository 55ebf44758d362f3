"""Processes that outlive their starter, told apart from later ones that got the same pid.

Linux only (`/proc`), as local mode as a whole: it needs all of 127.0.0.0/8 on the loopback interface.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline_local.progress import ticks

INSTANCE_VARIABLE = "PACELINE_LOCAL_INSTANCE"
"""Environment variable of every process of an instance, pods' too: the instance's folder."""

LOG_LIMIT_BYTES = 16 * 1024 * 1024


@cache
def boot_id() -> str:
    """What names this boot of the machine; pids and start times of an earlier one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, for good: a pid comes back, a pid with its start time and boot does not."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks from boot to the process's start."""
    boot: str


_spawned: set[ProcessIdentity] = set()
"""Children of this process that `spawn` made and nobody has waited for."""


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on, or None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses and may itself contain spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of the live process `pid`, or None where there is none.

    A zombie is none, unless only its first thread has ended: the others still have its files and ports.
    """
    fields = _stat_fields(pid)
    if fields is None or (fields[0] in ("Z", "X") and int(fields[17]) <= 1):
        return None
    return ProcessIdentity(pid, int(fields[19]), boot_id())


def is_running(process: ProcessIdentity) -> bool:
    """Whether exactly this process still runs."""
    if process.boot != boot_id():
        return False
    # A part started by this very process stays a zombie until it is waited for. Other children have their own waiters.
    if process in _spawned:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(process.pid, os.WNOHANG) != (0, 0):
                _spawned.discard(process)
    return identify(process.pid) == process


def started_at(process: ProcessIdentity) -> float:
    """Seconds since the epoch at which the process started."""
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + process.start_ticks / ticks_per_second


def spawn(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> ProcessIdentity:
    """Start a process in a session of its own, with its output appended to `log`.

    Raises:
        OSError: The program cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_name(log.name + ".1"))
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    fields = _stat_fields(pid)
    # An unwaited child is at least a zombie, so it has its line in /proc whatever became of it.
    if fields is None:
        raise OSError(f"{argv[0]} was started as process {pid} and cannot be found")
    process = ProcessIdentity(pid, int(fields[19]), boot_id())
    _spawned.add(process)
    return process


def _signal_group(process: ProcessIdentity, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number) if os.getpgid(process.pid) == process.pid else os.kill(process.pid, number)


def stop(processes: Iterable[ProcessIdentity], grace_seconds: float) -> None:
    """SIGTERM all of them (with their groups), SIGKILL what is left after the grace period; returns once all are gone.

    Raises:
        TimeoutError: A process is still there ten seconds after SIGKILL.
    """
    left = [process for process in processes if is_running(process)]
    for process in left:
        _signal_group(process, signal.SIGTERM)
    for _ in ticks(grace_seconds, 0.02):
        left = [process for process in left if is_running(process)]
        if not left:
            return
    for process in left:
        _signal_group(process, signal.SIGKILL)
    for _ in ticks(10.0, 0.02):
        left = [process for process in left if is_running(process)]
        if not left:
            return
    raise TimeoutError(f"processes {', '.join(str(p.pid) for p in left)} do not end, not even by SIGKILL")


def of_instance(directory: Path) -> list[ProcessIdentity]:
    """All live processes of this user whose environment says that they belong to the instance in `directory`."""
    mark = f"{INSTANCE_VARIABLE}={directory}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if mark in environment.split(b"\0") and (process := identify(int(entry))):
            found.append(process)
    return found


def command_line(process: ProcessIdentity) -> tuple[str, ...]:
    """The process's arguments, its program first; empty where it is gone."""
    try:
        raw = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return tuple(raw.decode(errors="replace").rstrip("\0").split("\0")) if is_running(process) else ()
