"""Carries TCP connections to the backends of one Service port: bytes as they come, both ways, half-closes included."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
from collections import Counter
from collections.abc import Sequence

from paceline_local.serviceproxy.table import Backend

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0


def _reset(transport: asyncio.Transport) -> None:
    linger = struct.pack("ii", 1, 0)  # closing then sends a reset; without it even an abort looks like a proper end
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()


class _Half(asyncio.Protocol):
    """One side of a carried connection. What it receives is written to its `peer`."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: _Half | None = None
        self.ended = False
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.peer is None or self.peer.transport is None or self.transport is None:
            return True
        if self.peer.ended:  # both have said all
            self.transport.close()
            self.peer.transport.close()
        elif self.peer.transport.can_write_eof():
            self.peer.transport.write_eof()  # the other direction may still have much to say
        return True

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        if self.peer is not None and self.peer.transport is not None:
            # A reset has to arrive as one: a client must not take a cut answer for a whole one.
            if error is not None:
                _reset(self.peer.transport)
            else:
                self.peer.transport.close()


class _Client(_Half):
    """The side of the client; starts looking for a backend as soon as it is connected."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()  # until there is somebody to read for
        self._relay.serve(self)


class Relay:
    """Listens on one address and port. `backends` may be replaced at any time and counts for new connections."""

    def __init__(self, backends: Sequence[Backend] = ()) -> None:
        self.backends = tuple(backends)
        self.open: Counter[Backend] = Counter()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: str, port: int) -> int:
        """Start listening; returns the port, which is another one only where `port` is 0.

        Raises:
            OSError: It cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), address, port, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take no new connections; the open ones go on."""
        if self._server is not None:
            self._server.close()

    def serve(self, client: _Client) -> None:
        """Find a backend for a new connection and carry it until both sides have ended."""
        task = asyncio.create_task(self._carry(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def order(self) -> list[Backend]:
        """Backends in the order to try them: fewest open connections first, equal ones in random order."""
        shuffled = random.sample(self.backends, len(self.backends))
        return sorted(shuffled, key=lambda backend: self.open[backend])

    async def _carry(self, client: _Client) -> None:
        assert client.transport is not None
        for backend in self.order():
            self.open[backend] += 1
            try:
                upstream = await self._connect(backend)
                if upstream is None:
                    continue
                client.peer, upstream.peer = upstream, client
                if client.closed.done():
                    assert upstream.transport is not None
                    upstream.transport.close()
                    return
                client.transport.resume_reading()
                await client.closed
                await upstream.closed
                return
            finally:
                self.open[backend] -= 1
                if not self.open[backend]:
                    del self.open[backend]
        client.transport.abort()

    async def _connect(self, backend: Backend) -> _Half | None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, half = await asyncio.get_running_loop().create_connection(_Half, *backend)
        except (OSError, TimeoutError) as error:
            log.info("backend %s:%d: %s", *backend, error)
            return None
        return half
