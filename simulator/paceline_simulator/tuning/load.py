"""Loads whose kind changes: a chat that goes on all the time, and documents that are read now and then beside it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline_simulator.engine import Request

PHASE = 1200.0
"""Seconds without documents, and then as many with them."""


@dataclass(frozen=True)
class Kind:
    """Requests of one kind: how many per second, and the medians of their tokens (log-normal)."""

    rate: float
    prompt: int
    output: int


CHAT = Kind(3.0, 400, 250)
QUIET = Kind(0.0, 1, 1)

LOADS = {
    "chat": (CHAT, QUIET),
    "documents": (CHAT, Kind(1.0, 10_000, 150)),
    "many documents": (CHAT, Kind(1.7, 10_000, 150)),
}
"""By name: what comes all the time, and what comes every other phase. On one replica of the 8B model."""


def requests(name: str, seconds: float, seed: int) -> list[Request]:
    """A load's requests, in the order of their arrival."""
    always, sometimes = LOADS[name]
    chance = random.Random(seed)
    drawn = [*_draw(always, seconds, chance, lambda at: True)]
    drawn += _draw(sometimes, seconds, chance, lambda at: at % (2.0 * PHASE) >= PHASE)
    return [Request(number, *one, (), bytes) for number, one in enumerate(sorted(drawn))]


def _draw(
    kind: Kind, seconds: float, chance: random.Random, when: Callable[[float], bool]
) -> Iterator[tuple[float, int, int]]:
    at = 0.0
    while kind.rate and (at := at + chance.expovariate(kind.rate)) < seconds:
        if when(at):
            prompt, output = (
                max(1, round(chance.lognormvariate(math.log(median), 0.5))) for median in (kind.prompt, kind.output)
            )
            yield at, prompt, output
