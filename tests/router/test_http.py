"""HTTP/1.1 as clients speak it, and as they should not."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings
from paceline_router.table.records import Table
from paceline_router.wire.client import ClientConnection

BODY = b'{"model":"smollm2"}'


def post(body: bytes = BODY, path: str = "/v1/completions", headers: str = "", version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def statuses(raw: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", raw)]


def error_of(raw: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(raw.rsplit(b"\r\n\r\n", 1)[1])["error"]
    return error


async def test_pipelined_requests_are_answered_in_order(router: Any, peer: Any, helpers: Any) -> None:
    async def echo(request: Any) -> None:
        await asyncio.sleep(0.02 if request.json["n"] == 0 else 0)
        await request.answer(helpers.completion(f"answer-{request.json['n']}"))

    service = await router(await peer(echo), await peer(echo))
    bodies = [b'{"model":"smollm2","n":%d}' % n for n in range(20)]
    close = "connection: close\r\n"
    raw = await service.raw(b"".join(post(body, headers=close if n == 19 else "") for n, body in enumerate(bodies)))
    assert statuses(raw) == [200] * 20
    assert re.findall(rb"answer-(\d+)", raw) == [b"%d" % n for n in range(20)]


async def test_a_bad_request_after_a_good_one_does_not_spoil_it(router: Any, peer: Any) -> None:
    service = await router(await peer())
    raw = await service.raw(post() + b"NOT HTTP\r\n\r\n")
    assert statuses(raw) == [200, 400]


async def test_a_chunked_body_reaches_the_replica_whole(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)

    async def parts() -> Any:
        for at in range(0, len(BODY), 5):
            yield BODY[at : at + 5]

    async with httpx.AsyncClient() as client:
        answer = await client.post(service.url + "/v1/completions", content=parts())
    assert answer.status_code == 200
    assert replica.received[0].body == BODY
    assert replica.received[0].headers["content-length"] == str(len(BODY))


async def test_a_trailer_is_not_taken_for_a_header(router: Any, peer: Any) -> None:
    service = await router(await peer())
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    raw = await service.raw(head + b"13\r\n%b\r\n0\r\nx-paceline-revision: none\r\nhost: y\r\n\r\n" % BODY)
    assert statuses(raw) == [200]


async def test_100_continue_is_sent_before_the_body_is_asked_for(router: Any, peer: Any) -> None:
    service = await router(await peer())
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    request = post(headers="expect: 100-continue\r\nconnection: close\r\n")
    writer.write(request[: -len(BODY)])
    async with asyncio.timeout(5):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert statuses(await reader.read()) == [200]
    writer.close()


async def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(router: Any, peer: Any) -> None:
    service = await router(await peer(), max_body_bytes=1000)
    raw = await service.raw(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n"
    )
    assert statuses(raw) == [413]
    assert "1000 bytes" in error_of(raw)["message"]


async def test_a_chunked_body_that_grows_too_large_is_refused(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica, max_body_bytes=1000)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    raw = await service.raw(head + b"1f4\r\n%b\r\n" % (b"x" * 500) * 5)
    assert statuses(raw) == [413]
    assert replica.received == []


async def test_the_answer_to_a_large_refused_upload_can_be_read(router: Any, peer: Any) -> None:
    service = await router(await peer(), max_body_bytes=1000)
    async with httpx.AsyncClient() as client:
        answer = await client.post(service.url + "/v1/completions", content=b"x" * 5_000_000)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "headers",
    [
        "cookie: " + "x" * 40_000 + "\r\n",
        "".join(f"x-{n}: y\r\n" for n in range(150)),
        "x" * 40_000 + ": y\r\n",
    ],
)
async def test_headers_beyond_the_bounds_are_a_431(router: Any, peer: Any, headers: str) -> None:
    service = await router(await peer())
    assert statuses(await service.raw(post(headers=headers))) == [431]


async def test_a_header_that_never_ends_is_a_431(router: Any, peer: Any) -> None:
    service = await router(await peer())
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-a: ")
    async with asyncio.timeout(5):
        for _ in range(60):
            writer.write(b"y" * 1000)
            await writer.drain()
            await asyncio.sleep(0)
        assert statuses(await reader.read()) == [431]
    writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\nx: y\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_not_a_plain_request_is_a_400_in_openai_form(router: Any, peer: Any, raw: bytes) -> None:
    service = await router(await peer())
    answer = await service.raw(raw)
    assert statuses(answer) == [400]
    assert error_of(answer)["type"] == "invalid_request_error"
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/completions", 405, "POST"),
        ("PUT", "/v1/models", 405, "GET, HEAD"),
        ("OPTIONS", "/v1/models", 405, "GET, HEAD"),
        ("POST", "/v1/embeddings", 404, None),
        ("GET", "/", 404, None),
        ("GET", "/metrics", 404, None),
        ("GET", "/v1/paceline/routes", 404, None),
        ("GET", "/v1/paceline/load", 404, None),
        ("GET", "/demo/chat/v1/paceline/config", 404, None),
        ("GET", "/demo/chat/metrics", 404, None),
        ("GET", "//v1/models", 404, None),
        ("GET", "/v1/../v1/models", 404, None),
        ("GET", "/V1/models", 404, None),
        ("GET", "/v1%2fmodels", 404, None),
        ("POST", "/v1/completions/", 404, None),
        ("CONNECT", "x:443", 400, None),
    ],
)
async def test_everything_but_the_listed_paths_is_refused(
    router: Any, peer: Any, method: str, path: str, status: int, allow: str | None
) -> None:
    replica = await peer()
    service = await router(replica)
    raw = await service.raw(f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert statuses(raw) == [status]
    assert error_of(raw)["message"]
    assert allow is None or f"allow: {allow}\r\n".encode() in raw
    assert replica.received == []


async def test_head_gets_the_headers_alone(router: Any, peer: Any) -> None:
    service = await router(await peer())
    async with httpx.AsyncClient() as client:
        got, head = await client.get(service.url + "/v1/models"), await client.head(service.url + "/v1/models")
    assert head.content == b""
    assert head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b"", 400), (b"[]", 400), (b'{"model":1}', 400), (b"{}", 400)]
)
async def test_a_bad_body_keeps_the_connection(router: Any, peer: Any, body: bytes, status: int) -> None:
    service = await router(await peer())
    raw = await service.raw(post(body) + post(headers="connection: close\r\n"))
    assert statuses(raw) == [status, 200]


async def test_a_compressed_body_is_refused(router: Any, peer: Any) -> None:
    service = await router(await peer())
    raw = await service.raw(post(headers="content-encoding: gzip\r\nconnection: close\r\n"))
    assert statuses(raw) == [415]


@pytest.mark.parametrize("space", [" ", "\t", " \t "])
async def test_white_space_around_a_header_is_no_part_of_it(router: Any, peer: Any, space: str) -> None:
    replica = await peer()
    service = await router(replica)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    values = {
        "x-paceline-session": "s1",
        "x-paceline-deadline-ms": "10000",
        "x-paceline-explain": "1",
        "content-encoding": "identity",
        "traceparent": trace,
        "tracestate": "a=1",
        "expect": "100-continue",
        "connection": "close",
    }
    raw = await service.raw(
        post(headers="".join(f"{name}:{space}{value}{space}\r\n" for name, value in values.items()))
    )
    assert statuses(raw.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")) == [200]
    assert b"x-paceline-reason" in raw
    seen = replica.received[0].headers
    assert (seen["x-paceline-session"], seen["traceparent"], seen["tracestate"]) == ("s1", trace, "a=1")


async def test_a_broken_trace_begins_anew_and_breaks_no_request(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)
    parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    for lines, kept in (
        ("traceparent: garbage\r\ntracestate: a=1\r\n", (None, None)),
        (parent.upper(), (None, None)),
        (parent + parent, (None, None)),
        (parent + "tracestate: a=1\r\nTraceState: b=2\r\n", (parent[13:-2], "a=1,b=2")),
        (parent + f"tracestate: a={'x' * 600}\r\n", (parent[13:-2], None)),
    ):
        assert statuses(await service.raw(post(headers=lines + "connection: close\r\n"))) == [200]
        seen = replica.received[-1].headers
        assert (seen.get("traceparent"), seen.get("tracestate")) == kept


async def test_a_malformed_paceline_header_is_named(router: Any, peer: Any) -> None:
    replica = await peer()
    service = await router(replica)
    raw = await service.raw(post(headers="x-paceline-deadline-ms: soon\r\nconnection: close\r\n"))
    assert statuses(raw) == [400]
    assert error_of(raw)["param"] == "x-paceline-deadline-ms"
    twice = "x-paceline-session: a\r\nX-Paceline-Session: b\r\n"
    assert statuses(await service.raw(post(headers=twice))) == [400]
    assert replica.received == []


async def test_a_client_of_http_1_0_gets_an_unchunked_stream_and_its_end(router: Any, peer: Any) -> None:
    service = await router(await peer())
    raw = await service.raw(post(b'{"model":"smollm2","stream":true}', path="/v1/chat/completions", version="1.0"))
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: ")
    assert body.endswith(b"data: [DONE]\n\n")
    assert statuses(await service.raw(post(version="1.0"))) == [200]


async def test_every_answer_has_a_request_id_of_its_own(router: Any, peer: Any) -> None:
    service = await router(await peer())
    raw = await service.raw(post() + post(b"{") + b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n" + b"BAD\r\n\r\n")
    ids = re.findall(rb"x-request-id: (\S+)", raw)
    assert len(ids) == len(set(ids)) == 4


async def test_a_request_that_takes_too_long_to_arrive_is_a_408(router: Any, peer: Any) -> None:
    service = await router(await peer(), client_read_timeout=0.3)
    assert statuses(await service.raw(post()[:-3])) == [408]


async def test_an_idle_connection_is_closed(router: Any, peer: Any) -> None:
    service = await router(await peer(), keep_alive_timeout=0.3)
    assert statuses(await service.raw(post())) == [200]


class Transport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.sampled_from(["/v1/models", "/v1/models/m", "/health/ready", "/none"]), min_size=1, max_size=5),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_requests_cut_anywhere_get_the_same_answers(paths: list[str], cuts: list[int]) -> None:
    raw = "".join(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Paceline-Session: s\r\n\r\n" for path in paths).encode()
    answers = []
    for pieces in (
        [raw],
        [
            raw[a:b]
            for a, b in zip(
                [0, *sorted(c % len(raw) for c in cuts)], [*sorted(c % len(raw) for c in cuts), len(raw)], strict=True
            )
        ],
    ):
        plane = DataPlane(Settings(), now=lambda: 0.0)
        plane.use(Table())
        connection, transport = ClientConnection(plane), Transport()
        connection.connection_made(transport)
        for piece in pieces:
            if piece:
                connection.data_received(piece)
        answers.append(re.sub(rb"req-[0-9a-f]+-", b"req-", transport.written))
    assert answers[0] == answers[1]
    assert len(statuses(answers[0])) == len(paths)
