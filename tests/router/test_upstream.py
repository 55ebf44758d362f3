"""Answers of replicas, cut anywhere by the network."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.flow.backend import Backend
from paceline_router.table.records import Replica
from paceline_router.wire import response_head
from paceline_router.wire.chunks import as_chunk
from paceline_router.wire.response_head import HeadError, read_head
from paceline_router.wire.upstream import UpstreamConnection
from paceline_router.wire.usage import usage_of


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: Any) -> None: ...

    def abort(self) -> None:
        self.aborted = True

    def is_reading(self) -> bool:
        return True


class Listener:
    """What an exchange hears."""

    def __init__(self) -> None:
        self.heads: list[tuple[Any, ...]] = []
        self.body = b""
        self.ended = 0
        self.broken: list[str] = []

    def on_head(self, _: Any, head: Any) -> None:
        self.heads.append((head.status, head.chunked, head.length, head.sse, head.load, head.lines))

    def on_data(self, data: bytes) -> None:
        assert len(self.heads) == 1
        self.body += data

    def on_end(self, last: bytes = b"") -> None:
        self.body += last
        self.ended += 1

    def on_broken(self, _: Any, reason: str) -> None:
        self.broken.append(reason)

    def outcome(self) -> tuple[Any, ...]:
        return self.heads, self.body, self.ended, bool(self.broken)


def connection() -> tuple[UpstreamConnection, Transport, Backend]:
    backend = Backend(Replica("u", "p", "a/b", "default", "h", "127.0.0.1", 1, True, False), 0.0)
    made, transport = UpstreamConnection(backend), Transport()
    made.connection_made(transport)
    return made, transport, backend


def feed(made: UpstreamConnection, pieces: list[bytes]) -> Listener:
    listener = Listener()
    made.send(listener, b"request")  # type: ignore[arg-type]
    for piece in pieces:
        if piece and made.exchange is not None:
            made.data_received(piece)
    return listener


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted(position % (len(raw) + 1) for position in cuts)
    return [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]


def length_answer(body: bytes, head: bytes = b"HTTP/1.1 200 OK\r\nX-Paceline-Load: v=1\r\nA: b\r\n") -> bytes:
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def chunked_answer(payloads: list[bytes], kind: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % kind
    return head + b"".join(map(as_chunk, payloads)) + b"0\r\n\r\n"


ANSWERS = st.one_of(
    st.builds(length_answer, st.binary(max_size=60)),
    st.builds(
        chunked_answer,
        st.lists(st.binary(min_size=1, max_size=30) | st.just(b"data: x\n\n"), max_size=6),
        st.sampled_from([b"text/event-stream", b"application/json"]),
    ),
    st.just(b"HTTP/1.1 204 No Content\r\n\r\n"),
    st.just(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + length_answer(b"after")),
)
CUTS = st.lists(st.integers(0, 10_000), max_size=25)


@given(st.lists(ANSWERS, min_size=1, max_size=4), CUTS)
def test_answers_cut_anywhere_are_heard_alike_and_the_connection_stays_usable(
    raws: list[bytes], cuts: list[int]
) -> None:
    whole, _, _ = connection()
    pieces, transport, backend = connection()
    for number, raw in enumerate(raws):
        expected, heard = feed(whole, [raw]), feed(pieces, cut(raw, cuts))
        assert heard.outcome() == expected.outcome()
        assert (heard.ended, heard.broken) == (1, [])
        assert pieces.reused
        assert backend.idle == [pieces] * (number + 1)
    assert not transport.aborted


@given(ANSWERS, st.integers(1, 10_000))
def test_an_answer_that_ends_early_is_broken_never_complete(raw: bytes, lost: int) -> None:
    made, _, _ = connection()
    listener = feed(made, [raw[: len(raw) - 1 - lost % len(raw)]])
    assert listener.ended == 0
    made.connection_lost(None)
    assert (listener.ended, len(listener.broken)) == (0, 1)


@given(ANSWERS, st.binary(min_size=1, max_size=20))
def test_a_connection_with_bytes_nobody_asked_for_is_not_used_again(raw: bytes, surplus: bytes) -> None:
    made, transport, backend = connection()
    expected = feed(connection()[0], [raw])
    listener = feed(made, [raw + surplus])
    assert transport.aborted
    assert backend.idle == []
    assert listener.outcome() == expected.outcome()
    made, transport, _ = connection()
    feed(made, [raw])
    made.data_received(surplus)
    assert transport.aborted


@given(st.binary(max_size=200), CUTS)
def test_no_bytes_make_it_raise(raw: bytes, cuts: list[int]) -> None:
    made, _, _ = connection()
    listener = feed(made, cut(b"HTTP/1.1 200 OK\r\n" + raw, cuts))
    made.connection_lost(None)
    assert listener.ended + len(listener.broken) == 1


def head_of(lines: bytes, status: bytes = b"200 OK") -> Any:
    return read_head(b"HTTP/1.1 " + status + b"\r\n" + lines.rstrip(b"\r\n"))


def test_the_client_gets_what_is_about_the_answer_and_nothing_about_the_connection() -> None:
    head = head_of(
        b"Date: now\r\nServer: x\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Set-Cookie: a\r\nX-Request-Id: theirs\r\nX-Paceline-Load: v=1\r\n"
        b"Content-Type: application/json\r\nX-Other:  kept \r\n"
        b"Cache-Control: no-store\r\nCache-Control: private\r\nRetry-After: 3\r\nContent-Length: 5\r\n"
    )
    assert {lower: value for lower, _, value in head.headers} == {
        b"date": b"now",
        b"content-type": b"application/json",
        b"x-other": b"kept",
        b"cache-control": b"no-store, private",
        b"retry-after": b"3",
    }
    assert (head.length, head.load, head.retry_after, head.closing) == (5, b"v=1", b"3", False)


LINES = [
    b"content-length: 7",
    b"content-length: 12",
    b"x-paceline-load: v=1, run=1",
    b"x-paceline-load: v=1, run=2",
    b"server-timing: total;dur=1.0",
    b"x-request-id: theirs-1",
    b"x-request-id: theirs-2",
    b"x-strength: 5",
    b"date: now",
    b"content-type: text/event-stream",
    b"transfer-encoding: chunked",
    b"connection: close",
]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"200 OK", b"204 No Content", b"503 Busy"]), st.lists(st.sampled_from(LINES), max_size=6)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_heads_that_come_again_are_read_as_at_first(heads: list[tuple[bytes, list[bytes]]]) -> None:
    for status, lines in heads * 3:
        raw = b"\r\n".join([b"HTTP/1.1 " + status, *lines])
        try:
            expected = response_head._read_lines(raw)
        except HeadError:
            with pytest.raises(HeadError):
                read_head(raw)
        else:
            assert msgspec.structs.astuple(read_head(raw)) == msgspec.structs.astuple(expected)


def test_a_stream_is_told_to_be_let_through() -> None:
    head = head_of(
        b"content-type: text/event-stream; charset=utf-8\r\nCache-Control: public\r\nX-Accel-Buffering: yes\r\n"
    )
    assert head.sse
    assert head.lines.count(b"cache-control: no-cache\r\n") == head.lines.count(b"x-accel-buffering: no\r\n") == 1
    assert b"public" not in head.lines
    assert b"yes" not in head.lines


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx : a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"ICY 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;a=\nb\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n: no name\r\n\r\n",
    ],
)
def test_an_answer_whose_end_two_readers_may_see_differently_is_broken(raw: bytes) -> None:
    made, transport, backend = connection()
    listener = feed(made, [raw])
    assert (listener.ended, len(listener.broken), listener.body) == (0, 1, b"")
    assert transport.aborted
    assert backend.idle == []


def test_the_old_protocol_ends_with_the_connection() -> None:
    made, transport, backend = connection()
    listener = feed(made, [b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"])
    assert (listener.ended, listener.body) == (1, b"ok")
    assert transport.aborted
    assert backend.idle == []
    made, _, _ = connection()
    listener = feed(made, [b"HTTP/1.0 200 OK\r\n\r\nuntil the end"])
    made.connection_lost(None)
    assert (listener.ended, listener.body) == (1, b"until the end")


EVENTS = st.lists(st.sampled_from([b"data: one\n\n", b"data: two\r\n\r\n", b"data: a\n\ndata: b\n\n"]), max_size=8)


@given(EVENTS, CUTS, st.booleans())
def test_events_are_counted_however_they_are_cut(events: list[bytes], cuts: list[int], usage: bool) -> None:
    last = b'data: {"choices":[],"usage":{"prompt_tokens":7,"total_tokens":12,"completion_tokens":5}}\n\n'
    raw = chunked_answer([*events, *([last] if usage else []), b"data: [DONE]\n\n"], b"text/event-stream")
    made, _, _ = connection()
    listener = feed(made, cut(raw, cuts))
    assert listener.ended == 1
    total = len(events) + sum(event.count(b"\n\n") == 2 for event in events) + usage + 1
    if not any(b"\r" in event for event in events):
        assert made.events == total
    assert usage_of(made.tail) == ((7, 5) if usage else None)


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b'{"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9}}', (8, 1)),
        (b'{"usage": {"completion_tokens" : 1, "prompt_tokens" : 8}}', (8, 1)),
        (b'{"usage":{"prompt_tokens_details":{"cached_tokens":3},"prompt_tokens":8,"completion_tokens":0}}', (8, 0)),
        # A comment of a stream: our replicas tell a router so, where the client did not ask.
        (b': {"usage":{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10}}\n\ndata: [DONE]\n\n', (8, 2)),
        (b'{"usage":null}', None),
        (b'{"usage":{"prompt_tokens":8}}', None),
        (b'{"usage":{"prompt_tokens":8.5,"completion_tokens":1}}', None),
        (b'{"usage":{"prompt_tokens":-8,"completion_tokens":1}}', None),
        (b"", None),
        (json.dumps({"text": '"usage":{"prompt_tokens":1,"completion_tokens":1}'}).encode(), None),
    ],
)
def test_usage_is_read_where_it_is_said(answer: bytes, usage: tuple[int, int] | None) -> None:
    assert usage_of(answer) == usage


@given(st.text(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_text_of_a_model_passes_for_usage(text: str, prompt: int, completion: int) -> None:
    fields = {
        "choices": [{"message": {"content": text + '"usage":{"prompt_tokens":1,"completion_tokens":2}'}}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion},
    }
    assert usage_of(json.dumps(fields).encode()) == (prompt, completion)
    del fields["usage"]
    assert usage_of(json.dumps(fields, ensure_ascii=False).encode()) is None
