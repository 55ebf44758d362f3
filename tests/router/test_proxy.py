"""Requests through a router to replicas that behave."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
from typing import Any

import httpx
import openai
import pytest

from paceline_router.table.records import Revision, Service, Table, TrafficShare


def client_of(router: Any, path: str = "/v1") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=router.url + path, api_key="key", max_retries=0)


MESSAGES: Any = [{"role": "user", "content": "hi"}]


async def test_the_openai_sdk_gets_an_answer_and_its_request_id(router: Any, peer: Any, helpers: Any) -> None:
    replica = await peer()
    async with client_of(await router(replica)) as client:
        answer = await client.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert answer.choices[0].message.content == "hello"
    assert answer._request_id is not None
    assert replica.received[0].headers["x-paceline-request-id"] == answer._request_id


async def test_the_openai_sdk_gets_a_stream(router: Any, peer: Any) -> None:
    async with client_of(await router(await peer())) as client:
        stream = await client.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
        words = [chunk.choices[0].delta.content async for chunk in stream]
    assert words == ["one ", "two ", "three"]


@pytest.mark.parametrize(
    ("path", "model"), [("/v1", "demo/chat"), ("/demo/chat/v1", "demo/chat"), ("/demo/chat/v1", "")]
)
async def test_every_address_reaches_the_replica_under_its_served_name(
    router: Any, peer: Any, path: str, model: str
) -> None:
    replica = await peer()
    async with client_of(await router(replica), path) as client:
        await client.chat.completions.create(model=model, messages=MESSAGES)
    request = replica.received[0]
    assert request.json["model"] == "smollm2"
    assert request.path == "/v1/chat/completions"


async def test_each_replica_is_asked_under_the_name_of_its_revision(router: Any, peer: Any, helpers: Any) -> None:
    """While a served name changes no address fails, whichever revision has the traffic."""

    async def only_own_name(request: Any, name: str) -> None:
        if request.json["model"] == name:
            await request.answer(helpers.completion())
        else:
            await request.answer({"error": {"message": "does not exist here"}}, "404 Not Found")

    old = await peer(lambda request: only_own_name(request, "old/M"))
    new = await peer(lambda request: only_own_name(request, "new/M"))
    table = helpers.table_of(old, new)
    replicas = {
        uid: dataclasses.replace(replica, pool_hash=pool_hash)
        for (uid, replica), pool_hash in zip(table.replicas.items(), ("h1", "h2"), strict=True)
    }
    revisions = {
        f"demo/{name}": Revision(f"demo/{name}", name, helpers.KEY, name, {"default": pool}, {"default": served})
        for name, pool, served in (("r1", "h1", "old/M"), ("r2", "h2", "new/M"))
    }

    def traffic(**weights: int) -> Table:
        shares = tuple(TrafficShare("default", name, weight) for name, weight in weights.items())
        return Table({helpers.KEY: Service(helpers.KEY, "new/M", traffic=shares)}, revisions, replicas)

    service = await router(table=traffic(r1=100))
    async with httpx.AsyncClient(base_url=service.url) as client:

        async def ask(model: str, path: str = "", **headers: str) -> int:
            answer = await client.post(f"{path}/v1/completions", json={"model": model}, headers=headers)
            return answer.status_code

        for weights, named, refused in (
            ({"r1": 100}, ["old/M"], ("new/M", 503)),
            ({"r1": 50, "r2": 50}, ["old/M", "new/M"], ("other", 404)),
            ({"r2": 100}, ["new/M"], ("old/M", 404)),
        ):
            service.plane.use(traffic(**weights))
            for _ in range(4):
                for path in ("", "/demo/chat"):
                    assert [await ask(name, path) for name in (*named, "demo/chat")] == [200] * (len(named) + 1)
                assert await ask("", "/demo/chat") == 200
            assert await ask(refused[0]) == refused[1]
            for revision in ("r1", "r2"):
                for name in ("old/M", "new/M", "demo/chat"):
                    assert await ask(name, **{"x-paceline-revision": revision}) == 200
    assert {request.json["model"] for request in old.received} == {"old/M"}
    assert {request.json["model"] for request in new.received} == {"new/M"}


async def test_a_retry_at_another_revision_uses_its_name(router: Any, peer: Any, helpers: Any) -> None:
    async def die(request: Any) -> None:
        request.die()

    failing, other = await peer(die), await peer()
    table = helpers.table_of(failing, other)
    made = [
        Revision(f"demo/r{n}", f"r{n}", helpers.KEY, "", {"default": f"h{n}"}, {"default": f"name{n}"}) for n in (0, 1)
    ]
    replicas = {
        uid: dataclasses.replace(replica, pool_hash=f"h{n}") for n, (uid, replica) in enumerate(table.replicas.items())
    }
    # Without traffic every replica takes part, whatever its revision.
    service = await router(table=Table(table.services, {revision.key: revision for revision in made}, replicas))
    async with httpx.AsyncClient() as client:
        for _ in range(4):
            answer = await client.post(service.url + "/v1/completions", json={"model": helpers.MODEL})
            assert answer.status_code == 200
    assert {request.json["model"] for request in failing.received} == {"name0"}
    assert [request.json["model"] for request in other.received] == ["name1"] * 4


async def test_a_body_that_is_no_json_is_refused_and_frees_the_connection(router: Any, peer: Any) -> None:
    service = await router(await peer())
    async with httpx.AsyncClient() as client:
        for content, status in ((b'{"model":"demo/chat","n":}', 400), (b'{"model":"demo/chat"}', 200)):
            answer = await client.post(service.url + "/v1/completions", content=content)
            assert answer.status_code == status
    await service.idle()


async def test_events_are_passed_on_one_by_one(router: Any, peer: Any) -> None:
    turns: asyncio.Queue[None] = asyncio.Queue()

    async def wait_for_turn(request: Any) -> None:
        request.begin_stream()
        for word in ("a", "b", "c"):
            request.event(word)
            await turns.get()
        request.end_stream()

    async with client_of(await router(await peer(wait_for_turn))) as client:
        stream = await client.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
        words = []
        async for chunk in stream:
            # The replica sends the next event only after the client has had this one.
            words.append(chunk.choices[0].delta.content)
            turns.put_nowait(None)
    assert words == ["a", "b", "c"]


async def test_a_stream_tells_proxies_to_hold_nothing_back(router: Any, peer: Any) -> None:
    async def stream(request: Any) -> None:
        request.begin_stream("cache-control: max-age=60\r\nconnection: keep-alive, x-hop\r\nkeep-alive: timeout=5\r\n")
        request.event("x")
        request.end_stream()

    service = await router(await peer(stream))
    async with httpx.AsyncClient() as client:
        answer = await client.post(service.url + "/v1/chat/completions", json={"model": "smollm2", "stream": True})
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "keep-alive" not in answer.headers
    assert "content-encoding" not in answer.headers


async def test_only_listed_headers_reach_the_replica(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)
    headers = {
        "host": "public.example",
        "connection": "keep-alive, x-foo",
        "x-foo": "1",
        "cookie": "a=b",
        "authorization": "Bearer secret",
        "accept-encoding": "gzip, br",
        "x-forwarded-for": "10.0.0.1",
        "x-paceline-shadow": "1",
        "x-paceline-request-id": "forged",
        "x-paceline-shape": "forged",
        "x-paceline-tenant": "other",
        "x-paceline-session": "s1",
        "x-paceline-priority": "-1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    async with httpx.AsyncClient() as client:
        answer = await client.post(service.url + "/v1/chat/completions", json={"model": "smollm2"}, headers=headers)
    assert answer.status_code == 200
    seen = replica.received[0].headers
    assert set(seen) == {
        "host",
        "content-type",
        "content-length",
        "accept-encoding",
        "x-paceline-request-id",
        "x-paceline-shape",
        "x-paceline-tenant",
        "x-paceline-session",
        "x-paceline-priority",
        "traceparent",
    }
    assert seen["host"] == f"127.0.0.1:{replica.port}"
    assert seen["accept-encoding"] == "identity"
    assert seen["x-paceline-shape"] == "ShortInputShortOutput"
    assert seen["x-paceline-request-id"] == answer.headers["x-request-id"] != "forged"
    assert (seen["x-paceline-session"], seen["x-paceline-tenant"], seen["x-paceline-priority"]) == ("s1", "other", "-1")


async def test_a_load_report_is_read_without_the_white_space_around_it(router: Any, peer: Any, helpers: Any) -> None:
    async def answer(request: Any) -> None:
        load = "x-paceline-load: \t v=1, run=7, wait=2, kv=1, ptok=0, dtok=0, seq=5 \t\r\n"
        await request.answer(helpers.completion(), headers=load)

    service = await router(await peer(answer))
    async with httpx.AsyncClient() as client:
        answered = await client.post(service.url + "/v1/completions", json={"model": "smollm2"})
    assert answered.status_code == 200
    assert service.plane.metrics.unusual_reports == 0
    assert service.plane.backends["r0"].reported


async def test_internal_headers_of_a_replica_do_not_reach_the_client(router: Any, peer: Any, helpers: Any) -> None:
    async def answer(request: Any) -> None:
        load = "x-paceline-load: v=1, run=7, wait=2, kv=1, ptok=0, dtok=0, seq=5\r\n"
        await request.answer(
            helpers.completion(), headers=load + "x-request-id: own\r\nset-cookie: a=b\r\nopenai-model: m\r\n"
        )

    service = await router(await peer(answer))
    async with httpx.AsyncClient() as client:
        got = await client.post(service.url + "/v1/chat/completions", json={"model": "smollm2"})
    assert "x-paceline-load" not in got.headers
    assert "set-cookie" not in got.headers
    assert got.headers["x-request-id"].startswith("req-")
    assert got.headers["openai-model"] == "m"
    assert service.plane.backends["r0"].others == 8


async def test_a_compressed_answer_keeps_its_encoding_and_length(router: Any, peer: Any, helpers: Any) -> None:
    async def answer(request: Any) -> None:
        body = gzip.compress(json.dumps(helpers.completion("zipped")).encode())
        await request.answer(body, headers="content-encoding: gzip\r\n")

    async with client_of(await router(await peer(answer))) as client:
        got = await client.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert got.choices[0].message.content == "zipped"


@pytest.mark.parametrize(
    "status", ["400 Bad Request", "401 Unauthorized", "404 Not Found", "422 x", "429 Too Many Requests"]
)
async def test_a_refusal_of_the_replica_is_passed_on_and_blames_nobody(router: Any, peer: Any, status: str) -> None:
    async def refuse(request: Any) -> None:
        await request.answer({"error": {"message": "no", "type": "t", "param": None, "code": None}}, status)

    replica = await peer(refuse)
    service = await router(replica)
    async with httpx.AsyncClient() as client:
        for _ in range(10):
            answer = await client.post(service.url + "/v1/chat/completions", json={"model": "smollm2", "stream": True})
            assert answer.status_code == int(status[:3])
            assert answer.json()["error"]["message"] == "no"
    assert not service.plane.backends["r0"].ejected(service.plane.now())
    assert service.retries() == {}
    assert service.outcomes() == {"4xx": 10}
    assert replica.connections == 1


async def test_an_answer_without_length_ends_with_its_connection(router: Any, peer: Any) -> None:
    async def old_style(request: Any) -> None:
        request.send(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: a\n\n")
        await request.writer.drain()
        request.send(b"data: b\n\n")
        request.writer.close()

    service = await router(await peer(old_style))
    async with httpx.AsyncClient() as client:
        got = await client.post(service.url + "/v1/chat/completions", json={"model": "smollm2", "stream": True})
    assert got.text == "data: a\n\ndata: b\n\n"
    assert service.outcomes() == {"2xx": 1}


async def test_an_informational_answer_comes_before_the_real_one(router: Any, peer: Any, helpers: Any) -> None:
    async def early_hints(request: Any) -> None:
        request.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await request.answer(helpers.completion("late"))

    async with client_of(await router(await peer(early_hints))) as client:
        got = await client.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert got.choices[0].message.content == "late"


async def test_a_large_chunked_answer_arrives_whole(router: Any, peer: Any) -> None:
    text = "x" * 3_000_000

    async def large(request: Any) -> None:
        request.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(text), 70_000):
            request.chunk(text[start : start + 70_000].encode())
            await request.writer.drain()
        request.send(b"0\r\n\r\n")

    service = await router(await peer(large), whole_answer_bytes=1_000_000)
    async with httpx.AsyncClient() as client:
        got = await client.post(service.url + "/v1/completions", json={"model": "smollm2"})
    assert got.text == text


async def test_connections_to_a_replica_are_kept(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)
    async with client_of(service) as client:
        for _ in range(3):
            await client.chat.completions.create(model="smollm2", messages=MESSAGES)
            stream = await client.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
            assert len([chunk async for chunk in stream]) == 3
    assert replica.connections == 1
    assert len(service.plane.backends["r0"].idle) == 1


async def test_parallel_requests_spread_over_the_replicas(router: Any, peer: Any, helpers: Any) -> None:
    gate = asyncio.Event()

    async def hold(request: Any) -> None:
        await gate.wait()
        await request.answer(helpers.completion())

    replicas = [await peer(hold) for _ in range(3)]
    service = await router(*replicas)
    async with client_of(service) as client:
        waiting = [
            asyncio.create_task(client.chat.completions.create(model="smollm2", messages=MESSAGES)) for _ in range(12)
        ]
        async with asyncio.timeout(10):
            while sum(len(replica.received) for replica in replicas) < 12:
                await asyncio.sleep(0.005)
        assert [len(replica.received) for replica in replicas] == [4, 4, 4]
        gate.set()
        await asyncio.gather(*waiting)
    assert all(backend.in_flight == 0 for backend in service.plane.backends.values())


async def test_the_reason_is_told_to_who_asks(router: Any, peer: Any) -> None:
    service = await router(await peer(), await peer())
    async with httpx.AsyncClient() as client:
        plain = await client.post(service.url + "/v1/completions", json={"model": "smollm2"})
        asked = await client.post(
            service.url + "/v1/completions", json={"model": "smollm2"}, headers={"x-paceline-explain": "1"}
        )
    assert "x-paceline-reason" not in plain.headers
    assert plain.headers["x-paceline-pool"] == "default"
    assert "x-paceline-shape" not in plain.headers
    assert "server-timing" not in plain.headers
    assert asked.headers["x-paceline-shape"] == "ShortInputShortOutput"
    assert "least work of 2 replicas" in asked.headers["x-paceline-reason"]
    assert "ShortInputShortOutput: " in asked.headers["x-paceline-reason"]
    assert "first-byte;dur=" in asked.headers["server-timing"]


async def test_models_are_listed_and_fetched_with_the_sdk(router: Any, helpers: Any) -> None:
    service = await router(table=helpers.table_of(served_name="org/name", order=("2026-01-02T03:04:05Z", "u")))
    async with client_of(service) as client:
        listed = (await client.models.list()).data
        assert [model.id for model in listed] == ["org/name"]
        assert await client.models.retrieve("org/name") == listed[0]
        assert listed[0].created == 1767323045
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("org")
    async with httpx.AsyncClient() as plain:
        assert (await plain.get(service.url + "/v1/models/org/name")).status_code == 200
        assert (await plain.get(service.url + "/v1/models/org%2Fname")).status_code == 200


async def test_errors_tell_apart_unknown_models_and_models_without_replicas(router: Any, helpers: Any) -> None:
    service = await router(table=helpers.table_of(wanted=1, trouble="CrashLoop"))
    async with client_of(service) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="nope", messages=MESSAGES)
        with pytest.raises(openai.InternalServerError) as unready:
            await client.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    assert unready.value.status_code == 503
    assert unready.value.response.headers["retry-after"] == "5"
    assert "demo/chat" in unready.value.message
    assert "CrashLoop" in unready.value.message


async def test_before_the_first_sync_nothing_is_called_unknown(router: Any, peer: Any) -> None:
    service = await router(await peer())
    service.plane.synced = False
    async with httpx.AsyncClient(base_url=service.url) as client:
        assert (await client.post("/v1/completions", json={"model": "smollm2"})).status_code == 503
        assert (await client.get("/v1/models")).status_code == 503
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.get("/health/live")).status_code == 200
        service.plane.synced = True
        assert (await client.get("/health/ready")).status_code == 200
