"""The measuring client: bodies in every framing, events cut anywhere, and servers that break off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from paceline_bench.http_client import BrokenAnswer, call, get


@contextlib.asynccontextmanager
async def server(*pieces: bytes) -> AsyncIterator[int]:
    """Answers every request with these bytes, one write each, then closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with running:
        yield running.sockets[0].getsockname()[1]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_events_are_whole_whatever_the_pieces() -> None:
    body = b"data: one\n\n: comment\n\ndata: two\r\n\r\ndata: [DONE]\n\n"
    pieces = [chunk(body[i : i + 7]) for i in range(0, len(body), 7)]
    async with server(HEAD, *pieces, b"0\r\n\r\n") as port, call(port, "POST", "/", {}) as response:
        events = [(at, data) async for at, data in response.events()]
    assert [data for _, data in events] == [b"one", b"two", b"[DONE]"]
    times = [at for at, _ in events]
    assert times == sorted(times)
    assert times[-1] > times[0]


async def test_a_body_of_known_length_and_one_that_ends_with_the_connection() -> None:
    async with server(b"HTTP/1.1 404 No\r\ncontent-length: 5\r\n\r\nhello") as port:
        assert await get(port, "/") == (404, b"hello")
    async with server(b"HTTP/1.1 200 OK\r\n\r\n", b"hel", b"lo") as port:
        assert await get(port, "/") == (200, b"hello")


@pytest.mark.parametrize(
    "pieces",
    [
        (HEAD, chunk(b"data: one\n\n"), b"8\r\ncut"),
        (HEAD, b"no size\r\n"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort",),
        (b"garbage\r\n\r\n",),
        (b"",),
    ],
)
async def test_an_answer_that_breaks_off_is_no_answer(pieces: tuple[bytes, ...]) -> None:
    async with server(*pieces) as port:
        with pytest.raises(BrokenAnswer):
            async with call(port, "GET", "/") as response:
                await response.body()
