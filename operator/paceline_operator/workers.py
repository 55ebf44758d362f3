"""Workers: take a key, reconcile it, and decide when it comes back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from paceline_kube import ApiError, Conflict, Key, KubeError, Unreachable

from .guard import NotLeader
from .metrics import Metrics
from .queue import WorkQueue

log = logging.getLogger(__name__)

Reconcile: TypeAlias = Callable[[str, str], Awaitable[float | None]]

PASS_SECONDS = 120.0
"""A pass that takes longer is cut off and tried again: it must not hold its key for ever."""


async def work(
    queue: WorkQueue[Key],
    reconcile: Reconcile,
    metrics: Metrics,
    *,
    pass_seconds: float = PASS_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """One worker, until the queue is closed; the pass under way then is finished first."""
    while (key := await queue.get()) is not None:
        started = clock()
        try:
            async with asyncio.timeout(pass_seconds):
                again = await reconcile(*key)
        except Exception as exc:
            _failed(queue, key, exc, metrics)
        else:
            metrics.reconciles.labels("success").inc()
            queue.forget(key)
            if again is not None:
                queue.add_after(key, again)
        finally:
            metrics.seconds.observe(clock() - started)
            queue.done(key)


def _failed(queue: WorkQueue[Key], key: Key, exc: Exception, metrics: Metrics) -> None:
    name = "/".join(key)
    asked = exc.retry_after if isinstance(exc, ApiError) and exc.retry_after is not None else 0.0
    delay = queue.add_failed(key, at_least=asked)
    if isinstance(exc, Conflict):
        # Another writer was first: normal, and settled by looking again.
        metrics.reconciles.labels("conflict").inc()
        log.info("%s: %s; again in %.1f s", name, exc, delay)
        return
    if isinstance(exc, NotLeader):
        metrics.reconciles.labels("not_leader").inc()
        log.info("%s: %s", name, exc)
        return
    metrics.reconciles.labels("error").inc()
    metrics.errors.labels(error_reason(exc)).inc()
    if isinstance(exc, KubeError | TimeoutError):
        log.warning("%s: %s; again in %.1f s", name, str(exc) or "the pass took too long", delay)
    else:
        log.exception("%s: unexpected error; again in %.1f s", name, delay, exc_info=exc)


def error_reason(exc: Exception) -> str:
    """A short word for a metric's label, from a small set."""
    match exc:
        case ApiError(reason=reason, status=status):
            return reason or str(status)
        case Unreachable():
            return "Unreachable"
        case TimeoutError():
            return "Timeout"
        case _:
            return type(exc).__name__
