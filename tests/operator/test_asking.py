"""Asking a replica: whatever it answers, it is an answer or a reason, and never a wait without end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from paceline_operator.drift.asking import ask
from paceline_operator.drift.replicas import Replicas

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def replica(answer: bytes, *, close: bool = True) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that says the same to everyone. Gives its port and what it was asked."""
    heard: list[bytes] = []
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writers.append(writer)
        if close:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        for writer in writers:
            writer.close()
        server.close()


async def test_an_answer_is_read_to_its_length_though_the_connection_stays_open() -> None:
    text = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: 2\r\n\r\n{}'
    async with replica(text, close=False) as (port, heard):
        answer = await ask("127.0.0.1", port, "/config", {"if-none-match": '"b"'}, 100)
    assert (answer.status, answer.headers["etag"], answer.body) == (200, '"a"', b"{}")
    assert heard[0].startswith(b"GET /config HTTP/1.0\r\nhost: 127.0.0.1:")
    assert b'\r\nif-none-match: "b"\r\n' in heard[0]


async def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    async with replica(b"HTTP/1.0 200 OK\r\n\r\n{}") as (port, _):
        assert (await ask("127.0.0.1", port, "/", {}, 100)).body == b"{}"


async def test_not_modified_has_no_body_to_wait_for() -> None:
    async with replica(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 700\r\n\r\n", close=False) as (port, _):
        assert (await ask("127.0.0.1", port, "/", {}, 100)).status == 304


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n", "longer than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, "longer than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", "many"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 40_000 + b"\r\n\r\n", "head of its answer"),
    ],
)
async def test_what_is_no_answer_is_refused_with_a_reason(answer: bytes, words: str) -> None:
    async with replica(answer) as (port, _):
        with pytest.raises(ValueError, match=words):
            await ask("127.0.0.1", port, "/", {}, 100)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"])
async def test_an_answer_that_is_cut_is_told_as_one(answer: bytes) -> None:
    async with replica(answer) as (port, _):
        with pytest.raises(OSError, match="cut"):
            await ask("127.0.0.1", port, "/", {}, 100)


async def test_a_server_of_the_usual_kind_is_understood(unused_tcp_port: int) -> None:
    async def config(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps({"model": "m"}).encode())
        return response

    application = web.Application()
    application.router.add_get("/v1/paceline/config", config)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
        pod = {
            "metadata": {"name": "a", "uid": "a", "resourceVersion": "1"},
            "spec": {
                "containers": [{"name": "runtime", "ports": [{"name": "metrics", "containerPort": unused_tcp_port}]}]
            },
            "status": {"podIP": "127.0.0.1"},
        }
        reports = await Replicas(lambda: 0.0).ask(("demo", "chat"), [pod])
        assert reports["a"].config == {"model": "m"}
    finally:
        await runner.cleanup()
