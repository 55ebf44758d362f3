"""One connection from a client: reads requests within bounds and serves them one after the other."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, cast

from paceline_crds import errors
from paceline_router.wire.answers import Refusal, unavailable
from paceline_router.wire.chunks import ChunkError, ChunkWalker, dechunk
from paceline_router.wire.request_head import CHUNKED, check_beginning, read_head

if TYPE_CHECKING:
    from paceline_router.wire.parties import Pending, Serving
    from paceline_router.wire.requests import Request

MAX_AHEAD: Final = 64 * 1024
"""Bytes a client may have sent ahead, while it is being answered, before it is no longer read from."""

LINGER_SECONDS: Final = 1.0
"""How long the rest of a refused body is read and dropped, so that the client gets to read the answer before a
reset.
"""

CHUNK_OVERHEAD: Final = 64 * 1024
CHUNK_OVERHEAD_SHARE: Final = 16
"""A body in chunks may have so many bytes that are no payload, and one more for each `CHUNK_OVERHEAD_SHARE` that are:
chunks of a single byte cost the router far more than their sender.
"""

RETRY_AFTER_FULL: Final = 1

_HEAD_END: Final = b"\r\n\r\n"
_CARRIAGE_RETURN: Final = 13
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)*")


class ClientConnection(asyncio.Protocol):
    """A server of HTTP/1.1. Requests are read and answered one after the other; what a client sends ahead waits as
    bytes. While a request is being answered, the end of the connection means that the client no longer wants it.
    """

    __slots__ = (
        "_ahead",
        "_body",
        "_counted",
        "_left",
        "_paused_reading",
        "_plane",
        "_raw_bytes",
        "_request",
        "_walker",
        "active",
        "closed",
        "reading",
        "since",
        "transport",
        "unwritable_since",
    )

    def __init__(self, plane: Serving) -> None:
        self._plane = plane
        self._ahead = b""
        """Bytes that have not been read as a request: the beginning of a head, or all that came too early."""
        self._request: Request | None = None
        """Its head has been read, its body is still arriving."""
        self._body = bytearray()
        self._counted = 0
        self._left = 0
        self._raw_bytes = 0
        self._walker: ChunkWalker | None = None
        self._paused_reading = False
        self.active: Pending | None = None
        self.closed = False
        """Nothing that arrives is read any more."""
        self.reading = False
        """A request has begun to arrive and is not complete."""
        self.since = plane.now()
        """When it began, or when the connection fell idle (monotonic seconds)."""
        self.unwritable_since: float | None = None
        """Since when the client has not read what was sent to it."""
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        plane = self._plane
        self.transport.set_write_buffer_limits(high=plane.settings.write_buffer_bytes)
        if len(plane.clients) < plane.settings.max_client_connections:
            plane.clients.add(self)
        else:
            refusal = unavailable("The router has as many connections as it can take.", RETRY_AFTER_FULL, close=True)
            plane.serve(self, refusal)

    def data_received(self, data: bytes) -> None:
        if self.active is not None or self.unwritable_since is not None:
            self._keep_ahead(data)
        elif self.closed:
            pass  # the rest of what has been refused
        elif self._ahead:
            ahead, self._ahead = self._ahead, b""
            self._read(ahead + data, max(0, len(ahead) - len(_HEAD_END) + 1))
        elif self._request is not None:
            self._read(data)
        else:
            rest = self._read_head(data, 0)
            if rest:
                self._take_rest(rest)

    def eof_received(self) -> None:
        # A half-closed connection cannot be told from a client that has gone, and the engine's time is dear.
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._ahead = b""
        self._forget_body()
        self._plane.clients.discard(self)
        if self.active is not None:
            exchange, self.active = self.active, None
            exchange.cancel()

    def pause_writing(self) -> None:
        self.unwritable_since = self._plane.now()
        if self.active is not None:
            self.active.pause()

    def resume_writing(self) -> None:
        self.unwritable_since = None
        if self.active is not None:
            self.active.resume()
        elif self._ahead:
            self._go_on()

    # Reading

    def _keep_ahead(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > MAX_AHEAD and not self._paused_reading:
            self._paused_reading = True
            self.transport.pause_reading()

    def _go_on(self) -> None:
        """Read what came while an answer was being sent."""
        if self._paused_reading:
            self._paused_reading = False
            self.transport.resume_reading()
        data, self._ahead = self._ahead, b""
        self._read(data)

    def _read(self, data: bytes, searched: int = 0) -> None:
        """Read and serve what is complete in `data`, one request after the other. No head ends before `searched`."""
        rest = self._read_head(data, searched) if self._request is None else self._read_body(self._request, data)
        if rest:
            self._take_rest(rest)

    def _take_rest(self, data: bytes) -> None:
        """Go on behind what has been read, as soon as that is answered."""
        while data and not self.closed:
            if self.active is not None or self.unwritable_since is not None:
                self._keep_ahead(data)
                return
            data = self._read_head(data, 0) if self._request is None else self._read_body(self._request, data)

    def _read_head(self, data: bytes, searched: int) -> bytes:
        """Read a head, and the request's body if it is all there. Returns what comes after."""
        if data[0] == _CARRIAGE_RETURN:
            # Empty lines before a request are passed over (RFC 9112, 2.2).
            begin = _EMPTY_LINES.match(data).end()  # type: ignore[union-attr]
            data = data[begin:]
            searched = max(0, searched - begin)
        end = data.find(_HEAD_END, searched)
        if end < 0:
            self._read_part_of_head(data)
            return b""
        plane = self._plane
        settings = plane.settings
        try:
            if end > settings.max_head_bytes:
                raise _head_too_large(settings.max_head_bytes)
            request = read_head(data[:end])
            if request.length > settings.max_body_bytes:
                raise _body_too_large(settings.max_body_bytes)
        except Refusal as refusal:
            self._refuse(refusal)
            return b""
        begin = end + 4
        body_end = begin + request.length
        if request.length < 0 or body_end > len(data):
            self._begin_body(request, body_follows=begin < len(data))
            return data[begin:]
        self.reading = False
        request.body = data[begin:body_end]
        request.received_at = plane.now()
        plane.serve(self, request)
        return data[body_end:]

    def _read_part_of_head(self, data: bytes) -> None:
        """Keep the beginning of a head, unless it shows already that it will never be a valid one."""
        limit = self._plane.settings.max_head_bytes
        try:
            if len(data) > limit + len(_HEAD_END) - 1:
                raise _head_too_large(limit)
            check_beginning(data)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        self._ahead = data
        if data:
            self._begin_reading()

    def _begin_reading(self) -> None:
        if not self.reading:
            self.reading = True
            self.since = self._plane.now()

    def _begin_body(self, request: Request, *, body_follows: bool) -> None:
        self._request = request
        self._left = request.length
        self._raw_bytes = 0
        self._walker = ChunkWalker() if request.length == CHUNKED else None
        self._begin_reading()
        if request.expects and not body_follows:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_body(self, request: Request, data: bytes) -> bytes:
        """Read more of a body, and serve the request when that was all. Returns what comes after."""
        walker = self._walker
        body = self._body
        if walker is None:
            if len(data) < self._left:
                body += data
                self._left -= len(data)
                self._hold(len(body))
                return b""
            rest = data[self._left :]
            if body:
                body += data[: self._left]
                request.body = bytes(body)
            else:
                request.body = data[: self._left]
        else:
            try:
                body += dechunk(walker.feed(data))
                self._raw_bytes += len(data)
                if self._raw_bytes - walker.held > len(body) + len(body) // CHUNK_OVERHEAD_SHARE + CHUNK_OVERHEAD:
                    raise ChunkError("there are too many small ones")
                if len(body) + walker.held > self._plane.settings.max_body_bytes:
                    raise _body_too_large(self._plane.settings.max_body_bytes)
            except ChunkError as exc:
                self._refuse(Refusal(400, f"The body does not come in valid chunks: {exc}.", close=True))
                return b""
            except Refusal as refusal:
                self._refuse(refusal)
                return b""
            if not walker.finished:
                self._hold(len(body) + walker.held)
                return b""
            rest = walker.surplus
            request.body = bytes(body)
        self._forget_body()
        request.received_at = self._plane.now()
        self._plane.serve(self, request)
        return rest

    def _hold(self, size: int) -> None:
        """Count what has come of a body towards what all of them may take: whose it is is not known before its end."""
        plane = self._plane
        plane.arriving += size - self._counted
        self._counted = size
        if plane.arriving > plane.settings.max_arriving_bytes:
            self._refuse(_too_much_arrives())

    def _forget_body(self) -> None:
        if self._counted:
            self._plane.arriving -= self._counted
            self._counted = 0
        self._request = None
        self._walker = None
        self._body = bytearray()
        self.reading = False

    def _refuse(self, refusal: Refusal) -> None:
        self._forget_body()
        self._plane.serve(self, refusal)

    # Serving

    def done(self, keep_alive: bool, now: float | None = None) -> None:
        """The answer to the present request has been written in full, `now`, if the caller has looked at the clock."""
        self.active = None
        self.since = self._plane.now() if now is None else now
        if not keep_alive:
            self.closed = True
            self.transport.close()
            return
        if self._ahead and self.unwritable_since is None:
            self._go_on()

    def close_if_idle(self) -> None:
        """Close unless a request is being received or answered. One that was closed long ago and is still there has a
        client that does not read the end of its answer.
        """
        if self.closed:
            if self._plane.now() - self.since > self._plane.settings.keep_alive_timeout:
                self.transport.abort()
        elif self.active is None and not self._ahead and not self.reading:
            self.closed = True
            self.transport.close()

    def linger(self) -> None:
        """Close once the client has had time to read the answer, dropping what it still sends."""
        self.closed = True
        if self._paused_reading:
            self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self.transport.abort)

    def refuse_slow(self) -> None:
        """The request takes too long to arrive."""
        self._refuse(Refusal(408, "The request did not arrive in time.", close=True))


def _head_too_large(limit: int) -> Refusal:
    return Refusal(431, f"The request's headers are larger than {limit} bytes.", close=True)


def _too_much_arrives() -> Refusal:
    return Refusal(
        503,
        "Too many request bodies are arriving at once.",
        type=errors.UNAVAILABLE,
        retry_after=1,
        close=True,
    )


def _body_too_large(limit: int) -> Refusal:
    return Refusal(413, f"The request body is larger than {limit} bytes.", code="request_too_large", close=True)
