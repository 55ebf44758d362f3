"""Requests that wait at the router for a replica, and streams that are told so."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import httpx
import openai
import pytest

from paceline_router.flow import waiting as waiting_module
from paceline_router.report.status import status_page
from paceline_router.table.policy import Policy
from paceline_router.table.records import Limits, Revision, Table, TrafficShare

MESSAGES: Any = [{"role": "user", "content": "hi"}]
BODY = {"model": "smollm2", "messages": MESSAGES}
STREAM = {**BODY, "stream": True}
PATH = "/v1/chat/completions"


def client_of(router: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.url, timeout=10)


def starting(table: Table) -> Table:
    replicas = {uid: dataclasses.replace(replica, ready=False) for uid, replica in table.replicas.items()}
    return dataclasses.replace(table, replicas=replicas)


def limited(table: Table, seqs: int) -> Table:
    replicas = {
        uid: dataclasses.replace(replica, limits=Limits(max_num_seqs=seqs)) for uid, replica in table.replicas.items()
    }
    return dataclasses.replace(table, replicas=replicas)


async def held(service: Any, count: int) -> None:
    async with asyncio.timeout(10):
        while service.plane.demand()[0].held != count:
            await asyncio.sleep(0.002)


async def test_a_request_waits_for_a_replica_that_starts(router: Any, peer: Any, helpers: Any) -> None:
    table = helpers.table_of(await peer())
    service = await router(table=starting(table))
    async with client_of(service) as client:
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await held(service, 1)
        service.plane.use(table)
        assert (await asked).status_code == 200
    assert service.plane.demand()[0].held == 0
    assert service.plane.demand()[0].arrivals == 1


async def test_requests_at_zero_are_answered_in_order_and_never_more_at_once_than_a_batch(
    router: Any, peer: Any, helpers: Any
) -> None:
    arrived: list[int] = []
    at_once = most = 0

    async def slowly(request: Any) -> None:
        nonlocal at_once, most
        arrived.append(int(request.json["messages"][0]["content"]))
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.005)
        at_once -= 1
        await request.answer(helpers.completion())

    replica = await peer(slowly)
    policy = Policy(hold_at_zero=30.0)
    service = await router(table=helpers.table_of(policy=policy, wanted=0))
    async with client_of(service) as client:
        asked = []
        for number in range(12):
            body = {**BODY, "messages": [{"role": "user", "content": str(number)}]}
            asked.append(asyncio.create_task(client.post(PATH, json=body)))
            await held(service, number + 1)
        assert service.plane.demand()[0].oldest_wait_ms >= 0
        page = status_page(service.plane)["services"][helpers.KEY]
        assert (page["held"], page["heldByPool"]) == (12, {"default": 12})
        service.plane.use(limited(helpers.table_of(replica, policy=policy, wanted=1), 2))
        answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * 12
    # The two of a batch are sent at one moment, on connections of their own.
    assert all(abs(place - number) < 2 for place, number in enumerate(arrived))
    assert most == 2


@pytest.mark.parametrize(
    ("facts", "words"), [({"wanted": 0}, "scaled to zero"), ({"wanted": 1, "trouble": "ImagePull"}, "ImagePull")]
)
async def test_where_nothing_is_to_be_expected_the_answer_comes_at_once(
    router: Any, helpers: Any, facts: dict[str, Any], words: str
) -> None:
    service = await router(table=helpers.table_of(**facts))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
        unknown = await client.post(PATH, json={**BODY, "model": "nobody"})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert words in answer.json()["error"]["message"]
    assert unknown.status_code == 404


async def test_a_wait_ends_with_a_time_to_come_back(router: Any, helpers: Any) -> None:
    service = await router(table=helpers.table_of(wanted=1, policy=Policy(hold=0.1)))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert "no replica yet" in answer.json()["error"]["message"]
    assert service.plane.metrics.service(helpers.KEY).refusals["hold_expired"] == 1


async def test_who_waited_in_vain_is_told_when_a_start_as_measured_will_be_over(router: Any, helpers: Any) -> None:
    traffic = (TrafficShare("default", "chat-1", 100),)
    table = helpers.table_of(wanted=1, policy=Policy(hold=0.1), traffic=traffic)
    made = Revision("demo/chat-1", "chat-1", helpers.KEY, "", {"default": "h"}, start_up={"default": 90.0})
    service = await router(table=dataclasses.replace(table, revisions={made.key: made}))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 503
    assert 5 < int(answer.headers["retry-after"]) <= 90, "ninety seconds, less those for which it has waited already"


async def test_without_patience_nothing_waits(router: Any, helpers: Any) -> None:
    service = await router(table=helpers.table_of(wanted=1, policy=Policy(hold=0.0)))
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 503
    assert service.plane.metrics.service(helpers.KEY).refusals["none_ready"] == 1


async def test_the_deadline_of_a_request_that_waits_is_kept(router: Any, helpers: Any) -> None:
    service = await router(table=helpers.table_of(wanted=1))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY, headers={"x-paceline-deadline-ms": "60"})
    assert answer.status_code == 504
    assert "deadline" in answer.json()["error"]["message"]
    assert service.plane.demand()[0].held == 0


async def test_no_request_takes_longer_than_its_service_allows(router: Any, peer: Any, helpers: Any) -> None:
    async def forever(request: Any) -> None:
        await request.gone.wait()

    replica = await peer(forever)
    service = await router(table=helpers.table_of(replica, policy=Policy(max_request=0.1)))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 504
    assert "longer than 0.1 s" in answer.json()["error"]["message"]
    await asyncio.wait_for(replica.received[0].gone.wait(), 5)


async def test_a_deadline_that_passes_inside_a_stream_ends_it_with_an_error_event(router: Any, peer: Any) -> None:
    async def stall(request: Any) -> None:
        request.begin_stream()
        request.event("a")
        await request.gone.wait()

    replica = await peer(stall)
    service = await router(replica)
    async with client_of(service) as client:
        answer = await client.post(PATH, json=STREAM, headers={"x-paceline-deadline-ms": "150"})
    assert answer.text.count("data: ") == 2
    assert "deadline" in answer.text
    assert "[DONE]" not in answer.text
    await asyncio.wait_for(replica.received[0].gone.wait(), 5)
    assert service.outcomes() == {"broken_stream": 1}


async def test_a_deadline_that_passes_while_a_connection_is_made_is_kept(router: Any, blackhole: int) -> None:
    service = await router(blackhole, connect_timeout=30.0)
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY, headers={"x-paceline-deadline-ms": "50"})
    assert answer.status_code == 504
    assert service.plane.backends["r0"].in_flight == 0


async def test_a_client_that_leaves_while_it_waits_is_never_sent(router: Any, peer: Any, helpers: Any) -> None:
    replica = await peer()
    table = helpers.table_of(replica)
    service = await router(table=starting(table))
    _, writer = await asyncio.open_connection("127.0.0.1", service.port)
    raw = json.dumps(BODY).encode()
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (PATH.encode(), len(raw), raw))
    await held(service, 1)
    writer.close()
    await service.idle()
    assert service.plane.demand()[0].held == 0
    assert service.plane.living[helpers.KEY].held_bytes == 0
    service.plane.use(table)
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 200
    assert len(replica.received) == 1
    assert service.outcomes() == {"cancelled": 1, "2xx": 1}


async def test_what_waits_is_bounded_in_bytes(router: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "MAX_HELD_BYTES", 10)
    service = await router(table=helpers.table_of(wanted=1))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert service.plane.living[helpers.KEY].held_bytes == 0


async def test_a_service_that_goes_away_does_not_leave_its_requests_waiting(router: Any, helpers: Any) -> None:
    service = await router(table=helpers.table_of(wanted=1))
    async with client_of(service) as client:
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await held(service, 1)
        service.plane.use(Table())
        assert (await asked).status_code == 404


async def test_a_fleet_that_is_full_lets_the_rest_wait_at_the_router(router: Any, peer: Any, helpers: Any) -> None:
    gate = asyncio.Event()

    async def until_told(request: Any) -> None:
        await gate.wait()
        await request.answer(helpers.completion())

    replica = await peer(until_told)
    service = await router(table=limited(helpers.table_of(replica), 1))
    async with client_of(service) as client:
        asked = [asyncio.create_task(client.post(PATH, json=BODY)) for _ in range(5)]
        # One batch runs; more would only wait at the replica, in no fair order and bound to it.
        await held(service, 4)
        assert service.plane.backends["r0"].in_flight == 1
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}


async def test_a_replica_lost_with_the_last_of_its_fleet_leaves_requests_waiting_not_failed(
    router: Any, peer: Any, helpers: Any
) -> None:
    async def vanish(request: Any) -> None:
        service.plane.use(helpers.table_of(wanted=1))
        request.die()

    leaving, alive = await peer(vanish), await peer()
    service = await router(table=helpers.table_of(leaving, wanted=1))
    async with client_of(service) as client:
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await held(service, 1)
        service.plane.use(helpers.table_of(alive, wanted=1))
        assert (await asked).status_code == 200


# Comments for clients that wait


async def read_until(reader: asyncio.StreamReader, text: bytes) -> bytes:
    async with asyncio.timeout(10):
        return await reader.readuntil(text)


async def test_a_stream_that_waits_is_kept_alive_and_then_answered(router: Any, peer: Any, helpers: Any) -> None:
    table = helpers.table_of(await peer())
    service = await router(table=starting(table), comment_after=0.05)
    words = []
    async with openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
        # The SDK has the status line, and nothing has answered yet.
        assert service.plane.demand()[0].held == 1
        service.plane.use(table)
        async for chunk in stream:
            words.append(chunk.choices[0].delta.content)
    assert words == ["one ", "two ", "three"]
    assert service.outcomes() == {"2xx": 1}


def ask(body: Any, version: str = "1.1") -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/{version}\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


async def test_comments_end_no_retry(router: Any, peer: Any, helpers: Any) -> None:
    commented = asyncio.Event()

    async def die_after_a_comment(request: Any) -> None:
        await commented.wait()
        request.die()

    dying, alive = await peer(die_after_a_comment), await peer()
    service = await router(dying, comment_after=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(ask(STREAM))
    head = await read_until(reader, b": keep-alive\n\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nx-request-id: req-")
    service.plane.use(helpers.table_of(dying, alive))
    commented.set()
    rest = await read_until(reader, b"0\r\n\r\n")
    assert rest.count(b"data: ") == 4
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    # The connection is as good as before.
    writer.write(ask(STREAM))
    assert b"[DONE]" in await read_until(reader, b"0\r\n\r\n")
    writer.close()
    assert service.retries()["reset"] == len(dying.received)
    assert service.outcomes() == {"2xx": 2}


async def test_what_goes_wrong_after_a_comment_is_an_error_event(router: Any, helpers: Any) -> None:
    service = await router(table=helpers.table_of(wanted=1, policy=Policy(hold=0.4)), comment_after=0.05)
    raw = await service.raw(ask(STREAM))
    assert raw.startswith(b"HTTP/1.1 200 OK")
    assert raw.count(b": keep-alive\n\n") >= 1
    assert raw.endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in raw
    error = json.loads(raw.split(b"data: ")[1].split(b"\n\n")[0])["error"]
    request_id = raw.split(b"x-request-id: ")[1].split(b"\r\n")[0].decode()
    assert "no replica yet" in error["message"]
    assert error["message"].endswith(f"(request {request_id})")
    assert error["type"] == "service_unavailable_error"
    assert service.outcomes() == {"5xx": 1}


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("status", ["400 Bad Request", "500 Internal Server Error", "200 OK"])
async def test_an_error_that_a_replica_answers_after_a_comment_is_an_error_event(
    router: Any, peer: Any, status: str, version: str
) -> None:
    commented = asyncio.Event()

    async def refuse(request: Any) -> None:
        await commented.wait()
        body = {"choices": []} if status == "200 OK" else {"error": {"message": "so not", "type": "t"}}
        await request.answer(body, status)

    service = await router(await peer(refuse), comment_after=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(ask(STREAM, version))
    await read_until(reader, b": keep-alive\n\n")
    commented.set()
    async with asyncio.timeout(10):
        rest = await reader.read()
    writer.close()
    message = json.loads(rest.split(b"data: ")[1].split(b"\n\n")[0])["error"]["message"]
    assert message == "so not" or message.startswith("The replica answered 200 instead of a stream")
    assert b"[DONE]" not in rest
    assert rest.endswith(b"0\r\n\r\n") == (version == "1.1")


async def test_a_stream_to_an_old_client_is_plain_after_a_comment(router: Any, peer: Any, helpers: Any) -> None:
    table = helpers.table_of(await peer())
    service = await router(table=starting(table), comment_after=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(ask(STREAM, "1.0"))
    head = await read_until(reader, b": keep-alive\n\n")
    assert b"transfer-encoding" not in head
    service.plane.use(table)
    async with asyncio.timeout(10):
        rest = await reader.read()
    writer.close()
    events = [part for part in rest.split(b"\n\n") if part and part != b": keep-alive"]
    assert [event[:6] for event in events] == [b"data: "] * 4
    assert events[-1] == b"data: [DONE]"


async def test_who_asked_for_no_stream_gets_no_comment(router: Any, helpers: Any) -> None:
    service = await router(table=helpers.table_of(wanted=1, policy=Policy(hold=0.4)), comment_after=0.05)
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 503
