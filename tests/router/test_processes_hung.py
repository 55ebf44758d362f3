"""A router process that hangs: it is found by its silence, replaced, and nobody who asks has to wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_router.processes import admin as admin_module
from paceline_router.processes import supervisor as supervisor_module
from paceline_router.processes.admin import HUNG_SECONDS, RED_SECONDS, CombinedAdmin, Up
from paceline_router.processes.heartbeat import BEAT_SECONDS, Pulse, beat
from paceline_router.processes.supervisor import SILENT_SECONDS, Worker
from paceline_router.report.tokens import AdminToken

START_SECONDS = 60
TOKEN = {"authorization": "Bearer secret"}
BODY = {"model": "smollm2", "messages": []}


# Signs of life


async def test_signs_of_life_say_whether_the_worker_is_ready() -> None:
    pulse = Pulse()
    ready = False
    beating = asyncio.create_task(beat(lambda: ready, pulse.worker_end))
    try:
        for expected in (False, True, False):
            ready = expected
            async with asyncio.timeout(START_SECONDS):
                pulse.look()
                while pulse.ready is not expected:
                    await asyncio.sleep(0.01)
                    pulse.look()
    finally:
        beating.cancel()
        os.close(pulse.worker_end)
        pulse.close()


def test_silence_is_counted_in_looks_from_the_first_sign_on() -> None:
    pulse = Pulse()
    for _ in range(1000):
        pulse.look()
    assert pulse.silence == 0.0  # it starts
    os.write(pulse.worker_end, b"r")
    pulse.look()
    for _ in range(3):
        pulse.look()
    assert (pulse.ready, pulse.silence) == (True, 3 * BEAT_SECONDS)
    # A supervisor that did not run for long finds all that was said meanwhile.
    os.write(pulse.worker_end, b"rrrrrrrn")
    pulse.look()
    assert (pulse.ready, pulse.silence) == (False, 0.0)
    os.close(pulse.worker_end)
    pulse.look()  # the end of the pipe is silence too
    assert pulse.silence == BEAT_SECONDS
    pulse.close()


def fill(pipe: int) -> None:
    """Write until there is no room."""
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"n" * 4096)


async def test_a_supervisor_that_does_not_read_stops_no_worker() -> None:
    pulse = Pulse()
    os.set_blocking(pulse.worker_end, False)
    fill(pulse.worker_end)
    looks = asyncio.Event()

    def ready() -> bool:
        looks.set()
        return True

    beating = asyncio.create_task(beat(ready, pulse.worker_end))
    async with asyncio.timeout(START_SECONDS):
        await looks.wait()
        looks.clear()
        await looks.wait()  # it went on after a write that found no room
    assert not beating.done()
    beating.cancel()
    os.close(pulse.worker_end)
    pulse.close()


# The admin API


@asynccontextmanager
async def nobody_answers() -> AsyncIterator[int]:
    """A port that takes connections and says nothing, as a stopped process's does."""
    writers: list[asyncio.StreamWriter] = []

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    for writer in writers:
        writer.close()
    server.close()


async def test_nobody_waits_for_a_process_that_gives_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only its silence can end the wait.
    monkeypatch.setattr(admin_module, "ASK_SECONDS", 3600.0)
    async with nobody_answers() as port:
        up = {1: Up(port, True, 0.0)}
        restarts = {"ended": 1, "silent": 2, "start": 0}
        async with (
            CombinedAdmin(lambda: up, restarts, 1, AdminToken(value="secret"), "inner", "127.0.0.1", 0) as fleet,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{fleet.port}", timeout=START_SECONDS) as client,
        ):
            assert (await client.get("/health/ready")).json() == {"status": "ready"}
            assert (await client.get("/health/live")).status_code == 200
            asked = asyncio.create_task(client.get("/v1/paceline/routes", headers=TOKEN))
            async with asyncio.timeout(START_SECONDS):
                while port not in connected_ports():
                    await asyncio.sleep(0.01)
            up[1] = Up(port, True, HUNG_SECONDS)
            answer = await asked
            assert answer.status_code == 503
            assert "has given no sign of life for 0.75 s" in answer.json()["error"]["message"]
            text = (await client.get("/metrics")).text
            assert 'paceline_router_process_restarts_total{reason="silent"} 2' in text
            assert (await client.get("/health/ready")).status_code == 200
            up[1] = Up(port, True, RED_SECONDS)
            assert (await client.get("/health/ready")).json() == {"status": "silent"}
            assert (await client.get("/health/live")).status_code == 200
            up[1] = Up(port, False, 0.0)
            assert (await client.get("/health/ready")).json() == {"status": "starting"}
            up.clear()
            assert (await client.get("/health/ready")).status_code == 503


