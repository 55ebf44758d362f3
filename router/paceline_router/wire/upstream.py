"""One connection to a replica: sends a request, finds the end of its answer, and is used again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Final, cast

from paceline_router.wire.chunks import ChunkError, ChunkWalker
from paceline_router.wire.response_head import HeadError, ResponseHead, check_beginning, read_head

if TYPE_CHECKING:
    from paceline_router.flow.backend import Backend
    from paceline_router.wire.parties import Hearing

log = logging.getLogger(__name__)

MAX_HEAD: Final = 64 * 1024
MAX_EARLY_HEADS: Final = 8
"""Informational answers (1xx) before the answer proper."""

# Where in an answer a connection is, and what ends its body. Plain numbers: they are looked at for every piece.
_HEAD: Final = 0
_LENGTH: Final = 1
_CHUNKED: Final = 2
_CLOSE: Final = 3

_HEAD_END: Final = b"\r\n\r\n"

_NO_CHUNKS: Final = ChunkWalker()
"""Stands for the walker of an answer that is not in chunks. It is given nothing."""

KEEPALIVE_IDLE: Final = 15
KEEPALIVE_INTERVAL: Final = 5
KEEPALIVE_COUNT: Final = 3


def watch_peer(transport: asyncio.Transport) -> None:
    """Let the kernel find out within half a minute that a replica's machine is gone.

    A generation may be silent for minutes, so silence says nothing, and a machine without power sends no reset.
    """
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", (KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_COUNT) * 1000),
    ):
        number = getattr(socket, option, None)  # these are Linux's names
        if number is not None:
            raw.setsockopt(socket.IPPROTO_TCP, number, value)


class UpstreamConnection(asyncio.Protocol):
    """A client of HTTP/1.1 for one request at a time.

    What arrives is handed to the exchange: `on_head`, `on_data`, `on_end`, or `on_broken`. Chunked bodies go
    through a `ChunkWalker` and come out as whole chunks, still chunked.
    """

    __slots__ = (
        "_ahead",
        "_closing",
        "_early_heads",
        "_left",
        "_state",
        "_walker",
        "backend",
        "exchange",
        "reused",
        "transport",
        "unheard",
    )

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.exchange: Hearing | None = None
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.reused = False
        """The connection has carried a request before."""
        self.unheard = False
        """It has ended without a byte of an answer to its last request."""
        self._closing = False
        self._ahead = b""
        """The beginning of a head that is not complete."""
        self._early_heads = 0
        self._left = 0
        self._walker = _NO_CHUNKS
        self._state = _HEAD

    @property
    def events(self) -> int:
        """Server-sent events of the present or last answer that have been handed on; 0 where it is no stream."""
        return self._walker.events

    @property
    def tail(self) -> bytes:
        """A piece of the present or last answer that has the last event of a stream, for `usage_of`."""
        return self._walker.tail

    def send(self, exchange: Hearing, data: bytes) -> None:
        """Begin a request. The connection must be idle."""
        self.exchange = exchange
        self._state = _HEAD
        self._walker = _NO_CHUNKS
        self.transport.write(data)

    def close(self) -> None:
        """Close at once; the replica sees its client go. The exchange hears no more."""
        self.exchange = None
        self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            # Nothing was asked for: whatever this is, the next answer could not be told from it.
            self.transport.abort()
            return
        state = self._state
        try:
            if state == _CHUNKED:
                walker = self._walker
                whole = walker.feed(data)
                if whole:
                    exchange.on_data(whole)
                if walker.finished and self.exchange is exchange:
                    self._finish(exchange, reusable=not walker.surplus)
            elif state == _HEAD:
                self._read_head(exchange, data)
            elif state == _LENGTH:
                self._read_length(exchange, data)
            else:
                exchange.on_data(data)
        except (HeadError, ChunkError) as exc:
            if exc.found:
                # What is found in a body may be somebody's answer; heads are the replica's own.
                found = repr(exc.found) if isinstance(exc, HeadError) else f"{len(exc.found)} bytes"
                log.warning("replica %s: its answer is malformed: %s: %s", self.backend.replica.name, exc, found)
            self._break(exchange, f"its answer is malformed: {exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        exchange = self.exchange
        if exchange is None:
            with contextlib.suppress(ValueError):
                self.backend.idle.remove(self)
            return
        self.exchange = None
        if self._state == _CLOSE and exc is None:
            exchange.on_end()
        else:
            self.unheard = self._state == _HEAD and not self._ahead and not self._early_heads
            what = "it closed the connection" if exc is None else "the connection broke"
            exchange.on_broken(self, f"{what} before its answer was complete")

    # Reading

    def _read_head(self, exchange: Hearing, data: bytes) -> None:
        if self._ahead:
            data = self._ahead + data
            self._ahead = b""
        end = data.find(_HEAD_END)
        if end < 0:
            check_beginning(data)
            if len(data) > MAX_HEAD:
                raise HeadError("its headers are too long")
            self._ahead = data
            return
        head = read_head(data[:end])
        body = data[end + 4 :]
        if head.status < 200:
            self._read_early_head(exchange, head, body)
            return
        self._closing = head.closing
        exchange.on_head(self, head)
        if self.exchange is not exchange:
            return
        length = head.length
        if length is not None:
            if len(body) == length:
                self._finish(exchange, True, body)
            else:
                self._state = _LENGTH
                self._left = length
                self._read_length(exchange, body)
            return
        if head.chunked:
            self._state = _CHUNKED
            self._walker = ChunkWalker(events=head.sse and not head.encoded)
        else:
            self._state = _CLOSE
        if body:
            self.data_received(body)

    def _read_early_head(self, exchange: Hearing, head: ResponseHead, rest: bytes) -> None:
        """Pass over an informational answer."""
        self._early_heads += 1
        if head.status == 101 or self._early_heads > MAX_EARLY_HEADS:
            raise HeadError(f"an answer with status {head.status} was not asked for")
        if rest:
            self._read_head(exchange, rest)

    def _read_length(self, exchange: Hearing, data: bytes) -> None:
        left = self._left - len(data)
        if left > 0:
            self._left = left
            if data:
                exchange.on_data(data)
        elif left == 0:
            self._finish(exchange, True, data)
        else:
            self._finish(exchange, False, data[:left])

    def _finish(self, exchange: Hearing, reusable: bool, last: bytes = b"") -> None:
        self.exchange = None
        self._early_heads = 0
        if reusable and not self._closing:
            self.reused = True
            if not self.transport.is_reading():
                # The client's buffer filled up with the very last bytes.
                self.transport.resume_reading()
            self.backend.keep(self)
        else:
            self.transport.abort()
        exchange.on_end(last)

    def _break(self, exchange: Hearing, reason: str) -> None:
        if self.exchange is exchange:
            self.exchange = None
            self.transport.abort()
            exchange.on_broken(self, reason)
