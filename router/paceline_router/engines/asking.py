"""Asks a replica of another engine for its load, and gives it to whoever chooses."""

from __future__ import annotations

import logging

import aiohttp

from paceline_router.choice.load import ReplicaLoad
from paceline_router.engines.load import MAX_PAGE, METRICS_PATH, EngineLoad, load_from_metrics

log = logging.getLogger(__name__)


async def ask_engine(session: aiohttp.ClientSession, address: str) -> EngineLoad | None:
    """What the replica at `host:port` says at `/metrics`; None when it has no such page, or one that tells nothing.

    Raises:
        aiohttp.ClientError, TimeoutError, OSError: it does not answer.
    """
    async with session.get(f"http://{address}{METRICS_PATH}", allow_redirects=False) as response:
        if response.status != 200:
            return None
        page = bytearray()
        async for part in response.content.iter_any():
            page += part
            if len(page) > MAX_PAGE:
                log.debug("the metrics of %s are longer than %d bytes", address, MAX_PAGE)
                return None
    return load_from_metrics(bytes(page))


def hear_engine(load: ReplicaLoad, said: EngineLoad, now: float) -> bool:
    """Take what an engine said of its load; False when it did not say how many requests it has.

    Pages have no number of their own. Questions to one replica do not overlap, so the time is one.
    """
    requests = said.requests
    if requests is None:
        return False
    sequence = int(now * 1000.0)
    return load.report(requests, sequence, now, kv_percent=said.kv_percent, context=said.context_tokens)
