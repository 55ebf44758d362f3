"""Waiting for a service to become something, with progress on standard error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from paceline_kube import JsonObject, KubeClient, KubeError
from paceline_local.progress import INTERVAL_SECONDS, StreamProgress, Waiting

from .connection import away, words_of
from .services import name_of, says, service

T = TypeVar("T")

POLL_SECONDS = 0.25


class TookTooLong(Exception):
    """It did not become so in time; has the last words of the status."""


async def until(
    client: KubeClient, namespace: str, name: str, check: Callable[[JsonObject], bool], timeout: float
) -> tuple[JsonObject, float]:
    """Wait until `check(service)`; the service, and the seconds that it took.

    An API server that is away for a moment is waited for.

    Raises:
        TookTooLong: not within `timeout` seconds.
        Stop: the service was deleted.
    """
    tell = Waiting(StreamProgress())
    began = time.monotonic()
    words = ""
    while True:
        try:
            found = await service(client, namespace, name)
        except KubeError as exc:
            if not away(exc):
                raise
            words = f"the API server does not answer: {words_of(exc)}"
        else:
            if check(found):
                return found, time.monotonic() - began
            words = f"{name_of(found)}: {says(found)}"
        waited = time.monotonic() - began
        if waited >= timeout:
            raise TookTooLong(words)
        tell(waited, words)
        await asyncio.sleep(POLL_SECONDS)


async def patiently(work: Awaitable[T], what: str) -> T:
    """The result of `work`; says what is waited for when it takes longer than two seconds."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=INTERVAL_SECONDS)
        if not done:
            StreamProgress()(f"waiting for the API server: {what}")
        return await task
    finally:
        task.cancel()
