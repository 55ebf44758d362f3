"""Replicas that fail, clients that leave, and time that passes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from paceline_router.flow.health import CONNECT_FAILURES, Event

MESSAGES: Any = [{"role": "user", "content": "hi"}]
BODY = {"model": "smollm2", "messages": MESSAGES}
STREAM = {**BODY, "stream": True}
PATH = "/v1/chat/completions"


async def die_at_once(request: Any) -> None:
    request.die()


async def never_answer(request: Any) -> None:
    await request.gone.wait()


async def drain(request: Any) -> None:
    error = {"error": {"message": "draining", "type": "t", "param": None, "code": None}}
    await request.answer(error, "503 Service Unavailable", "retry-after: 1\r\n")


async def stream_three(request: Any) -> None:
    request.begin_stream()
    for word in ("a", "b", "c"):
        request.event(word)
        await request.writer.drain()


def client_of(router: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.url, timeout=10)


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_replica_that_dies_before_its_first_byte_is_replaced(router: Any, peer: Any, body: Any) -> None:
    dead, alive = await peer(die_at_once), await peer()
    service = await router(dead, alive)
    async with client_of(service) as client:
        answers = [await client.post(PATH, json=body) for _ in range(8)]
    assert {answer.status_code for answer in answers} == {200}
    assert len(alive.received) == 8
    assert service.outcomes() == {"2xx": 8}
    assert service.retries() == {"reset": len(dead.received)}


async def test_a_replica_that_refuses_connections_is_replaced_and_then_avoided(
    router: Any, peer: Any, closed_port: int
) -> None:
    alive = await peer()
    service = await router(closed_port, alive)
    async with client_of(service) as client:
        assert {(await client.post(PATH, json=BODY)).status_code for _ in range(20)} == {200}
    # Twice at once, and again only as each longer ejection ends; never at every other request.
    failures = service.plane.metrics.connect_failures
    assert 2 <= failures <= 6
    assert service.retries() == {"connect": failures}
    assert service.plane.backends["r0"].health.ejected


async def test_a_replica_that_takes_no_new_requests_is_replaced(router: Any, peer: Any) -> None:
    draining, alive = await peer(drain), await peer()
    service = await router(draining, alive)
    async with client_of(service) as client:
        assert {(await client.post(PATH, json=STREAM)).status_code for _ in range(6)} == {200}
    assert service.retries()["unavailable"] == len(draining.received) > 0


async def test_a_503_is_passed_on_when_there_is_nobody_else(router: Any, peer: Any) -> None:
    service = await router(await peer(drain))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["message"] == "draining"


async def test_a_503_without_retry_after_is_the_answer(router: Any, peer: Any) -> None:
    async def broken(request: Any) -> None:
        await request.answer({"error": {"message": "broken"}}, "503 Service Unavailable")

    service = await router(await peer(broken), await peer(broken))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "broken")
    assert service.retries() == {}


async def test_attempts_are_bounded_and_end_in_a_502(router: Any, peer: Any) -> None:
    replicas = [await peer(die_at_once) for _ in range(5)]
    service = await router(*replicas)
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY, headers={"x-paceline-explain": "1"})
    assert answer.status_code == 502
    assert sum(len(replica.received) for replica in replicas) == 3
    error = answer.json()["error"]
    assert error["type"] == "server_error"
    assert "3 attempts" in error["message"]
    assert "127.0.0.1" not in answer.text
    assert answer.headers["x-paceline-reason"]


async def test_an_empty_budget_stops_retries(router: Any, peer: Any) -> None:
    dead = await peer(die_at_once)
    service = await router(dead, await peer(die_at_once))
    service.plane.living["demo/chat"].budget.use(0)
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 502
    assert service.plane.metrics.retries_refused == 1
    assert service.retries() == {}


async def test_a_lone_replica_that_comes_back_at_once_still_answers(router: Any, peer: Any, helpers: Any) -> None:
    async def die_then_answer(request: Any) -> None:
        if len(replica.received) == 1:
            request.die()
        else:
            await request.answer(helpers.completion())

    replica = await peer(die_then_answer)
    service = await router(replica, retry_pause=0.01)
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200


async def test_a_replica_that_joins_while_a_request_is_retried_gets_it(
    router: Any, peer: Any, helpers: Any, closed_port: int
) -> None:
    alive = await peer()
    service = await router(closed_port, retry_pause=0.05)
    async with client_of(service) as client:
        pending = asyncio.create_task(client.post(PATH, json=BODY))
        while not service.plane.metrics.connect_failures:
            await asyncio.sleep(0.001)
        service.plane.use(helpers.table_of(alive))
        assert (await pending).status_code == 200


async def test_a_kept_connection_that_the_replica_closed_costs_an_attempt_and_no_blame(
    router: Any, peer: Any, helpers: Any
) -> None:
    async def once_per_connection(request: Any) -> None:
        if len(replica.received) % 2:
            await request.answer(helpers.completion())
        else:
            request.die()

    replica = await peer(once_per_connection)
    service = await router(replica, max_attempts=2)
    service.plane.living["demo/chat"].budget.use(0)
    service.plane.now = lambda: 1.0  # however busy the machine is
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200
        answer = await client.post(PATH, json=BODY, headers={"x-paceline-explain": "1"})
    assert answer.status_code == 200
    assert "attempt 2" in answer.headers["x-paceline-reason"]
    assert service.retries() == {"stale_connection": 1}
    assert service.plane.backends["r0"].health.failures == 0


async def test_a_kept_connection_lost_again_and_again_is_repeated_there_once(
    router: Any, peer: Any, helpers: Any
) -> None:
    async def answer_one(request: Any) -> None:
        if len(replica.received) == 1:
            await request.answer(helpers.completion())
        else:
            request.die()

    replica = await peer(answer_one)
    service = await router(replica, max_attempts=5, retry_pause=0.01)
    service.plane.living["demo/chat"].budget.use(0)
    service.plane.now = lambda: 1.0
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 502
    assert "2 attempts" in answer.json()["error"]["message"]
    assert len(replica.received) == 3
    assert service.plane.backends["r0"].health.failures == 1


@pytest.mark.parametrize("end", [b"", b"garbage\r\n\r\n"], ids=["closed", "malformed"])
async def test_work_lost_with_a_kept_connection_counts_as_work(
    router: Any, peer: Any, helpers: Any, end: bytes
) -> None:
    """The replica may have worked on it: it is blamed, and sent no more than attempts and budget allow."""
    now = [1.0]

    async def work_and_die(request: Any) -> None:
        if len(replica.received) == 1:
            await request.answer(helpers.completion())
            return
        now[0] += 5.0
        request.send(end)
        request.writer.close()

    replica = await peer(work_and_die)
    service = await router(replica)
    service.plane.living["demo/chat"].budget.use(0)
    service.plane.now = lambda: now[0]
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 502
    assert "1 attempt;" in answer.json()["error"]["message"]
    assert len(replica.received) == 2
    assert service.retries() == {}
    assert service.plane.backends["r0"].health.failures == 1


async def test_a_refused_connection_goes_to_the_good_replica_while_most_fail(
    router: Any, peer: Any, closed_port: int
) -> None:
    """Nothing was sent, so neither the budget nor the breaker has a say."""
    good = await peer()
    service = await router(closed_port, closed_port, good)
    living = service.plane.living["demo/chat"]
    living.budget.use(0)
    plane = service.plane
    # One is ejected, and the request's own failure ejects the other. The good one asked for a pause, so it comes last.
    for name, failures in (("r0", CONNECT_FAILURES), ("r1", CONNECT_FAILURES - 1)):
        for _ in range(failures):
            living.judge(plane.backends[name], Event.CONNECT_FAILED, plane.now())
    plane.backends["r2"].busy(plane.now() + 60.0)
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200
    assert living.breaking()
    assert service.retries() == {"connect": 1}
    assert len(good.received) == 1


async def test_a_broken_stream_ends_with_an_error_event_and_without_done(router: Any, peer: Any) -> None:
    async def break_off(request: Any) -> None:
        await stream_three(request)
        request.send(b"ff\r\ndata: half an ev")
        await request.writer.drain()
        request.writer.close()

    service = await router(await peer(break_off))
    raw = await service.raw(
        b'POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 33\r\n\r\n{"model":"smollm2","stream":true}'
    )
    assert raw.endswith(b"\n\n\r\n0\r\n\r\n")
    assert b"half an ev" not in raw
    assert b"[DONE]" not in raw
    last = raw.rsplit(b"data: ", 1)[1].split(b"\n\n")[0]
    assert json.loads(last)["error"]["type"] == "server_error"
    assert service.outcomes() == {"broken_stream": 1}


async def test_the_openai_sdk_raises_when_a_stream_breaks(router: Any, peer: Any) -> None:
    async def break_off(request: Any) -> None:
        await stream_three(request)
        request.die()

    service = await router(await peer(break_off))
    words = []
    async with openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)

        async def read() -> None:
            async for chunk in stream:
                words.append(chunk.choices[0].delta.content)

        with pytest.raises(openai.APIError, match="failed while it was answering"):
            await read()
    assert words == ["a", "b", "c"]


async def test_garbage_inside_a_stream_ends_it_with_an_error_event(router: Any, peer: Any) -> None:
    begun = asyncio.Event()

    async def garbage(request: Any) -> None:
        await stream_three(request)
        await begun.wait()
        request.send(b"this is no chunk\r\n")
        await never_answer(request)

    service = await router(await peer(garbage))
    text = ""
    async with client_of(service) as client, client.stream("POST", PATH, json=STREAM) as answer:
        async for part in answer.aiter_text():
            text += part
            begun.set()
    assert text.count("data: ") == 4
    assert '"error"' in text


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
async def test_a_broken_answer_that_was_not_streamed_is_a_502(router: Any, peer: Any, broken: bytes) -> None:
    async def half(request: Any) -> None:
        request.send(broken)
        await request.writer.drain()
        request.writer.close()

    service = await router(await peer(half), max_attempts=1)
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 502
    assert answer.json()["error"]["message"].startswith("No replica")


async def test_bytes_after_an_answer_are_dropped_with_their_connection(router: Any, peer: Any, helpers: Any) -> None:
    async def too_much(request: Any) -> None:
        body = json.dumps(helpers.completion()).encode()
        request.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%bHTTP/1.1 200 OK\r\n\r\n" % (len(body), body))
        await never_answer(request)

    replica = await peer(too_much)
    service = await router(replica)
    async with client_of(service) as client:
        for _ in range(2):
            answer = await client.post(PATH, json=BODY)
            assert answer.json() == helpers.completion()
    assert replica.connections == 2


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_client_that_leaves_ends_the_request_at_the_replica(router: Any, peer: Any, body: Any) -> None:
    arrived = asyncio.Event()
    stopped = asyncio.Event()

    async def until_gone(request: Any) -> None:
        if request.json.get("stream"):
            await stream_three(request)
        arrived.set()
        await request.gone.wait()
        stopped.set()

    service = await router(await peer(until_gone))
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    raw = json.dumps(body).encode()
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (PATH.encode(), len(raw), raw))
    async with asyncio.timeout(5):
        await arrived.wait()
        if "stream" in body:
            await reader.readuntil(b'"c"')
        writer.close()
        await stopped.wait()
        await service.idle()
    assert service.outcomes() == {"cancelled": 1}
    assert service.plane.backends["r0"].in_flight == 0


async def test_a_client_that_leaves_before_the_connection_is_made_costs_nothing(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)
    _, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 19\r\n\r\n{"model":"smollm2"}')
    writer.transport.abort()
    await service.idle()
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200
    assert service.plane.backends["r0"].in_flight == 0


async def test_a_long_answer_that_breaks_after_a_part_was_passed_on_ends_its_connection(router: Any, peer: Any) -> None:
    async def break_off(request: Any) -> None:
        request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 900000\r\n\r\n" + b"x" * 600_000)
        await request.writer.drain()
        request.writer.close()

    service = await router(await peer(break_off), whole_answer_bytes=100_000)
    async with client_of(service) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(PATH, json=BODY)
    assert service.outcomes() == {"5xx": 1}


async def test_a_connection_lost_to_a_replica_that_left_the_table_is_tried_elsewhere(
    router: Any, peer: Any, helpers: Any
) -> None:
    alive = await peer()

    async def leave(request: Any) -> None:
        if len(leaving.received) == 1:
            await request.answer(helpers.completion())
        else:
            service.plane.use(helpers.table_of(alive))
            request.die()

    leaving = await peer(leave)
    service = await router(leaving)
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200
        # On the kept connection: that the replica is gone must not be taken for an idle connection that was closed.
        assert (await client.post(PATH, json=BODY)).status_code == 200
    assert service.retries() == {"reset": 1}


async def test_a_retry_has_only_what_is_left_of_the_deadline(router: Any, peer: Any) -> None:
    async def wait_and_die(request: Any) -> None:
        await asyncio.sleep(0.05)
        request.die()

    alive = await peer()
    service = await router(await peer(wait_and_die), alive)
    async with client_of(service) as client:
        for _ in range(2):
            answer = await client.post(PATH, json=BODY, headers={"x-paceline-deadline-ms": "60000"})
            assert answer.status_code == 200
    left = min(int(request.headers["x-paceline-deadline-ms"]) for request in alive.received)
    assert 0 < left <= 59_950


async def test_a_replica_that_wants_to_change_the_protocol_is_replaced(router: Any, peer: Any) -> None:
    async def switch(request: Any) -> None:
        request.send(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
        await never_answer(request)

    service = await router(await peer(switch), await peer())
    async with client_of(service) as client:
        assert {(await client.post(PATH, json=BODY)).status_code for _ in range(4)} == {200}


async def test_a_fault_of_the_router_is_a_500_without_details_and_leaves_nothing(
    router: Any, peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await router(await peer())

    def fail(*_: Any) -> None:
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr("paceline_router.flow.dataplane.make_connection", fail)
        async with client_of(service) as client:
            answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert not service.plane.exchanges
    assert service.plane.backends["r0"].in_flight == 0
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200


async def test_silence_before_the_first_byte_is_a_504_and_frees_the_replica(router: Any, peer: Any) -> None:
    replica = await peer(never_answer)
    service = await router(replica, first_byte_timeout=0.1)
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "server_error"
    await asyncio.wait_for(replica.received[0].gone.wait(), 5)


async def test_silence_inside_a_stream_ends_it_with_an_error_event(router: Any, peer: Any) -> None:
    async def fall_silent(request: Any) -> None:
        await stream_three(request)
        await request.gone.wait()

    replica = await peer(fall_silent)
    service = await router(replica, idle_timeout=0.5)
    async with client_of(service) as client:
        answer = await client.post(PATH, json=STREAM)
    assert answer.text.count("data: ") == 4
    assert "fell silent" in answer.text
    await asyncio.wait_for(replica.received[0].gone.wait(), 5)


async def test_the_deadline_of_the_client_is_kept(router: Any, peer: Any) -> None:
    replica = await peer(never_answer)
    service = await router(replica)
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY, headers={"x-paceline-deadline-ms": "50"})
    assert answer.status_code == 504
    assert "deadline" in answer.json()["error"]["message"]


async def test_a_connection_that_cannot_be_made_in_time_is_given_up(router: Any, peer: Any, blackhole: int) -> None:
    alive = await peer()
    service = await router(blackhole, alive, connect_timeout=0.3)
    async with client_of(service) as client:
        assert {(await client.post(PATH, json=BODY)).status_code for _ in range(6)} == {200}
    assert 2 <= service.retries()["connect"] <= 4


async def test_a_client_that_does_not_read_stops_the_replica_and_loses_nothing(router: Any, peer: Any) -> None:
    blocked = asyncio.Event()
    payload = b"data: %b\n\n" % (b"x" * 60_000)
    count = 400

    async def flood(request: Any) -> None:
        request.writer.transport.set_write_buffer_limits(high=0)
        request.begin_stream()
        for _ in range(count):
            request.chunk(payload)
            try:
                await asyncio.wait_for(request.writer.drain(), 0.3)
            except TimeoutError:
                blocked.set()
                await request.writer.drain()
        request.end_stream()

    service = await router(await peer(flood), write_buffer_bytes=65_536)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=65_536)
    body = json.dumps(STREAM).encode()
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (PATH.encode(), len(body), body))
    async with asyncio.timeout(20):
        await blocked.wait()
        (client,) = service.plane.clients
        assert client.transport.get_write_buffer_size() < 1_000_000
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            received += await reader.read(1 << 20)
    writer.close()
    assert received.count(payload) == count


async def test_a_client_that_never_reads_is_given_up(router: Any, peer: Any) -> None:
    async def flood(request: Any) -> None:
        request.begin_stream()
        while not request.gone.is_set():
            request.chunk(b"data: %b\n\n" % (b"x" * 60_000))
            await request.writer.drain()

    service = await router(await peer(flood), write_buffer_bytes=65_536, client_write_timeout=0.2)
    _, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=1024)
    body = json.dumps(STREAM).encode()
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (PATH.encode(), len(body), body))
    async with asyncio.timeout(20):
        while not service.outcomes():
            await asyncio.sleep(0.02)
    assert service.outcomes() == {"cancelled": 1}
    writer.close()
