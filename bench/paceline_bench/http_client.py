"""A client for measuring: HTTP/1.1 over asyncio streams, one connection per request, a time for each event.

It does as little as possible, because it shares the machine with the server that it measures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LIMIT_BYTES = 1 << 22
DONE = b"[DONE]"


class BrokenAnswer(Exception):
    """The server closed the connection in the middle of an answer, or sent what is no HTTP."""


@dataclass
class Response:
    """An answer whose head has been read.

    Attributes:
        status: HTTP status.
        headers: names in lower case.
    """

    status: int
    headers: dict[str, str]
    _reader: asyncio.StreamReader = field(repr=False)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            BrokenAnswer: it ends too early.
        """
        reader = self._reader
        try:
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    yield (await reader.readexactly(size + 2))[:-2]
                await reader.readuntil(b"\r\n")
            elif "content-length" in self.headers:
                yield await reader.readexactly(int(self.headers["content-length"]))
            else:
                while piece := await reader.read(1 << 16):
                    yield piece
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise BrokenAnswer(f"{type(error).__name__}: {error}") from error

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[tuple[float, bytes]]:
        """`data:` events of a stream with the time at which each was here, `[DONE]` among them.

        Times are seconds of `time.perf_counter()`.
        """
        rest = b""
        async for piece in self.pieces():
            now = time.perf_counter()
            *events, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                if event.startswith(b"data:"):
                    yield now, event[5:].strip()


@contextlib.asynccontextmanager
async def call(
    port: int,
    method: str,
    path: str,
    body: bytes | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    receive_buffer: int | None = None,
) -> AsyncIterator[Response]:
    """Send a request to a server on this machine; the connection is cut at the end of the block, wherever it is.

    Args:
        port: on 127.0.0.1.
        method: `GET` or `POST`.
        path: with a slash before it.
        body: bytes as they are, or what is sent as JSON.
        headers: beside those that HTTP needs.
        receive_buffer: most unread bytes of the answer that are kept here; a small one makes a slow reader felt.

    Raises:
        OSError: nobody listens there.
        BrokenAnswer: no HTTP came back.
    """
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    limit = LIMIT_BYTES if receive_buffer is None else receive_buffer
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{port}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(data)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split(" ")[1])
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, IndexError) as error:
            raise BrokenAnswer(f"{type(error).__name__}: {error}") from error
        found = (line.partition(":") for line in head[1:] if line)
        yield Response(status, {name.lower(): value.strip() for name, _, value in found}, reader)
    finally:
        writer.transport.abort()


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    async with call(port, "GET", path) as response:
        return response.status, await response.body()
