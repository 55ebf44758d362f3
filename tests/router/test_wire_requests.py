"""Requests as bytes: what is read, what is refused, and that nobody can read them another way."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import takewhile
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_router.settings import Settings
from paceline_router.wire import request_head
from paceline_router.wire.answers import Refusal
from paceline_router.wire.client import MAX_AHEAD, ClientConnection
from paceline_router.wire.request_head import read_also
from paceline_router.wire.requests import Request


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.paused = False
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Recorder:
    """A data path that answers everything at once, or leaves all requests open."""

    def __init__(self, at_once: bool = True, **limits: int) -> None:
        self.arriving = 0
        self.settings = Settings(**limits)
        self.clients: set[Any] = set()
        self.served: list[Request | Refusal] = []
        self.at_once = at_once
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def serve(self, client: ClientConnection, item: Request | Refusal) -> None:
        self.served.append(item)
        if isinstance(item, Refusal):
            assert item.answer.close
            client.closed = True
        elif self.at_once:
            client.done(item.keep_alive)
        else:
            client.active = self  # type: ignore[assignment]


def connection(plane: Recorder) -> tuple[ClientConnection, Transport]:
    made, transport = ClientConnection(plane), Transport()  # type: ignore[arg-type]
    made.connection_made(transport)
    return made, transport


def feed(*pieces: bytes, **limits: int) -> list[Request | Refusal]:
    plane = Recorder(**limits)
    made, _ = connection(plane)
    for piece in pieces:
        if piece:
            made.data_received(piece)
    return plane.served


def words(items: list[Request | Refusal]) -> list[Any]:
    """What was served, in a form that can be compared. Refusals are alike: one may be found sooner than another."""
    return [
        (item.method, item.target, item.headers, item.body, item.keep_alive, item.http10, item.plain, str(item.fault))
        if isinstance(item, Request)
        else "refused"
        for item in items
    ]


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted(position % (len(raw) + 1) for position in cuts)
    return [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]


def request(headers: bytes = b"", body: bytes = b"", start: bytes = b"POST /v1/completions HTTP/1.1") -> bytes:
    return start + b"\r\nhost: x\r\n" + headers + b"\r\n" + body


HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKS = b"transfer-encoding: chunked\r\n"


def test_a_request_is_read() -> None:
    (read,) = feed(
        request(
            b"Authorization: Bearer k\r\nContent-Type: application/json; charset=utf-8\r\nAccept: */*\r\n"
            b"X-Paceline-Session:  s1 \t\r\ncontent-length: 2\r\n",
            b"{}",
        )
    )
    assert isinstance(read, Request)
    assert (read.method, read.target, read.body) == (b"POST", b"/v1/completions", b"{}")
    assert read.headers == {"authorization": b"Bearer k", "x-paceline-session": b"s1"}
    assert (read.keep_alive, read.http10, read.plain, read.fault) == (True, False, False, None)


def test_only_what_may_be_passed_on_makes_a_request_more_than_plain() -> None:
    lines = b"authorization: k\r\nuser-agent: u\r\ncontent-type: application/json\r\nconnection: keep-alive\r\n"
    (read,) = feed(request(lines + b"content-length: 0\r\n"))
    assert isinstance(read, Request)
    assert read.plain
    assert read.headers == {"authorization": b"k"}


@pytest.mark.parametrize("name", [b"Content-Length", b"content-length", b"CONTENT-LENGTH"])
@pytest.mark.parametrize("more", [b"", b"x-strength: 5\r\n", b"X-Strength: \r\n", b"authorization: k\r\n"])
def test_heads_that_differ_in_the_length_alone_are_told_apart(name: bytes, more: bytes) -> None:
    bodies = [b"hello", b"", b"hello world", b"hello"]
    for before in (True, False):
        lines = [name + b": %d\r\n" % len(body) for body in bodies]
        raw = [request(more + line if before else line + more, body) for line, body in zip(lines, bodies, strict=True)]
        served = feed(*raw)
        assert [item.body for item in served if isinstance(item, Request)] == bodies
    for value in (b"5x", b"+5", b"", b"5 5", b"5, 5", b"9" * 20):
        assert words(feed(request(name + b": " + value + b"\r\n" + more, b"hello"))) == ["refused"]
    (padded,) = feed(request(name + b": 5 \t\r\n" + more, b"hello"))
    assert isinstance(padded, Request)
    assert padded.body == b"hello"


def test_heads_that_come_again_are_read_as_at_first() -> None:
    tenants = [b"a", b"b", b"a", b"a", b"b", b"a"]
    raw = [
        request(
            b"x-paceline-tenant: %b\r\nx-paceline-priority: high\r\ncontent-length: %d\r\n" % (tenant, size),
            b"x" * size,
        )
        for size, tenant in enumerate(tenants)
    ]
    served = [item for item in feed(*raw) if isinstance(item, Request)]
    assert [item.headers["x-paceline-tenant"] for item in served] == tenants
    assert [len(item.body) for item in served] == list(range(6))
    assert {item.plain for item in served} == {False}


def test_a_head_with_a_fault_has_a_refusal_of_its_own_each_time() -> None:
    raw = request(b"x-paceline-tenant: a b\r\ncontent-length: 0\r\n")
    faults = [item.fault for item in feed(*[raw] * 4) if isinstance(item, Request)]
    assert all(faults)
    assert len(set(map(id, faults))) == 4


def test_heads_that_come_once_push_out_none_that_come_again() -> None:
    request_head.forget()
    again = request(b"x-paceline-tenant: a\r\ncontent-length: 0\r\n")
    once = [request(b"x-request-id: %d\r\ncontent-length: 0\r\n" % number) for number in range(3000)]
    feed(again, again, *once)
    assert len(request_head._heads) == 1
    assert len(request_head._seen) <= request_head.MAX_SEEN


def test_further_headers_are_read_when_they_are_asked_for() -> None:
    raw = request(b"X-Forwarded-User: me\r\n")
    (before,) = feed(raw)
    read_also(["x-forwarded-user", "x-paceline-tenant"])
    try:
        (after,) = feed(raw)
    finally:
        del request_head.READ[b"x-forwarded-user"]
        request_head.forget()
    assert isinstance(before, Request)
    assert isinstance(after, Request)
    assert before.headers == {}
    assert after.headers == {"x-forwarded-user": b"me"}


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        # Request lines
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET  /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models  HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b" GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET\t/v1/models\tHTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/mod els HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models\x00 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1 \r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.2\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models HTTP/0.9\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models http/1.1\r\nhost: x\r\n\r\n", 400),
        (b"G\xc3T /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET ftp://x/v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\x00\x00\x00", 400),
        (b"A" * 40, 400),
        # Line ends
        (b"GET /v1/models HTTP/1.1\nhost: x\n\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\nx: y\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\rx: y\r\n\r\n", 400),
        (b"\nGET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        # Headers
        (request(b"x: a\r\n b\r\n"), 400),
        (request(b"x: a\r\n\tb\r\n"), 400),
        (request(b"x : a\r\n"), 400),
        (request(b"x\t: a\r\n"), 400),
        (request(b": a\r\n"), 400),
        (request(b"x\r\n"), 400),
        (request(b"x(y): a\r\n"), 400),
        (request(b"x\xc3\xa9: a\r\n"), 400),
        (request(b"x: a\x00b\r\n"), 400),
        (request(b"x: a\x0bb\r\n"), 400),
        (request(b"x: a\x7fb\r\n"), 400),
        (request(b"x\x00: a\r\n"), 400),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
        (request(b"host: y\r\n"), 400),
        (request(b"authorization: a\r\nauthorization: b\r\n"), 400),
        (request(b"x-paceline-session: a\r\nX-Paceline-Session: b\r\n"), 400),
        (request(b"connection: upgrade\r\nupgrade: h2c\r\n"), 400),
        (request(b"x: y\r\n" * 101), 431),
        (request(b"x: " + b"y" * 33_000 + b"\r\n"), 431),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 33_000, 431),
        (b"GET /" + b"y" * 33_000, 431),
        # Framing
        (request(b"content-length: 5\r\n" + CHUNKS, b"0\r\n\r\n"), 400),
        (request(CHUNKS + b"content-length: 5\r\n", b"0\r\n\r\n"), 400),
        (request(b"content-length: 5\r\ncontent-length: 6\r\n", b"hello"), 400),
        (request(b"content-length: 5\r\nContent-Length: 5\r\n", b"hello"), 400),
        (request(b"content-length: 5, 5\r\n", b"hello"), 400),
        (request(b"content-length: -5\r\n", b"hello"), 400),
        (request(b"content-length: +5\r\n", b"hello"), 400),
        (request(b"content-length: 5 5\r\n", b"hello"), 400),
        (request(b"content-length: 0x5\r\n", b"hello"), 400),
        (request(b"content-length: 5.0\r\n", b"hello"), 400),
        (request(b"content-length:\r\n", b"hello"), 400),
        (request("content-length: ٥\r\n".encode(), b"hello"), 400),
        (request(b"content-length: 18446744073709551621\r\n", b"hello"), 400),
        (request(b"content-length: 8388609\r\n"), 413),
        (request(b"transfer-encoding: gzip\r\n"), 400),
        (request(b"transfer-encoding: gzip, chunked\r\n"), 400),
        (request(b"transfer-encoding: chunked, chunked\r\n"), 400),
        (request(b"transfer-encoding: identity\r\n"), 400),
        (request(b"transfer-encoding: xchunked\r\n"), 400),
        (request(b"transfer-encoding: chunked;q=1\r\n"), 400),
        (request(b"transfer-encoding:\x0bchunked\r\n"), 400),
        (request(CHUNKS + CHUNKS), 400),
        (request(CHUNKS + b"transfer-encoding: identity\r\n"), 400),
        (request(CHUNKS, start=b"POST /v1/completions HTTP/1.0"), 400),
        (request(b"expect: 200-ok\r\ncontent-length: 5\r\n"), 417),
        (request(b"expect: 100-continue\r\ncontent-length: 8388609\r\n"), 413),
        # Chunks
        *(
            (request(CHUNKS, chunks), 400)
            for chunks in (
                b"zz\r\n",
                b"-1\r\n",
                b"+1\r\nx\r\n0\r\n\r\n",
                b" 1\r\nx\r\n0\r\n\r\n",
                b"0x1\r\nx\r\n0\r\n\r\n",
                b"1_0\r\n",
                b"\r\nx\r\n",
                b"ffffffffffffffff\r\n",
                b"10000000000000001\r\nx\r\n0\r\n\r\n",
                b"1000001\r\n",
                b"1\r\nxy\r\n0\r\n\r\n",
                b"1\nx\n0\n\n" + b" " * 300,
                b"1;a=\nb\r\nx\r\n0\r\n\r\n",
                b"1;a=\x00\r\nx\r\n0\r\n\r\n",
                b"1;" + b"a" * 300 + b"\r\nx\r\n0\r\n\r\n",
                b"0\r\n x: y\r\n\r\n",
                b"0\r\nno colon\r\n\r\n",
                b"0\r\nx: a\nb: c\r\n\r\n",
                b"0\r\n" + b"x: y\r\n" * 2000 + b"\r\n",
                b"0\r\n" + HIDDEN,
                b"1\r\nx\r\n" * 20_000,
                b"1;" + b"a" * 200 + b"\r\nx\r\n" + (b"1;" + b"a" * 200 + b"\r\nx\r\n") * 1000,
            )
        ),
    ],
)
def test_what_two_readers_may_take_differently_is_refused(raw: bytes, status: int) -> None:
    served = feed(raw + HIDDEN)
    assert [type(item) for item in served] == [Refusal]
    assert isinstance(served[0], Refusal)
    assert served[0].status == status
    error = served[0].answer.body["error"]
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 300
    # Byte for byte it is refused as well, though perhaps for what shows first.
    one_by_one = feed(*(raw[n : n + 1] for n in range(min(len(raw), 2000))), raw[2000:], HIDDEN)
    assert [type(item) for item in one_by_one] == [Refusal]


def test_a_body_in_chunks_is_bounded_while_it_arrives() -> None:
    chunk = b"10000\r\n%b\r\n" % (b"x" * 2**16)
    for head, pieces in ((CHUNKS, [chunk] * 129), (CHUNKS, [b"900000\r\n", *[b"x" * 2**16] * 129])):
        (refusal,) = feed(request(head), *pieces)
        assert isinstance(refusal, Refusal)
        assert refusal.status == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"content-type: text/plain\r\n", 415),
        (b"content-type: multipart/form-data; boundary=x\r\n", 415),
        (b"content-type: application/jsonx\r\n", 415),
        (b"content-type:\r\n", 415),
        (b"content-encoding: gzip\r\n", 415),
        (b"content-encoding: identity\r\ncontent-encoding: br\r\n", 415),
        (b"x-paceline-priority: urgent\r\n", 400),
    ],
)
def test_what_only_one_request_suffers_from_leaves_the_connection(headers: bytes, status: int) -> None:
    first, second = feed(request(headers + b"content-length: 5\r\n", b"hello") + HIDDEN)
    assert isinstance(first, Request)
    assert first.fault is not None
    assert first.fault.status == status
    assert not first.fault.answer.close
    assert isinstance(second, Request)
    assert second.fault is None


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"content-type: application/json\r\n",
        b"Content-Type: Application/JSON;charset=utf-8\r\n",
        b"content-type: application/problem+json\r\n",
        b"content-encoding: identity\r\n",
        b"content-encoding: Identity, identity\r\n",
        b"upgrade: h2c\r\n",
        b"connection: Keep-Alive, x-hop\r\n",
        b"expect: 100-Continue\r\n",
        b"x-empty:\r\nx-latin: caf\xe9\r\n",
        b"accept: a\r\naccept: b\r\nconnection: keep-alive\r\nconnection: keep-alive\r\n",
    ],
)
def test_what_is_harmless_is_taken(headers: bytes) -> None:
    first, second = feed(b"\r\n\r\n" + request(headers + b"content-length: 5\r\n", b"hello") + b"\r\n" + HIDDEN)
    assert isinstance(first, Request)
    assert (first.body, first.fault, first.keep_alive) == (b"hello", None, True)
    assert isinstance(second, Request)
    assert second.target == b"/hidden"


def test_the_connection_ends_when_the_client_says_so_or_is_of_http_1_0() -> None:
    for headers, start in (
        (b"connection: Close\r\n", b"GET / HTTP/1.1"),
        (b"connection: x\r\nconnection: close\r\n", b"GET / HTTP/1.1"),
        (b"", b"GET / HTTP/1.0"),
        (b"connection: keep-alive\r\n", b"GET / HTTP/1.0"),
    ):
        (read,) = feed(request(headers, start=start) + HIDDEN)
        assert isinstance(read, Request)
        assert not read.keep_alive


def test_trailers_and_extensions_are_passed_over() -> None:
    chunks = b'5;a="b;c"\r\nhello\r\n00\r\nx-paceline-revision: r\r\ncontent-length: 9\r\nhost: y\r\n\r\n'
    first, second = feed(request(CHUNKS, chunks) + HIDDEN)
    assert isinstance(first, Request)
    assert (first.body, first.headers) == (b"hello", {})
    assert isinstance(second, Request)
    assert second.target == b"/hidden"


def test_what_is_hidden_in_a_body_is_never_a_request() -> None:
    for raw in (
        request(b"content-length: %d\r\n" % len(HIDDEN), HIDDEN),
        request(CHUNKS, b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    ):
        (read,) = feed(raw)
        assert isinstance(read, Request)
        assert read.body == HIDDEN


def test_a_client_that_expects_to_be_told_is_told_once_and_only_before_its_body() -> None:
    raw = request(b"expect: 100-continue\r\ncontent-length: 5\r\n")
    plane = Recorder()
    made, transport = connection(plane)
    made.data_received(raw)
    assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    made.data_received(b"he")
    made.data_received(b"llo")
    made.data_received(raw + b"hello")
    assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert [getattr(item, "body", None) for item in plane.served] == [b"hello", b"hello"]


def test_what_comes_ahead_waits_and_is_bounded() -> None:
    plane = Recorder(at_once=False)
    made, transport = connection(plane)
    made.data_received(HIDDEN * 3 + HIDDEN[:5])
    assert len(plane.served) == 1
    while not transport.paused:
        made.data_received(b"x" * 1000)
    assert len(made._ahead) < MAX_AHEAD + 2000
    made.done(True)
    assert len(plane.served) == 2
    assert made.active is not None


def test_nothing_more_is_served_to_a_client_that_does_not_read() -> None:
    plane = Recorder()
    made, _ = connection(plane)
    made.pause_writing()
    made.data_received(HIDDEN + HIDDEN)
    assert plane.served == []
    made.resume_writing()
    assert len(plane.served) == 2


@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_client_that_never_reads_the_end_of_its_answer_is_given_up(keep_alive: bool) -> None:
    plane = Recorder()
    made, transport = connection(plane)
    made.data_received(HIDDEN if keep_alive else request(b"connection: close\r\n"))
    made.close_if_idle()  # the router stops: what is under way still goes out
    made.close_if_idle()
    assert made.closed
    assert not transport.aborted
    plane.time += plane.settings.keep_alive_timeout + 1.0
    made.close_if_idle()
    assert transport.aborted


def test_a_request_is_timed_from_its_first_byte_to_its_last() -> None:
    plane = Recorder()
    made, _ = connection(plane)
    raw = request(b"content-length: 5\r\n", b"hello")
    plane.time = 5.0
    made.data_received(b"\r\n")
    assert not made.reading
    for piece in (raw[:1], raw[1:30], raw[30:-2]):
        made.data_received(piece)
        plane.time += 1.0
        assert (made.reading, made.since) == (True, 5.0)
    made.data_received(raw[-2:])
    assert (made.reading, made.since) == (False, 8.0)


def test_one_connection_more_than_allowed_is_refused() -> None:
    plane = Recorder(max_client_connections=2)
    made = [connection(plane)[0] for _ in range(3)]
    assert [client.closed for client in made] == [False, False, True]
    (refusal,) = plane.served
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.answer.headers["retry-after"]) == (503, "1")
    made[0].connection_lost(None)
    assert not connection(plane)[0].closed


# Properties

HEADER_LINES = st.sampled_from(
    [
        b"Content-Type: application/json\r\n",
        b"X-Paceline-Session: s1\r\n",
        b"Authorization: Bearer k\r\n",
        b"Connection: keep-alive\r\n",
        b"Connection: close\r\n",
        b"tracestate: a=1\r\n",
        b"Accept: */*\r\n",
    ]
)
BODIES = st.binary(max_size=40) | st.just(HIDDEN) | st.just(b"0\r\n\r\n" + HIDDEN)


def with_length(headers: list[bytes], body: bytes) -> bytes:
    return request(b"".join(headers) + b"Content-Length: %d\r\n" % len(body), body)


def in_chunks(headers: list[bytes], body: bytes, size: int) -> bytes:
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    return request(b"".join(headers) + b"Transfer-Encoding: chunked\r\n", coded)


REQUESTS = st.one_of(
    st.builds(with_length, st.lists(HEADER_LINES, max_size=4, unique=True), BODIES),
    st.builds(in_chunks, st.lists(HEADER_LINES, max_size=4, unique=True), BODIES, st.integers(1, 50)),
    st.builds(
        lambda lines: request(b"".join(lines), start=b"GET /v1/models HTTP/1.1"),
        st.lists(HEADER_LINES, max_size=3, unique=True),
    ),
)
CUTS = st.lists(st.integers(0, 10_000), max_size=25)
SNIPPETS = st.sampled_from(
    [
        *(
            b"\r",
            b"\n",
            b"\r\n",
            b"\r\n\r\n",
            b"\n\n",
            b" ",
            b"\t",
            b":",
            b"0",
            b"1",
            b"5",
            b"a",
            b"\x00",
            b"\xff",
            b";",
            b",",
        ),
        *(
            b"chunked",
            b"0\r\n\r\n",
            b"5\r\nhello\r\n",
            b"-1",
            b"+",
            b"_",
            b"0x",
            b"\x0b",
            b"\x85",
            b"HTTP/1.0",
            b"HTTP/2.0",
        ),
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b" folded\r\n",
        b"Host: y\r\n",
        HIDDEN,
    ]
)
EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 12), SNIPPETS | st.binary(max_size=4)), max_size=6)


def edited(raw: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for position, gone, put in edits:
        at = position % (len(raw) + 1)
        raw = raw[:at] + put + raw[at + gone :]
    return raw


class Strict:
    """The reading of the C parser that most other servers use."""

    def __init__(self) -> None:
        self.requests: list[list[Any]] = []
        self.complete = 0

    def on_message_begin(self) -> None:
        self.requests.append([b"", b"", []])

    def on_url(self, url: bytes) -> None:
        self.requests[-1][0] += url

    def on_body(self, body: bytes) -> None:
        self.requests[-1][1] += body

    def on_message_complete(self) -> None:
        self.complete += 1


def read_by_others(raw: bytes) -> list[tuple[bytes, bytes]]:
    reader = Strict()
    parser = httptools.HttpRequestParser(reader)
    with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        parser.feed_data(raw)
    return [(target, body) for target, body, _ in reader.requests[: reader.complete]]


@settings(max_examples=300)
@given(st.lists(REQUESTS, min_size=1, max_size=3), EDITS, CUTS)
def test_bytes_cut_anywhere_are_taken_alike_with_lines_known_or_not(
    raws: list[bytes], edits: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    raw = edited(b"".join(raws), edits)
    request_head.forget()
    first = words(feed(raw))
    assert words(feed(raw)) == first
    assert words(feed(*cut(raw, cuts))) == first


@settings(max_examples=600)
@given(st.lists(REQUESTS, min_size=1, max_size=3), EDITS)
def test_no_request_is_taken_that_another_reader_takes_differently(
    raws: list[bytes], edits: list[tuple[int, int, bytes]]
) -> None:
    raw = edited(b"".join(raws), edits)
    # The other reader knows a fixed set of methods only.
    taken = takewhile(lambda item: isinstance(item, Request) and item.method in (b"GET", b"POST"), feed(raw))
    ours = [(item.target, item.body) for item in taken if isinstance(item, Request)]
    assert read_by_others(raw)[: len(ours)] == ours


@given(st.lists(REQUESTS, min_size=1, max_size=4), CUTS)
def test_good_requests_are_all_taken(raws: list[bytes], cuts: list[int]) -> None:
    served = feed(*cut(b"".join(raws), cuts))
    closing = [b"close" in raw.split(b"\r\n\r\n", 1)[0] for raw in raws]
    expected = closing.index(True) + 1 if True in closing else len(raws)
    assert [type(item) for item in served] == [Request] * expected


@settings(max_examples=300)
@given(st.binary(max_size=300), CUTS)
def test_no_bytes_make_it_raise_or_answer_with_an_error_of_its_own(raw: bytes, cuts: list[int]) -> None:
    for item in feed(*cut(raw, cuts)):
        assert isinstance(item, Request) or 400 <= item.status < 500
