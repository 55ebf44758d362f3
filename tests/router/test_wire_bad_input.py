"""Clients that err or mean ill, against a whole router: they get a clear answer, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request as ReplicaRequest

from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings
from paceline_router.table.records import Service, Table
from paceline_router.wire.client import ClientConnection
from paceline_router.wire.request_head import read_head
from paceline_runtime.server.body import read_json_body
from paceline_runtime.server.errors import ApiError

BODY = b'{"model":"smollm2"}'
GOOD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
CLOSING = GOOD.replace(b"host: x", b"host: x\r\nconnection: close")
HIDDEN = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


def statuses(raw: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", raw)]


BAD: list[tuple[bytes, int]] = [
    (b"GET / HTTP/1.1\nhost: x\n\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
    (POST + b"x: y\r\n folded\r\ncontent-length: 19\r\n\r\n" + BODY, 400),
    (POST + b"x\x00y: z\r\n\r\n", 400),
    (POST + b"content-length: 19\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN, 400),
    (POST + b"content-length: 19\r\ncontent-length: 0\r\n\r\n" + BODY + HIDDEN, 400),
    (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN, 400),
    (POST + b"transfer-encoding : chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + HIDDEN, 400),
    (CHUNKED + b"ffffffffffffffffff\r\n" + HIDDEN, 400),
    (CHUNKED + b"-13\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN, 400),
    (CHUNKED + b"13;a=\n\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN, 400),
    (CHUNKED + b"5\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN, 400),
    (CHUNKED + b"13\r\n" + BODY + b"\r\n0\r\n" + HIDDEN + b"\r\n", 400),
    (POST + b"expect: the-worst\r\ncontent-length: 19\r\n\r\n" + BODY, 417),
    (POST + b"content-length: 9999999999\r\n\r\n", 413),
    (POST + b"x: " + b"y" * 40_000 + b"\r\n\r\n", 431),
]


@pytest.mark.parametrize(("raw", "status"), BAD)
async def test_it_is_told_what_is_wrong_and_nothing_hidden_goes_on(
    router: Any, peer: Any, raw: bytes, status: int
) -> None:
    replica = await peer()
    service = await router(replica)
    answer = await service.raw(raw)
    assert statuses(answer) == [status]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert replica.received == []


async def test_good_requests_before_and_beside_bad_ones_are_untouched(router: Any, peer: Any) -> None:
    service = await router(await peer())

    async def good() -> None:
        async with httpx.AsyncClient() as client:
            for _ in range(20):
                answer = await client.post(service.url + "/v1/completions", content=BODY)
                assert answer.status_code == 200

    async def bad(raw: bytes, status: int) -> None:
        assert statuses(await service.raw(GOOD + raw)) == [200, status]

    await asyncio.gather(good(), good(), *(bad(raw, status) for raw, status in BAD))
    assert service.outcomes() == {"2xx": 40 + len(BAD)}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'{"model":"smollm2","temperature":NaN}', None),
        (b'{"model":"smollm2","top_p":-Infinity}', None),
        (b'{"model":"smollm2","prompt":"\\ud800"}', None),
        (b'{"model":"\xff"}', None),
        (b'{"model":"smollm2","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", None),
        (b'{"model":5}', "model"),
        (b'{"model":{"id":"smollm2"}}', "model"),
        (b'{"model":"smollm2","model":[]}', "model"),
        (b'{"prompt":"x"}', "model"),
    ],
)
async def test_a_body_that_cannot_be_meant_is_refused_and_the_connection_goes_on(
    router: Any, peer: Any, body: bytes, param: str | None
) -> None:
    replica = await peer()
    service = await router(replica)
    raw = await service.raw(POST + b"content-length: %d\r\n\r\n" % len(body) + body + CLOSING)
    assert statuses(raw) == [400, 200]
    assert (b'"param":"model"' in raw) == (param == "model")
    assert len(replica.received) == 1


async def test_the_last_of_two_models_counts(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)
    async with httpx.AsyncClient() as client:
        url = service.url + "/v1/completions"
        first = await client.post(url, content=b'{"model":"none","model":"smollm2"}')
        second = await client.post(url, content=b'{"model":"smollm2","model":"none"}')
    assert (first.status_code, second.status_code) == (200, 404)
    assert [request.json["model"] for request in replica.received] == ["smollm2"]


async def told_by_the_replica(headers: dict[str, str]) -> int:
    """The status with which the engine's server refuses such a request; 200 when it reads the body."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": lines, "query_string": b""}
    try:
        await read_json_body(ReplicaRequest(scope, receive), 1000)
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.parametrize("header", ["content-type", "content-encoding"])
@pytest.mark.parametrize(
    "value",
    [
        *("application/json", "application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json;a=b"),
        *("application/json ;x", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
        *("application/jsonl", "json", "*/*", "gzip", "identity", "Identity", "br, gzip", "deflate"),
    ],
)
async def test_router_and_replica_take_the_same_kinds_of_bodies(header: str, value: str) -> None:
    request = read_head(b"POST / HTTP/1.1\r\nhost: x\r\n" + f"{header}: {value}".encode())
    assert (request.fault.status if request.fault else 200) == await told_by_the_replica({header: value})
    assert read_head(b"POST / HTTP/1.1\r\nhost: x").fault is None
    assert await told_by_the_replica({}) == 200


async def test_the_limit_of_a_body_is_the_replicas() -> None:
    from paceline_runtime.server.replica import ServerOptions

    assert Settings().max_body_bytes == ServerOptions.__dataclass_fields__["max_body_bytes"].default


async def test_a_body_that_never_comes_after_100_is_a_408(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica, client_read_timeout=0.3)
    raw = await service.raw(POST + b"expect: 100-continue\r\ncontent-length: 19\r\n\r\n")
    assert statuses(raw) == [100, 408]
    assert replica.received == []


@pytest.mark.parametrize("sent", [b"GET /v1/models HTTP/1.1\r\nx: ", POST + b"content-length: 5000\r\n\r\n", CHUNKED])
async def test_a_request_that_drips_in_is_ended_however_often_a_byte_comes(router: Any, peer: Any, sent: bytes) -> None:
    service = await router(await peer(), client_read_timeout=0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(sent)
    answer = asyncio.ensure_future(reader.read())
    drip = b"1\r\nx\r\n" if sent is CHUNKED else b"x"
    async with asyncio.timeout(10):
        while not answer.done():
            writer.write(drip)
            async with httpx.AsyncClient() as client:
                assert (await client.post(service.url + "/v1/completions", content=BODY)).status_code == 200
        assert statuses(await answer) == [408]
    writer.close()


async def test_more_connections_than_allowed_get_a_503_and_the_others_go_on(router: Any, peer: Any) -> None:
    service = await router(await peer(), max_client_connections=3)
    kept = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(3)]
    async with asyncio.timeout(5):
        for reader, writer in kept:
            writer.write(GOOD)
            assert statuses(await reader.readuntil(b"\r\n\r\n")) == [200]
        refused = await service.raw(b"")
        assert statuses(refused) == [503]
        assert b"retry-after: 1" in refused
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["type"] == "service_unavailable_error"
        kept[0][1].close()
        while len(service.plane.clients) == 3:
            await asyncio.sleep(0.01)
        assert statuses(await service.raw(CLOSING)) == [200]
    for _, writer in kept[1:]:
        writer.close()


async def test_a_client_that_asks_and_never_reads_is_not_answered_without_bound(router: Any, peer: Any) -> None:
    service = await router(await peer(), write_buffer_bytes=16 * 1024, client_write_timeout=0.5)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", service.port))
    most = 0
    try:
        async with asyncio.timeout(30):
            while True:
                await loop.sock_sendall(sock, HIDDEN * 500)
                for client in service.plane.clients:
                    most = max(most, client.transport.get_write_buffer_size() + len(client._ahead))
                await asyncio.sleep(0)
    except ConnectionError:
        pass  # it has been given up
    finally:
        sock.close()
    assert most < 1024 * 1024


EDITS = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.integers(0, 8),
        st.binary(max_size=3)
        | st.sampled_from([b"\r\n", b"\n", b"\x00", b"chunked", b'"', b"{", b"0\r\n\r\n", HIDDEN]),
    ),
    min_size=1,
    max_size=5,
)
SEEDS = st.sampled_from(
    [
        GOOD,
        CLOSING,
        CHUNKED + b"13\r\n" + BODY + b"\r\n0\r\n\r\n",
        POST
        + b"x-paceline-session: s\r\nx-paceline-deadline-ms: 5\r\ntraceparent: 00-1-2-3\r\ncontent-length: 0\r\n\r\n",
        b"GET /v1/models/smollm2 HTTP/1.1\r\nhost: x\r\nx-paceline-explain: 1\r\n\r\n",
    ]
)


@settings(max_examples=150)
@given(st.lists(SEEDS, min_size=1, max_size=3), EDITS)
def test_no_bytes_make_the_router_fail(seeds: list[bytes], edits: list[tuple[int, int, bytes]]) -> None:
    raw = b"".join(seeds)
    for position, gone, put in edits:
        at = position % (len(raw) + 1)
        raw = raw[:at] + put + raw[at + gone :]

    async def answers() -> bytes:
        plane = DataPlane(Settings())
        plane.use(Table(services={"demo/chat": Service("demo/chat", "smollm2")}))
        server = await asyncio.get_running_loop().create_server(lambda: ClientConnection(plane), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(raw + b"\r\n\r\n")
        writer.write_eof()
        try:
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()
            server.close()

    # 503 is what a good request gets, as there is no replica.
    assert {status for status in statuses(asyncio.run(answers())) if status >= 500} <= {503}
