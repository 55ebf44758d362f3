"""What the router makes of a request on its way: parts of its time, its tokens, its trace."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from paceline_crds.headers import INTERNAL_REQUEST_ID
from paceline_router.report.otlp import spans_of
from paceline_router.report.tracing import Sampling, Tracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMING = "server-timing: queue;dur=1.0, prefill;dur=2.0, first-token;dur=3.5\r\n"
USAGE = {"prompt_tokens": 50, "completion_tokens": 3, "total_tokens": 53}


async def stream_with_timing(request: Any) -> None:
    request.begin_stream(TIMING)
    for word in ("one ", "two ", "three"):
        request.event(word)
        await asyncio.sleep(0.005)
    usage = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "smollm2", "choices": []}
    request.chunk(b"data: %b\n\n" % json.dumps({**usage, "usage": USAGE}).encode())
    request.end_stream()


async def ask(url: str, **headers: str) -> httpx.Response:
    body = {"model": "smollm2", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with httpx.AsyncClient(timeout=10) as client:
        return await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)


async def test_engine_and_link_are_told_apart_on_the_way(router: Any, peer: Any) -> None:
    replica = await peer(stream_with_timing)
    service = await router(replica)
    answer = await ask(service.url, **{"x-paceline-explain": "1"})
    await service.idle()
    assert INTERNAL_REQUEST_ID in replica.received[0].headers
    [timing] = answer.headers.get_list("server-timing")
    told = dict(span.strip().split(";dur=") for span in timing.split(",") if "dur=" in span)
    assert float(told["engine"]) == 3.5
    assert float(told["engine-queue"]) == 1.0
    assert {"queue", "router", "net", "first-byte"} <= told.keys()
    metrics = service.plane.metrics.services["demo/chat"]
    assert sum(histogram.sum for histogram in metrics.engine) == pytest.approx(0.0035)
    assert sum(metrics.net.counts) == sum(metrics.router.counts) == 1
    [cells] = metrics.cells.values()
    [cell] = [cell for cell in cells if any(cell.outcomes)]
    assert sum(cell.ttft.counts) == sum(cell.duration.counts) == 1
    assert (cell.prompt_tokens, cell.output_tokens) == (50, 3)
    assert cell.tpot.sum > 0.001


async def test_what_a_replica_tells_the_router_is_not_for_clients_who_did_not_ask(router: Any, peer: Any) -> None:
    service = await router(await peer(stream_with_timing))
    assert "server-timing" not in (await ask(service.url)).headers


async def test_a_replica_that_tells_nothing_leaves_the_engine_unknown(router: Any, peer: Any) -> None:
    service = await router(await peer())
    answer = await ask(service.url, **{"x-paceline-explain": "1"})
    await service.idle()
    assert "engine" not in answer.headers["server-timing"]
    assert "router;dur=" in answer.headers["server-timing"]
    metrics = service.plane.metrics.services["demo/chat"]
    assert sum(sum(histogram.counts) for histogram in metrics.engine) == 0


async def test_a_traced_request_hands_the_replica_the_routers_span(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)
    tracer = service.plane.observer.tracer = Tracer(Sampling(0.0))
    await ask(service.url, traceparent=PARENT)
    await ask(service.url, traceparent=PARENT[:-1] + "0")
    await ask(service.url)
    await service.idle()
    [record] = tracer.take(10)
    server, client = spans_of(record)
    assert server["parentSpanId"] == PARENT[36:52]
    assert server["traceId"] == client["traceId"] == PARENT[3:35]
    traced, not_traced, without = (request.headers.get("traceparent") for request in replica.received)
    assert traced == f"00-{PARENT[3:35]}-{client['spanId']}-01"
    assert not_traced == PARENT[:-1] + "0"
    assert without is None


async def test_with_tracing_off_a_clients_context_goes_on_as_it_came(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)
    await ask(service.url, traceparent=PARENT, tracestate="a=1")
    assert replica.received[0].headers["traceparent"] == PARENT
    assert replica.received[0].headers["tracestate"] == "a=1"
