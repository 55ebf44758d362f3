"""Server-sent events on plain ASGI: no status line before the first event, no buffer between token and socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE: Final = b"data: [DONE]\n\n"
HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def event(body: msgspec.Struct | bytes) -> bytes:
    """One event. JSON has no raw line breaks, so it is always a single `data:` line."""
    return b"data: " + (body if isinstance(body, bytes) else msgspec.json.encode(body)) + b"\n\n"


def comment(body: msgspec.Struct | Mapping[str, msgspec.Struct]) -> bytes:
    """A line that clients of server-sent events pass over; for who reads the bytes on their way."""
    return b": " + msgspec.json.encode(body) + b"\n\n"


class EventStream(Response):
    """Sends the pieces of an iterator as they come; the first one is already there when the answer starts.

    Args:
        first: the first events.
        rest: the further ones; it ends the stream by itself.
        headers: of the answer, besides those of every stream.
        close: called at the end, whatever happened before: the client may be gone before `rest` was even begun.
    """

    def __init__(
        self,
        first: bytes,
        rest: AsyncIterator[bytes],
        close: Callable[[], None],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._first = first
        self._rest = rest
        self._close = close
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({**HEADERS, **headers})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Only the given headers: a stream has no length."""
        self.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in self._rest:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._close()
