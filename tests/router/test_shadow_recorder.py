"""Pairs on their way from a router to a recorder, over real connections."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_router.shadow import sending
from paceline_router.shadow.counts import Counts
from paceline_router.shadow.sending import Sender
from paceline_router.table.records import Replica, Service, Shadow, Table, TrafficShare
from paceline_shadow_traffic.comparisons_page import PATH, window
from paceline_shadow_traffic.evidence import Signal
from paceline_shadow_traffic.pair import Heard, Pair
from paceline_shadow_traffic.share import Share

HEARD = Heard(200, "", False, [(0.1, b"{}")], 0.1)
PAIR = Pair(
    "req-1", 1.0, "demo/chat", "old", "new", "default", "ShortInputShortOutput", "/v1/chat/completions", "", b"{}",
    (HEARD, HEARD), ("127.0.0.1:9", "127.0.0.1:9"), ("m", "m"),
)  # fmt: skip


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not seen():
            await asyncio.sleep(0.01)


@pytest.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[str]:
    """A recorder as it is run; its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline_shadow_traffic", "--data", str(tmp_path), "--host", "127.0.0.1"),
        *("--port", "0", "--replay-percent", "100"),
        env={**os.environ, "PACELINE_ADMIN_TOKEN": "secret", "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    yield (await asyncio.wait_for(process.stdout.readline(), 60)).decode().split()[-1]
    process.terminate()
    await process.wait()


async def test_what_both_versions_answered_arrives_at_the_recorder_with_the_noise_of_the_base(
    router: Any, peer: Any, helpers: Any, recorder: str
) -> None:
    async def other(request: Any) -> None:
        await request.answer(helpers.completion("another word"))

    base, candidate = await peer(), await peer(other)
    replicas = {
        revision: Replica(
            revision, revision, helpers.KEY, "default", "", "127.0.0.1", one.port, True, False, revision=revision
        )
        for revision, one in (("old", base), ("new", candidate))
    }
    shadow = Shadow("new", 100, recorder=recorder)
    service = Service(helpers.KEY, helpers.MODEL, traffic=(TrafficShare("default", "old", 100),), shadow=shadow)
    made = await router(table=Table(services={helpers.KEY: service}, replicas=replicas))
    sender = Sender(lambda: "secret", delay=0.01)
    made.plane.living[helpers.KEY].shadow.sender = sender
    body = {"model": helpers.MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 9}
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        answer = await client.post(f"{made.url}/v1/chat/completions", json=body)
        assert answer.json() == helpers.completion()
        counts = made.plane.taps.counts[helpers.KEY]
        await until(lambda: counts.pairs["posted"] == 1)
        headers = {"authorization": "Bearer secret"}
        page: dict[str, Any] = {}
        async with asyncio.timeout(60):
            while (
                not page
                or not page["services"]
                or not page["services"][helpers.KEY]["rows"][0]["itself"]["different"][1]
            ):
                page = (await client.get(recorder + PATH, headers=headers)).json()
                await asyncio.sleep(0.02)
    await asyncio.get_running_loop().run_in_executor(None, sender.stop)
    seen = window(page, helpers.KEY, "old", "new")["default/ShortInputShortOutput"]
    assert seen.candidate.shares[Signal.OUTPUT_DIFFERENCE] == Share(1.0, 1.0)
    assert seen.base.shares[Signal.OUTPUT_DIFFERENCE] == Share(0.0, 1.0)
    assert len(base.received) == 2
    assert base.received[1].headers["x-paceline-shadow"] == "1"
    assert made.outcomes() == {"2xx": 1}


def test_a_recorder_that_hangs_costs_pairs_and_no_memory(blackhole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MAX_PAIRS", 10)
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 0.2)
    sender, counts = Sender(lambda: "", delay=0.01), Counts()
    for _ in range(200):
        sender.put(f"http://127.0.0.1:{blackhole}", PAIR, counts)
    assert counts.pairs["dropped"] >= 1
    end = time.monotonic() + 60
    while not counts.pairs["lost"]:
        assert time.monotonic() < end, "nothing was given up"
        time.sleep(0.01)
    sender.stop()
    assert counts.pairs["posted"] == 0


async def test_a_connection_that_the_recorder_has_closed_meanwhile_costs_no_pair(peer: Any) -> None:
    async def takes(request: Any) -> None:
        await request.answer({"taken": 1})
        if len(recorder.received) == 1:
            request.writer.close()

    recorder = await peer(takes)
    sender, counts = Sender(lambda: "secret", delay=0.01), Counts()
    for number in range(1, 4):
        sender.put(f"http://127.0.0.1:{recorder.port}", PAIR, counts)
        await until(lambda number=number: counts.pairs["posted"] == number)
    assert recorder.connections == 2
    assert recorder.received[0].headers["authorization"] == "Bearer secret"
    await asyncio.get_running_loop().run_in_executor(None, sender.stop)


async def test_pairs_that_a_recorder_does_not_want_are_counted_as_refused(peer: Any) -> None:
    async def refuses(request: Any) -> None:
        await request.answer({"detail": "no"}, "401 Unauthorized")

    recorder = await peer(refuses)
    sender, counts = Sender(lambda: "", delay=0.01), Counts()
    sender.put(f"http://127.0.0.1:{recorder.port}", PAIR, counts)
    await until(lambda: counts.pairs["refused"] == 1)
    await asyncio.get_running_loop().run_in_executor(None, sender.stop)


def test_pairs_for_a_recorder_that_is_not_there_are_lost_and_counted_so(closed_port: int) -> None:
    sender, counts = Sender(lambda: "", delay=0.01), Counts()
    sender.put(f"http://127.0.0.1:{closed_port}", PAIR, counts)
    sender.stop()
    assert counts.pairs["lost"] == 1


def test_without_a_pair_there_is_no_thread() -> None:
    import threading

    before = threading.active_count()
    sender = Sender(lambda: "")
    assert threading.active_count() == before
    sender.stop()
