"""Asks every replica for its load once a second, and finds out whether one that was ejected is back."""

from __future__ import annotations

import asyncio
import logging

import aiohttp

from paceline_router.engines.asking import ask_engine, hear_engine
from paceline_router.flow import loads
from paceline_router.flow.backend import Backend
from paceline_router.flow.dataplane import DataPlane
from paceline_router.flow.health import Event

log = logging.getLogger(__name__)

LOAD_PATH = "/v1/paceline/load"
POLL_SECONDS = 1.0
MAX_BODY = 64 * 1024

BATCH = 8
BATCH_PAUSE = 0.01
"""Seconds between so many polls: a poll costs some 0.4 ms, and thousands at once would hold requests up. Of more than
800 replicas, each is polled more seldom than once a second.
"""


async def poll(plane: DataPlane) -> None:
    """Poll all replicas of the table for ever."""
    timeout = aiohttp.ClientTimeout(total=POLL_SECONDS * 2, sock_connect=plane.settings.connect_timeout)
    # A proxy from the environment is not between a router and its replicas.
    async with aiohttp.ClientSession(
        timeout=timeout, trust_env=False, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        running: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                begun = 0
                for uid, backend in list(plane.backends.items()):
                    if not backend.removed and (uid not in running or running[uid].done()):
                        running[uid] = asyncio.create_task(_ask(session, plane, backend))
                        begun += 1
                        if begun % BATCH == 0:
                            await asyncio.sleep(BATCH_PAUSE)
                for uid in running.keys() - plane.backends.keys():
                    running.pop(uid).cancel()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            for task in running.values():
                task.cancel()


async def _ask(session: aiohttp.ClientSession, plane: DataPlane, backend: Backend) -> None:
    try:
        async with session.get(f"http://{backend.replica.address}{LOAD_PATH}", allow_redirects=False) as response:
            body = await response.content.read(MAX_BODY)
            status = response.status
            header = response.headers.get("x-paceline-load")
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        # The second is what a network policy between the two looks like, or a machine that is gone.
        plane.polled(backend, Event.CONNECT_FAILED)
        return
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        log.debug("no load report from %s: %s", backend.replica.address, exc)
        return
    now = plane.now()
    plane.polled(backend, Event.ALIVE)
    if status in (404, 405, 501):
        await _ask_other_engine(session, plane, backend)
        return
    if status == 503:
        # It starts or stops and says so: its load is not known, and nothing is wrong with the report.
        log.debug("%s does not know its load now", backend.replica.address)
        return
    report = loads.from_header(header.encode("latin-1", "replace")) if header else loads.from_body(body)
    if status == 200 and report is not None:
        backend.hear(report, now)
    else:
        plane.metrics.unusual_reports += 1


async def _ask_other_engine(session: aiohttp.ClientSession, plane: DataPlane, backend: Backend) -> None:
    """It is not one of ours: what it says at `/metrics` has to do."""
    try:
        said = await ask_engine(session, backend.replica.address)
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        log.debug("no metrics from %s: %s", backend.replica.address, exc)
        return
    now = plane.now()
    if said is None or not hear_engine(backend, said, now):
        backend.does_not_report(now)
