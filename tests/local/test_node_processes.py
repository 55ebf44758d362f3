"""Containers as real processes: the shim, mount namespaces, adoption, logs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paceline_local.node.logs import LogOptions, stream
from paceline_local.node.memory import ProcessMemory, descendants, held_bytes, snapshot
from paceline_local.node.mounts import refusal
from paceline_local.node.plan import ContainerPlan, MountPlan, Namespaces
from paceline_local.node.runtime import LOST, START_ERROR, Attempt, execute, tail_text
from paceline_local.node.shim import PARTIAL_LINE, LogWriter, boot_id
from paceline_local.node.stop import stop_pods

ENV = {"PATH": "/usr/bin:/bin"}


def shell(script: str, mounts: tuple[MountPlan, ...] = (), cwd: str = "/") -> ContainerPlan:
    return ContainerPlan(("/bin/sh", "-c", script), ENV, cwd, mounts, None)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    for path in tmp_path.rglob("running.json"):
        Attempt(path.parent, "").kill_leftovers()


def make(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def traces(*paths: str) -> list[str]:
    return [path for path in paths if os.path.lexists(path)]


def last_argument(process: psutil.Process) -> str | None:
    try:
        return (process.cmdline() or [None])[-1]
    except psutil.NoSuchProcess:
        return None


async def start(directory: Path, plan: ContainerPlan, namespace: Namespaces = "none") -> Attempt:
    attempt = Attempt(make(directory), "paceline://test")
    await attempt.launch(plan, namespace, ENV, lambda: None)
    return attempt


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


async def finish(attempt: Attempt) -> None:
    await asyncio.wait_for(attempt.exited.wait(), 20)


def text(attempt: Attempt) -> str:
    return tail_text(attempt.log_path)


async def test_exit_code_and_output_are_kept(tmp_path: Path) -> None:
    attempt = await start(tmp_path / "0", shell("echo out; echo err >&2; printf 'no newline'; exit 3"))
    await finish(attempt)
    ended = attempt.termination({})
    assert (ended.exit_code, ended.reason, ended.signal) == (3, "Error", 0)
    records = [line.split(b" ", 3) for line in attempt.log_path.read_bytes().splitlines()]
    assert {(r[1], r[2], r[3]) for r in records} == {
        (b"stdout", b"F", b"out"),
        (b"stderr", b"F", b"err"),
        (b"stdout", b"F", b"no newline"),
    }


async def test_a_command_that_is_not_there_is_a_start_error(tmp_path: Path) -> None:
    attempt = await start(tmp_path / "0", ContainerPlan(("/no/such/program",), ENV, "/", (), None))
    ended = attempt.termination({})
    assert not attempt.running
    assert (ended.exit_code, ended.reason) == (128, START_ERROR)
    assert "/no/such/program" in ended.message or "No such file" in ended.message


async def test_sigterm_goes_to_the_main_process_and_sigkill_to_all(tmp_path: Path) -> None:
    script = "trap 'echo got it' TERM; (setsid sleep 300 &); (sleep 300 &); echo up; while :; do sleep 0.05; done"
    attempt = await start(tmp_path / "0", shell(script))
    await until(lambda: "up" in text(attempt))
    await until(lambda: len(psutil.Process(attempt.shim_pid).children(recursive=True)) >= 3)
    family = psutil.Process(attempt.shim_pid).children(recursive=True)
    attempt.send(signal.SIGTERM)
    await until(lambda: "got it" in text(attempt))
    assert attempt.running
    attempt.send(signal.SIGUSR1)
    await finish(attempt)
    assert attempt.termination({}).exit_code == 137
    assert not psutil.wait_procs(family, timeout=5)[1]


async def test_orphans_end_with_the_main_process(tmp_path: Path) -> None:
    attempt = await start(tmp_path / "0", shell("(setsid sleep 301 &); sleep 0.2; exit 0"))
    family: set[psutil.Process] = set()

    def orphan() -> bool:
        found = psutil.Process(attempt.shim_pid).children(recursive=True)
        family.update(found)
        return any(last_argument(process) == "301" for process in found)

    await until(orphan)
    await finish(attempt)
    assert attempt.termination({}).reason == "Completed"
    assert not psutil.wait_procs(family, timeout=5)[1]


async def test_an_out_of_memory_kill_is_called_so(tmp_path: Path) -> None:
    code = "import time; x = bytearray(80 << 20); print('held', flush=True); time.sleep(300)"
    attempt = await start(tmp_path / "0", ContainerPlan((sys.executable, "-c", code), ENV, "/", (), None))
    await until(lambda: "held" in text(attempt))
    assert 80 << 20 < held_bytes(snapshot(), attempt.shim_pid, 0) < 200 << 20
    assert held_bytes(snapshot(), attempt.shim_pid, 1 << 30) <= 1 << 30
    attempt.send(signal.SIGUSR2)
    await finish(attempt)
    ended = attempt.termination({})
    assert (ended.exit_code, ended.reason, ended.signal) == (137, "OOMKilled", 9)


def test_a_family_is_everything_below_and_nothing_else() -> None:
    table = {pid: ProcessMemory(parent, pid * 100) for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 2), (6, 1))}
    assert descendants(table, 2) == {3, 4, 5}
    assert descendants(table, 6) == set()
    assert descendants({2: ProcessMemory(3, 0), 3: ProcessMemory(2, 0)}, 2) == {3}
    assert held_bytes(table, 2, 5000) == 1200


async def test_termination_message_from_file_or_log(tmp_path: Path) -> None:
    attempt = await start(tmp_path / "0", shell("echo last words; exit 1"))
    await finish(attempt)
    assert attempt.termination({}).message == ""
    assert attempt.termination({"terminationMessagePolicy": "FallbackToLogsOnError"}).message == "last words"
    (tmp_path / "0" / "termination-log").write_text("from the file")
    assert attempt.termination({}).message == "from the file"


async def test_a_later_node_finds_a_running_container_again(tmp_path: Path) -> None:
    first = await start(tmp_path / "0", shell("echo up; sleep 300"))
    first.release()
    second = Attempt(tmp_path / "0", "paceline://test")
    ended = asyncio.Event()
    assert second.adopt(ended.set)
    assert second.child_pid == first.child_pid
    assert second.started_at == first.started_at
    code, output = await execute(second, ["sh", "-c", "echo $PATH; exit 4"], 10)
    assert (code, output) == (4, "/usr/bin:/bin")
    second.send(signal.SIGTERM)
    await asyncio.wait_for(ended.wait(), 20)
    assert second.termination({}).exit_code == 143


async def test_a_killed_shim_takes_its_container_along(tmp_path: Path) -> None:
    attempt = await start(tmp_path / "0", shell("(setsid sleep 302 &); sleep 300"))
    await until(lambda: len(psutil.Process(attempt.shim_pid).children(recursive=True)) >= 2)
    family = psutil.Process(attempt.shim_pid).children(recursive=True)
    os.kill(attempt.shim_pid, signal.SIGKILL)
    await finish(attempt)
    ended = attempt.termination({})
    assert (ended.exit_code, ended.reason) == (137, LOST)
    attempt.kill_leftovers()
    assert not psutil.wait_procs(family, timeout=5)[1]


async def test_a_process_with_a_recycled_pid_is_not_adopted(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    attempt = Attempt(tmp_path / "0", "paceline://test")
    running = {"shim": os.getpid(), "ticks": 1, "boot": boot_id(), "child": os.getpid(), "startedAt": 1.0}
    (tmp_path / "0" / "running.json").write_text(json.dumps(running))
    assert not attempt.adopt(lambda: None)
    assert attempt.termination({}).reason == LOST


async def test_a_command_in_a_container_has_a_time_limit(tmp_path: Path) -> None:
    attempt = await start(tmp_path / "0", shell("sleep 300"))
    code, _ = await execute(attempt, ["sleep", "303"], 0.3)
    assert code is None
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "303"]]
    attempt.send(signal.SIGUSR1)
    await finish(attempt)


@pytest.mark.parametrize("namespace", ["root", "user"])
async def test_mounts_show_at_their_paths_and_nowhere_else(tmp_path: Path, namespace: Namespaces) -> None:
    if words := await asyncio.to_thread(refusal, namespace):
        pytest.skip(f"no mount namespace as {namespace} here: {words}")
    volume, other = tmp_path / "volume", tmp_path / "other"
    volume.mkdir()
    other.mkdir()
    (volume / "f").write_text("content\n")
    mounts = (
        MountPlan(volume, "/etc/paceline-test/deep", True),
        MountPlan(other, "/paceline-test-top", False),
        MountPlan(volume / "f", "/paceline-test-top/nested/file", False),
    )
    script = (
        "cat /etc/paceline-test/deep/f; test -e /etc/passwd && echo passwd; pwd;"
        "echo x > /etc/paceline-test/deep/f || echo read-only; echo new > /paceline-test-top/made;"
        "cat /paceline-test-top/nested/file; echo y > /paceline-test-private; sleep 300"
    )
    attempt = await start(tmp_path / "0", shell(script, mounts, "/paceline-test-top"), namespace)
    await until(lambda: (other / "made").exists())
    await until(lambda: text(attempt).count("content") == 2)
    code, output = await execute(attempt, ["sh", "-c", "cat /paceline-test-top/made; pwd; id -u"], 10)
    assert (code, output.split()) == (0, ["new", "/paceline-test-top", str(os.getuid())])
    (volume / "f").write_text("changed")
    code, output = await execute(attempt, ["cat", "/etc/paceline-test/deep/f"], 10)
    assert output == "changed"
    attempt.send(signal.SIGUSR1)
    await finish(attempt)
    shown = text(attempt)
    assert "passwd\n/paceline-test-top" in shown
    assert "read-only" in shown
    assert traces("/etc/paceline-test", "/paceline-test-top", "/paceline-test-private") == []


async def test_stop_ends_all_containers_of_a_node(tmp_path: Path) -> None:
    place = tmp_path / "pods" / "uid" / "containers"
    polite = await start(place / "a" / "0", shell("sleep 300"))
    stubborn = await start(place / "b" / "0", shell("trap '' TERM; echo up; while :; do sleep 0.05; done"))
    gone = await start(place / "c" / "0", shell("exit 0"))
    await until(lambda: "up" in text(stubborn))
    await finish(gone)
    assert await asyncio.to_thread(stop_pods, tmp_path, 0.3) == 2
    await finish(polite)
    await finish(stubborn)
    assert polite.termination({}).exit_code == 143
    assert stubborn.termination({}).exit_code == 137


async def collect(path: Path, options: LogOptions, running: Callable[[], bool] = lambda: False) -> str:
    return b"".join([piece async for piece in stream(path, options, running)]).decode()


async def test_logs_can_be_cut_in_every_way(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "2026-01-01T00:00:00.000000001Z stdout F one\n"
        "2026-01-01T00:00:01.500000000Z stderr P tw\n"
        "2026-01-01T00:00:01.600000000Z stderr F o\n"
        "2026-01-01T00:00:02.000000000Z stdout F three\n"
        "2026-01-01T00:00:03.0"
    )
    assert await collect(log, LogOptions()) == "one\ntwo\nthree\n"
    assert await collect(log, LogOptions(tail_lines=1)) == "three\n"
    assert await collect(log, LogOptions(tail_lines=0)) == ""
    assert await collect(log, LogOptions(since=1767225601.0)) == "two\nthree\n"
    assert await collect(log, LogOptions(limit_bytes=5)) == "one\nt"
    assert await collect(log, LogOptions(tail_lines=1, timestamps=True)) == "2026-01-01T00:00:02.000000000Z three\n"
    assert await collect(tmp_path / "none", LogOptions()) == ""


async def test_a_followed_log_ends_with_its_container_and_misses_nothing_on_rotation(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line $i; sleep 0.01; done"
    directory = tmp_path / "0"
    directory.mkdir()
    attempt = await start(directory, shell(script))
    following = asyncio.create_task(collect(attempt.log_path, LogOptions(follow=True), lambda: attempt.running))
    await until(lambda: "line 5" in text(attempt))
    assert await asyncio.wait_for(following, 20) == "".join(f"line {n}\n" for n in range(1, 61))


def test_the_log_writer_keeps_one_older_file_and_splits_long_lines(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path / "log"), 1000)
    for n in range(40):
        writer.feed("stdout", f"line {n}\n".encode())
    assert (tmp_path / "log.1").stat().st_size <= 1000
    lines = [
        line.split(b" ", 3)[3] for part in ("log.1", "log") for line in (tmp_path / part).read_bytes().splitlines()
    ]
    assert lines == [f"line {n}".encode() for n in range(40 - len(lines), 40)]
    writer = LogWriter(str(tmp_path / "long"), 1 << 20)
    writer.feed("stderr", b"x" * (PARTIAL_LINE + 10))
    writer.feed("stderr", b"y\n")
    records = [line.split(b" ", 3) for line in (tmp_path / "long").read_bytes().splitlines()]
    assert [(r[2], len(r[3])) for r in records] == [(b"P", PARTIAL_LINE), (b"F", 11)]
