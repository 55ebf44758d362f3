"""Replicas that err or mean ill, against a whole router: clients get plain words, and nothing but what was filtered."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

STREAM = b'{"model":"smollm2","stream":true}'
SECRET = "q7Zk"
TRAILERS = [
    b"x-a: b\r\nset-cookie: evil=1\r\ncontent-length: 4\r\n",
    b"x-paceline-load: 1\r\n",
]


def ask(body: bytes, version: str = "1.1", headers: bytes = b"") -> bytes:
    head = b"POST /v1/chat/completions HTTP/%b\r\nhost: x\r\nconnection: close\r\n%bcontent-length: %d\r\n\r\n"
    return head % (version.encode(), headers, len(body)) + body


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("trailer", TRAILERS)
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_no_trailer_reaches_a_client(router: Any, peer: Any, kind: str, trailer: bytes, version: str) -> None:
    async def answer(request: Any) -> None:
        request.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n" % kind.encode())
        request.send(b"trailer: x-a\r\ntransfer-encoding: chunked\r\n\r\n")
        request.chunk(b"data: [DONE]\n\n")
        request.send(b"0;x=y\r\n" + trailer + b"\r\n")
        await request.writer.drain()

    service = await router(await peer(answer))
    head, _, body = (await service.raw(ask(STREAM, version))).partition(b"\r\n\r\n")
    whole = b"data: [DONE]\n\n"
    assert body == (b"e\r\n%b\r\n0\r\n\r\n" % whole if b"chunked" in head else whole)
    assert b"trailer" not in head
    assert service.outcomes() == {"2xx": 1}


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01" + SECRET.encode(),
        b"HTTP/1.1 2x0 %b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a b: %b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: %b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%b\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n%b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b"9\r\ndata: x\n\n\r\n%b\r\n",
    ],
    ids=["no HTTP", "status", "header", "length", "coding", "chunk", "trailer", "in a stream"],
)
async def test_bytes_of_a_malformed_head_go_to_the_log_those_of_a_body_nowhere_and_none_to_a_client(
    router: Any, peer: Any, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def err(request: Any) -> None:
        request.send(answer.replace(b"%b", SECRET.encode()))
        await request.writer.drain()
        await request.gone.wait()

    service = await router(await peer(err))
    with caplog.at_level(logging.WARNING):
        raw = await service.raw(ask(STREAM, headers=b"x-paceline-explain: 1\r\n"))
    assert b"malformed" in raw
    assert SECRET.encode() not in raw
    assert b"b'" not in raw
    assert b'b"' not in raw
    told = [message for message in caplog.messages if message.startswith("replica pod-0")]
    in_a_body = b"200 OK\r\ntransfer-encoding: chunked" in answer or b"event-stream" in answer
    assert (SECRET in caplog.text) is not in_a_body
    assert told
    assert all(message.endswith(" bytes") is in_a_body for message in told)


async def test_a_client_reads_in_words_that_its_chunks_are_wrong(router: Any, peer: Any) -> None:
    service = await router(await peer())
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    raw = await service.raw(head + b"no size\r\n")
    message = json.loads(raw.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert message == ("The body does not come in valid chunks: the size of a chunk is not a hexadecimal number.")
