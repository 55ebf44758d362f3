"""Looks that come round for ever, in the one process that is to look."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""How soon a process notices that it has become the one that looks."""


async def come_round(
    look: Callable[[], Awaitable[object]], *, active: Callable[[], bool], interval: float, failure: str
) -> None:
    """Look now and every `interval` seconds, for ever; one that fails is logged, and the next comes all the same.

    Args:
        active: whether this process is the one that looks.
        interval: seconds from the end of a look to the next one.
        failure: what is logged, with the error, of a look that fails.
    """
    while True:
        if not active():
            await asyncio.sleep(IDLE_SECONDS)
            continue
        try:
            await look()
        except Exception:
            log.exception(failure)
        await asyncio.sleep(interval)
