"""Connections to replicas, made when none is idle."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

from paceline_router.wire.upstream import UpstreamConnection, watch_peer

if TYPE_CHECKING:
    from paceline_router.flow.backend import Backend
    from paceline_router.flow.dataplane import DataPlane
    from paceline_router.flow.exchange import Exchange


async def make_connection(plane: DataPlane, backend: Backend, exchange: Exchange) -> None:
    """Connect to a replica for an exchange, which hears `connected` or `connect_failed`. A connection that it does not
    want any longer is kept for another one.
    """
    replica = backend.replica
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(plane.settings.connect_timeout):
            _, connection = await loop.create_connection(
                lambda: UpstreamConnection(backend), replica.host, replica.port
            )
    except (OSError, TimeoutError) as exc:
        plane.metrics.connect_failures += 1
        # The system's words for the number, since an exception's own have addresses in them.
        timeout = isinstance(exc, TimeoutError)
        exchange.connect_failed(backend, "timed out" if timeout else os.strerror(exc.errno or errno.EIO))
        return
    watch_peer(connection.transport)
    if not exchange.connected(connection):
        backend.keep(connection)
