"""Whatever replicas and clients do, every request ends once, readably, and nothing is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from typing import Any

import httpx
import pytest

from paceline_crds.routing import RoutingSpec
from paceline_crds.tenancy import LimitsSpec, TenancySpec
from paceline_router.table.policy import make_policy
from paceline_router.table.records import Limits

PATH = "/v1/chat/completions"
REQUESTS = 150


class Chance:
    """A replica that picks what it does."""

    def __init__(self, rng: random.Random, completion: Any) -> None:
        self._rng = rng
        self._completion = completion

    async def __call__(self, request: Any) -> None:
        await asyncio.sleep(self._rng.random() * 0.003)
        act = self._rng.choice(
            ["good"] * 8 + ["die", "drain", "refuse", "half", "garbage", "surplus", "close", "busy", "fail"]
        )
        await getattr(self, act)(request)

    async def good(self, request: Any) -> None:
        if not request.json.get("stream"):
            await request.answer(self._completion())
            return
        request.begin_stream()
        for number in range(self._rng.randrange(1, 6)):
            request.event(f"{number}")
            await request.writer.drain()
            await asyncio.sleep(0)
        request.end_stream()

    async def die(self, request: Any) -> None:
        request.die()

    async def drain(self, request: Any) -> None:
        await request.answer({"error": {"message": "d"}}, "503 Service Unavailable", "retry-after: 1\r\n")

    async def refuse(self, request: Any) -> None:
        await request.answer({"error": {"message": "r"}}, "400 Bad Request")

    async def busy(self, request: Any) -> None:
        await request.answer({"error": {"message": "b"}}, "429 Too Many Requests", "retry-after: 0\r\n")

    async def fail(self, request: Any) -> None:
        await request.answer({"error": {"message": "f"}}, "500 Internal Server Error")

    async def half(self, request: Any) -> None:
        request.begin_stream()
        request.event("half")
        request.send(b"40\r\ndata: cut ")
        await request.writer.drain()
        request.die()

    async def garbage(self, request: Any) -> None:
        request.send(b"\x00\x01\x02 what\r\n\r\n")
        await request.writer.drain()

    async def surplus(self, request: Any) -> None:
        await request.answer(self._completion())
        request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await request.writer.drain()

    async def close(self, request: Any) -> None:
        await request.answer(self._completion())
        request.writer.close()


def readable(status: int, text: str) -> bool:
    if status == 200 and text.startswith("data: "):
        assert text.endswith("\n\n")
        # An error is kept apart from whatever came before it by empty lines, which mean nothing.
        events = [event for event in text.split("\n\n") if event]
        assert all(event.startswith("data: ") for event in events)
        last = events[-1].removeprefix("data: ")
        for event in events[:-1]:
            json.loads(event.removeprefix("data: "))
        return last == "[DONE]" or "message" in json.loads(last)["error"]
    body = json.loads(text)
    return "choices" in body if status == 200 else "message" in body["error"]


@pytest.mark.parametrize("seed", range(3))
async def test_every_request_ends_once_and_nothing_is_left(router: Any, peer: Any, helpers: Any, seed: int) -> None:
    rng = random.Random(seed)
    replicas = [await peer(Chance(random.Random(seed * 10 + n), helpers.completion)) for n in range(3)]
    policy = make_policy(RoutingSpec(), TenancySpec(default=LimitsSpec(max_concurrent=2)))
    table = helpers.table_of(*replicas, policy=policy)
    limits = Limits(max_num_seqs=1)
    table = dataclasses.replace(
        table, replicas={uid: dataclasses.replace(r, limits=limits) for uid, r in table.replicas.items()}
    )
    service = await router(table=table, retry_pause=0.01)
    left = 0

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal left
        stream = rng.random() < 0.5
        tenant = {"x-paceline-tenant": f"t{rng.randrange(4)}"}
        patience = rng.choice([10.0] * 9 + [0.004])
        try:
            async with asyncio.timeout(patience):
                answer = await client.post(
                    PATH, json={"model": "smollm2", "messages": [], "stream": stream}, headers=tenant
                )
        except TimeoutError:
            assert patience < 1
            left += 1
            return
        assert answer.status_code in (200, 400, 429, 500, 502, 503)
        assert readable(answer.status_code, answer.text), answer.text

    async with httpx.AsyncClient(base_url=service.url, timeout=20) as client:
        gate = asyncio.Semaphore(12)

        async def bounded() -> None:
            async with gate:
                await one(client)

        await asyncio.gather(*(bounded() for _ in range(REQUESTS)))
        await service.idle()
        outcomes = service.outcomes()
        # A client that gave up while it still waited for a connection never asked.
        assert REQUESTS - left <= sum(outcomes.values()) <= REQUESTS
        assert outcomes.get("cancelled", 0) <= left
        assert outcomes["2xx"] > REQUESTS / 2
        assert service.plane.metrics.service(helpers.KEY).in_flight == 0
        living = service.plane.living[helpers.KEY]
        assert (living.gate.queued, living.held_bytes) == (0, 0)
        assert all(tenant.running == tenant.queued == 0 for tenant in living.tenants)
        for backend in service.plane.backends.values():
            assert backend.in_flight == 0
            assert all(connection.exchange is None for connection in backend.idle)
            assert len(set(backend.idle)) == len(backend.idle)
