"""The stream of `GET /v1/paceline/demand`: how many requests wait for which service, for whoever starts replicas."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Protocol, TypeVar

T = TypeVar("T")

LOOK_SECONDS = 0.1
AT_LEAST_EVERY = 3.0
"""Seconds after which everything is said again, so that a reader knows that it still hears."""


class Demand(Protocol):
    """What waits for one service."""

    @property
    def service(self) -> str: ...
    @property
    def held(self) -> int: ...
    @property
    def oldest_wait_ms(self) -> int: ...
    @property
    def arrivals(self) -> int: ...


def line(demand: Demand) -> bytes:
    """One line of the stream."""
    fields = {
        "service": demand.service,
        "held": demand.held,
        "oldest_wait_ms": demand.oldest_wait_ms,
        "arrivals": demand.arrivals,
    }
    return json.dumps(fields).encode() + b"\n"


def news(told: Mapping[str, int], found: Iterable[Demand]) -> list[Demand]:
    """Of which services a reader who was told of so many waiting requests does not know how many wait now."""
    return [demand for demand in found if told.get(demand.service) != demand.held]


async def stream(read: Callable[[], Iterable[Demand]]) -> AsyncIterator[bytes]:
    """Lines for ever: all services now and then, and each one when the number of those that wait has changed."""
    told: dict[str, int] = {}
    said_all_at = -AT_LEAST_EVERY
    while True:
        found = list(steady(read))
        now = time.monotonic()
        if now - said_all_at >= AT_LEAST_EVERY:
            told, said_all_at = {}, now
            if not found:
                yield b"\n"  # no service: an empty line, which readers of JSON lines pass over
        for demand in news(told, found):
            told[demand.service] = demand.held
            yield line(demand)
        await asyncio.sleep(LOOK_SECONDS)


def steady(read: Callable[[], T], tries: int = 20) -> T:
    """Read what another thread may change meanwhile: begin again when a dict was caught growing."""
    for _ in range(tries - 1):
        try:
            return read()
        except RuntimeError:
            time.sleep(0)
    return read()