def connected_ports() -> set[int]:
    """Remote ports of this process's established TCP connections over IPv4."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].rpartition(":")[2], 16) for row in rows if row[3] == "01"}


# The exit code


def test_a_signal_to_a_process_that_has_just_ended_does_not_cost_its_exit_code() -> None:
    """By `Process.terminate` about one in ten of these had 255 for its exit code."""

    async def ended() -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-c", "import os; os._exit(7)"), stdout=asyncio.subprocess.PIPE
        )
        pulse = Pulse()
        assert process.stdout is not None
        await process.stdout.readline()  # its end: of the process too, but perhaps nobody has waited for that yet
        Worker(process, pulse).signal(signal.SIGTERM)
        os.close(pulse.worker_end)
        pulse.close()
        return await process.wait()

    # The loop of the supervisor, which is not the one of the other tests.
    with asyncio.Runner() as runner:
        assert {runner.run(ended()) for _ in range(30)} == {7}


# The whole


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
async def test_a_worker_that_hangs_is_killed_replaced_and_counted(tmp_path: Path, peer: Any) -> None:
    replica = await peer()
    config = tmp_path / "routes.yaml"
    url = f"http://127.0.0.1:{replica.port}"
    config.write_text(f"services:\n- name: demo/chat\n  servedName: smollm2\n  replicas: [{{url: '{url}'}}]\n")
    command = [sys.executable, "-m", "paceline_router", "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", "0", "--admin-port", "0", "--processes", "2", "--shutdown-delay", "0"]
    environment = {**os.environ, "PACELINE_ADMIN_TOKEN": "secret"}
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        running = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=stderr, env=environment
        )
    try:
        assert running.stdout is not None
        line = await asyncio.wait_for(running.stdout.readline(), START_SECONDS)
        match = re.search(rb"http://127.0.0.1:(\d+) \(admin port (\d+)\)", line)
        assert match is not None, line
        before = children_of(running.pid)
        admin = f"http://127.0.0.1:{int(match[2])}"
        async with httpx.AsyncClient(base_url=admin, timeout=START_SECONDS) as client:
            os.kill(before[0], signal.SIGSTOP)
            async with asyncio.timeout(2 * START_SECONDS):
                while True:
                    assert (await client.get("/health/live")).status_code == 200
                    text = (await client.get("/metrics")).text
                    ready = (await client.get("/health/ready")).status_code
                    if 'paceline_router_process_restarts_total{reason="silent"} 1' in text and ready == 200:
                        break
                    await asyncio.sleep(0.1)
            page = (await client.get("/v1/paceline/status", headers=TOKEN)).json()
            assert page["services"]["demo/chat"]["state"] == "Serving"
        after = children_of(running.pid)
        assert before[0] not in after
        assert len(after) == 2
        async with httpx.AsyncClient(timeout=START_SECONDS) as client:
            traffic = f"http://127.0.0.1:{int(match[1])}/v1/chat/completions"
            for _ in range(10):
                assert (await client.post(traffic, json=BODY, headers={"connection": "close"})).status_code == 200
        log = errors.read_text()
        assert f"(pid {before[0]}) has given no sign of life for {SILENT_SECONDS:g} s and is killed" in log
        os.kill(running.pid, signal.SIGTERM)
        assert await asyncio.wait_for(running.wait(), START_SECONDS) == 0
    finally:
        if running.returncode is None:
            os.kill(running.pid, signal.SIGKILL)
        await running.wait()


def test_what_is_red_comes_before_what_is_killed() -> None:
    assert BEAT_SECONDS < HUNG_SECONDS < RED_SECONDS < supervisor_module.SILENT_SECONDS


async def test_a_worker_that_gives_signs_of_life_may_take_long_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads a table that is very large."""
    monkeypatch.setattr(supervisor_module, "START_SECONDS", 0.0)
    output = asyncio.StreamReader()
    pulse = Pulse()
    try:
        with pytest.raises(TimeoutError):
            await supervisor_module._first_line(output, pulse)
        os.write(pulse.worker_end, b"n")
        pulse.look()
        waiting = asyncio.create_task(supervisor_module._first_line(output, pulse))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        output.feed_data(b"ready\n")
        assert await waiting == b"ready\n"
    finally:
        os.close(pulse.worker_end)
        pulse.close()
