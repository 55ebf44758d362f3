"""No line costs more than its length: strangers choose them."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import httpx
import pytest

from paceline_router.wire.answers import Refusal
from paceline_router.wire.members import with_limit
from paceline_router.wire.request_head import read_also, read_head
from paceline_router.wire.requests import body_for, parse_body
from paceline_router.wire.response_head import HeadError
from paceline_router.wire.response_head import read_head as read_answer
from paceline_router.wire.syntax import HEADER_LINE

LENGTH = 300_000
PIECES = [b" ", b"\t", b" \t", b"a", b"a ", b" a", b"ab  ", b"\xff ", b"a\t"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("end", [b"\0", b"", b"\r", b"a", b" "])
@pytest.mark.parametrize("piece", PIECES)
def test_a_header_line_is_read_in_time_that_grows_with_its_length(piece: bytes, end: bytes) -> None:
    """By the square of its length, one of these lines takes minutes."""
    line = b"X:" + piece * (LENGTH // len(piece)) + end
    match = HEADER_LINE.fullmatch(line)
    assert (match is None) == (end in (b"\0", b"\r"))
    if match is not None:
        assert match[2] == line[2:].strip(b" \t")


@pytest.mark.timeout(20)
def test_a_head_with_such_a_line_is_refused() -> None:
    line = b"X:" + b" " * LENGTH + b"\0"
    with pytest.raises(Refusal):
        read_head(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + line)
    with pytest.raises(HeadError):
        read_answer(b"HTTP/1.1 200 OK\r\n" + line)


@pytest.mark.parametrize("status", [b"600", b"999", b"099", b"1000"])
def test_a_status_that_there_is_not_is_a_malformed_answer(status: bytes) -> None:
    with pytest.raises(HeadError):
        read_answer(b"HTTP/1.1 %b X\r\ncontent-length: 0" % status)


async def test_bodies_that_arrive_have_a_bound_for_all_clients_together(router: Any, peer: Any, helpers: Any) -> None:
    service = await router(await peer(), max_arriving_bytes=300_000)
    body = json.dumps({"model": helpers.MODEL, "messages": [{"role": "user", "content": "x" * 200_000}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def begin() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(head + body[:-1])
        await writer.drain()
        return reader, writer

    async with asyncio.timeout(10):
        first, to_first = await begin()
        while service.plane.arriving < 200_000:
            await asyncio.sleep(0.005)
        second, to_second = await begin()
        answer = await second.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        to_first.write(body[-1:])
        assert (await first.readline()).startswith(b"HTTP/1.1 200 ")
        assert service.plane.arriving == 0
        _, to_third = await begin()
        while not service.plane.arriving:
            await asyncio.sleep(0.005)
        to_third.transport.abort()
        while service.plane.arriving:
            await asyncio.sleep(0.005)
        for writer in (to_first, to_second):
            writer.close()


async def test_an_error_never_lands_inside_an_event(router: Any, peer: Any, helpers: Any) -> None:
    async def die_in_an_event(request: Any) -> None:
        request.begin_stream()
        request.chunk(b'data: {"b": "' + b"x" * 300_000)
        await request.writer.drain()
        await asyncio.sleep(0.05)
        request.die()

    service = await router(await peer(die_in_an_event))
    async with httpx.AsyncClient(base_url=service.url) as client:
        body = {"model": helpers.MODEL, "messages": [], "stream": True}
        answer = await client.post("/v1/chat/completions", json=body)
    *_, last = [event for event in answer.text.split("\n\n") if event]
    assert json.loads(last.removeprefix("data: "))["error"]["message"]
    assert "[DONE]" not in answer.text


async def test_a_header_that_one_service_reads_may_come_twice_for_all_others(
    router: Any, peer: Any, helpers: Any
) -> None:
    read_also(["x-team"])
    service = await router(await peer())
    body = json.dumps({"model": helpers.MODEL, "messages": []}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-team: a\r\nx-team: b\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    assert (await service.raw(head + body)).startswith(b"HTTP/1.1 200 ")


MANY = 100_000


@pytest.mark.parametrize("colon", [b":", b" :", b"\t:", b"\n: "])
def test_a_body_with_very_many_keys_is_read_and_rewritten_without_keeping_any(colon: bytes) -> None:
    keys = b"".join(b',"%x"%b1' % (number, colon) for number in range(MANY))
    body = b'{"model":"demo/chat","n":"a wrong type","max_tokens":7' + keys + b"}"
    parsed = parse_body(body)
    assert (parsed.model, parsed.n, parsed.max_tokens) == ("demo/chat", None, 7)
    assert body_for("demo/chat", "demo/chat", body) is body
    # What an entry for each key would take is many times this.
    tracemalloc.start()
    try:
        made = with_limit(body_for("smollm2", "demo/chat", body), 5, newer=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body)
    assert json.loads(made) == {**json.loads(body), "model": "smollm2", "max_tokens": 5}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": json.dumps({f"k{number}": number for number in range(MANY)})}],
        [{"role": "user", "content": "x"}] * MANY,
        [{"role": "user", "content": "x", "more": {f"k{number}": 1 for number in range(MANY)}}],
    ],
    ids=["keys inside text", "many messages", "keys inside an object"],
)
def test_a_long_conversation_passes_under_any_of_its_models_names(messages: list[Any]) -> None:
    body = {"model": "demo/chat", "messages": messages}
    made = body_for("smollm2", "demo/chat", json.dumps(body).encode())
    assert json.loads(made) == {**body, "model": "smollm2"}
