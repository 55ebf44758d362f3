"""Processes that outlive their starter: never confused, always found, always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline_local import processes
from paceline_local.processes import INSTANCE_VARIABLE, ProcessIdentity
from paceline_local.progress import ticks

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def start(tmp_path: Path, *argv: str, **environment: str) -> ProcessIdentity:
    return processes.spawn(argv, {"PATH": os.environ["PATH"]} | environment, tmp_path / "log")


def await_log(tmp_path: Path, text: str) -> None:
    for _ in ticks(20, 0.02):
        if text in (tmp_path / "log").read_text():
            return
    raise AssertionError(f"{text!r} is not in the log")


def test_a_process_runs_in_its_own_session_and_writes_to_its_log(tmp_path: Path) -> None:
    process = start(tmp_path, sys.executable, "-c", "import os; print(os.getsid(0)); print(os.getpid(), flush=True)")
    for _ in ticks(20, 0.02):
        if not processes.is_running(process):
            break
    assert (tmp_path / "log").read_text().split() == [str(process.pid)] * 2


def test_a_process_outlives_its_starter(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from paceline_local import processes\n"
        "process = processes.spawn(['/bin/sleep', '60'], {}, pathlib.Path(sys.argv[1]))\n"
        "print(process.pid, process.start_ticks)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, check=True
    )
    pid, start_ticks = map(int, said.stdout.split())
    process = ProcessIdentity(pid, start_ticks, processes.boot_id())
    assert processes.is_running(process)
    processes.stop([process], 5)
    assert not processes.is_running(process)


def test_the_same_pid_at_another_time_or_boot_is_another_process() -> None:
    me = processes.identify(os.getpid())
    assert me is not None
    assert processes.is_running(me)
    assert not processes.is_running(replace(me, start_ticks=me.start_ticks - 1))
    assert not processes.is_running(replace(me, boot="an earlier one"))


def test_a_process_that_ended_does_not_run_although_nobody_waited_for_it(tmp_path: Path) -> None:
    process = start(tmp_path, "/bin/sleep", "60")
    assert processes.is_running(process)
    os.kill(process.pid, signal.SIGKILL)
    for _ in ticks(10, 0.01):
        if processes.identify(process.pid) is None:
            break
    assert not processes.is_running(process)


def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    process = start(tmp_path, sys.executable, "-c", DEAF)
    await_log(tmp_path, "deaf")
    processes.stop([process], 0.2)
    assert not processes.is_running(process)


def test_stop_reaches_the_children_in_the_group(tmp_path: Path) -> None:
    process = start(tmp_path, "/bin/sh", "-c", "sleep 61 & echo $!; wait")
    for _ in ticks(10, 0.02):
        if (tmp_path / "log").read_text().strip():
            break
    child = processes.identify(int((tmp_path / "log").read_text()))
    assert child is not None
    processes.stop([process], 5)
    for _ in ticks(10, 0.02):
        if not processes.is_running(child):
            break
    assert not processes.is_running(child)


def test_stop_of_what_is_gone_is_no_error(tmp_path: Path) -> None:
    process = start(tmp_path, "/bin/true")
    processes.stop([process], 1)
    processes.stop([process], 1)


def test_processes_of_an_instance_are_found_by_their_environment(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine-too"
    process = start(tmp_path, "/bin/sleep", "60", **{INSTANCE_VARIABLE: str(mine)})
    stranger = start(tmp_path, "/bin/sleep", "60", **{INSTANCE_VARIABLE: str(other)})
    try:
        for _ in ticks(10, 0.02):
            if processes.of_instance(mine):
                break
        assert processes.of_instance(mine) == [process]
    finally:
        processes.stop([process, stranger], 1)
    assert processes.of_instance(mine) == []


def test_a_long_log_is_set_aside_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOG_LIMIT_BYTES", 10)
    (tmp_path / "log").write_text("more than ten bytes")
    processes.stop([start(tmp_path, "/bin/sleep", "60")], 1)
    assert (tmp_path / "log.1").read_text() == "more than ten bytes"
    assert (tmp_path / "log").read_text() == ""


def test_the_start_time_is_about_now(tmp_path: Path) -> None:
    process = start(tmp_path, "/bin/sleep", "60")
    try:
        assert abs(processes.started_at(process) - time.time()) < 60
    finally:
        processes.stop([process], 1)


def test_a_program_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        start(tmp_path, str(tmp_path / "no-such-program"))


def test_a_process_whose_first_thread_has_ended_still_runs(tmp_path: Path) -> None:
    """So ends a killed server of many threads: for a moment it is a zombie that still has its port."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = start(tmp_path, sys.executable, "-c", code)
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        for _ in ticks(60, 0.02):
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                break
        else:
            raise AssertionError(stat.read_text())
        assert processes.identify(process.pid) == process
        assert processes.is_running(process)
    finally:
        processes.stop([process], 0.0)
    assert not processes.is_running(process)
