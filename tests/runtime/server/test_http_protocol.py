"""What comes before a request is one: heads beyond their bounds, and bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

LIVE = b"GET /health/live HTTP/1.1\r\nhost: a\r\n"


async def exchange(url: str, *pieces: bytes, pause: float = 0.0) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to these bytes, on a connection of their own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
        lines = head.split("\r\n")
        headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines[1:]) if name}
        body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 10)
        if headers.get("connection") == "close":
            assert await asyncio.wait_for(reader.read(), 10) == b""
        return int(lines[0].split()[1]), headers, body
    finally:
        writer.close()


def check_refusal(answer: tuple[int, dict[str, str], bytes], status: int, code: str) -> None:
    assert answer[0] == status
    assert answer[1]["content-type"] == "application/json"
    assert answer[1]["connection"] == "close"
    assert answer[1]["x-request-id"]
    error = json.loads(answer[2])["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)
    assert error["message"]


@pytest.mark.parametrize(
    "head",
    [
        LIVE + b"a: " + b"x" * 66_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 66_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        LIVE + b"".join(b"h%d: %s\r\n" % (n, b"x" * 1000) for n in range(70)) + b"\r\n",
        LIVE + b"a: 1\r\n" * 256 + b"\r\n",
    ],
    ids=["a long header", "a long path", "many bytes", "many lines"],
)
async def test_heads_beyond_the_bounds_are_refused(front_end: Any, head: bytes) -> None:
    async with front_end() as front:
        check_refusal(await exchange(front.url, head), 431, "headers_too_large")


async def test_an_unfinished_header_is_refused_once_it_is_too_long(front_end: Any) -> None:
    async with front_end() as front:
        pieces = [LIVE + b"a: ", *[b"x" * 4096] * 17]
        check_refusal(await exchange(front.url, *pieces, pause=0.001), 431, "headers_too_large")


async def test_an_unfinished_trailer_is_refused_once_it_is_too_long(front_end: Any) -> None:
    async with front_end() as front:
        head = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\na: "
        pieces = [head, *[b"x" * 4096] * 17]
        check_refusal(await exchange(front.url, *pieces, pause=0.001), 431, "headers_too_large")


async def test_heads_within_the_bounds_are_taken_again_and_again(front_end: Any) -> None:
    async with front_end() as front:
        for _ in range(3):
            headers = [("a", "x" * 250)] * 240
            assert (await front.http.get("/health/live", headers=headers)).status_code == 200
            body = b'{"prompt": "fox"' + b" " * 200_000 + b"}"
            answer = await front.http.post("/tokenize", content=body, headers={"a": "x" * 60_000})
            assert answer.status_code == 200


async def test_bodies_in_many_small_chunks_are_no_head(front_end: Any) -> None:
    async with front_end() as front:
        body = b'{"prompt": "fox"' + b" " * 100_000 + b"}"

        async def chunks() -> Any:
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        headers = {"content-type": "application/json", "a": "x" * 60_000}
        answer = await front.http.post("/tokenize", content=chunks(), headers=headers)
        assert answer.json()["tokens"] == front.core.encode("fox")


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", LIVE + b"\x00: 1\r\n\r\n"]
)
async def test_what_is_no_http_is_refused_in_the_form_of_every_error(front_end: Any, sent: bytes) -> None:
    async with front_end() as front:
        check_refusal(await exchange(front.url, sent), 400, "invalid_http")


async def test_an_offered_upgrade_is_passed_over_in_silence(front_end: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with front_end() as front:
        caplog.set_level(logging.INFO)
        offered = LIVE + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
        status, _, _ = await exchange(front.url, offered)
        assert status == 200
        assert "upgrade" not in caplog.text.lower()
