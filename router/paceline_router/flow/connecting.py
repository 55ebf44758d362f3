"""Connections to replicas, made when none is idle."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from typing import TYPE_CHECKING

from paceline_router.wire.upstream import UpstreamConnection, watch_peer

if TYPE_CHECKING:
    from paceline_router.flow.backend import Backend
    from paceline_router.flow.dataplane import DataPlane
    from paceline_router.flow.exchange import Exchange

log = logging.getLogger(__name__)


def words_of(exc: OSError) -> str:
    """Why a connection could not be made, for clients: an exception's own words have addresses in them."""
    if isinstance(exc, TimeoutError):
        return "timed out"
    if isinstance(exc, socket.gaierror):
        # Its numbers are not those of the system's errors.
        return "its host name cannot be resolved"
    return os.strerror(exc.errno or errno.EIO)


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
        if isinstance(exc, socket.gaierror):
            log.warning(
                "the host name %s of replica %s cannot be resolved (%s): correct its url in the routes file, or what "
                "this host asks for names",
                replica.host,
                replica.name,
                exc.strerror,
            )
        exchange.connect_failed(backend, words_of(exc))
        return
    watch_peer(connection.transport)
    if not exchange.connected(connection):
        backend.keep(connection)
