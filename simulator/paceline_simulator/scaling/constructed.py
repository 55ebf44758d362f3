"""Traces made for one question each: hours or days of five-kilotoken prompts whose rate goes by a rule.

At the peak some ten replicas of `setup`'s large model are needed; quiet times are some ten minutes long (hours, of a
`day`), many times a start of 90 s. For slower starts time is stretched: rates stay what they are, all lasts longer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TypeAlias

from .arrivals import Arrival, Trace

SECONDS = 7200.0
DAY = 86400.0
PEAK = 6.5
"""Requests per second at the highest."""

Rule: TypeAlias = Callable[[float], float]
"""The share of the peak at a time, in seconds."""


def _steps(at: float) -> float:
    """Two levels, each for ten minutes."""
    return 0.25 if at % 1200.0 < 600.0 else 1.0


def _ramp(at: float) -> float:
    """Straight up in ten minutes and straight down again in ten."""
    return 0.2 + 0.8 * (1.0 - abs(2.0 * (at % 1200.0) / 1200.0 - 1.0))


def _cycle(at: float) -> float:
    """A sine of twenty minutes, as a day that goes by quickly."""
    return 0.55 - 0.45 * math.cos(2.0 * math.pi * at / 1200.0)


def _day(seed: int, length: float) -> Rule:
    """A working day after the other: quiet at night, highest before and after noon; some days have more than others."""
    chance = random.Random(seed)
    days = [chance.uniform(0.8, 1.0) for _ in range(1 + int(length // DAY))]

    def share(at: float) -> float:
        hour = at % DAY / 3600.0
        height = 0.1 + 0.75 * _bell(hour, 10.5, 1.7) + 0.85 * _bell(hour, 15.5, 2.2) + 0.3 * _bell(hour, 20.5, 1.8)
        return min(1.0, days[int(at // DAY)] * height)

    return share


def _bell(hour: float, middle: float, width: float) -> float:
    return math.exp(-(((hour - middle) / width) ** 2) / 2.0)


def _bursts(seed: int, length: float) -> Rule:
    """A quarter of the peak, and now and then the peak for one to three minutes: at random, some six an hour."""
    chance = random.Random(seed)
    spans = []
    at = 0.0
    while at < length:
        start = at + 120.0 + chance.expovariate(1.0 / 360.0)
        at = start + chance.uniform(60.0, 180.0)
        spans.append((start, at))
    return lambda now: 1.0 if any(start <= now < end for start, end in spans) else 0.25


def _always(rule: Rule) -> Callable[[int, float], Rule]:
    return lambda _seed, _length: rule


RULES: dict[str, Callable[[int, float], Rule]] = {
    "steps": _always(_steps),
    "ramp": _always(_ramp),
    "cycle": _always(_cycle),
    "bursts": _bursts,
    "day": _day,
}
"""By name: the rule for a seed and a length in seconds."""


def construct(name: str, seed: int = 0, stretch: float = 1.0, seconds: float = SECONDS) -> Trace:
    """A trace by the name of its rule; arrivals are Poisson, lengths log-normal about 5000 and 400 tokens.

    Args:
        stretch: everything lasts so many times as long, at the same rates.
        seconds: how much of it.

    Raises:
        KeyError: there is no such rule.
    """
    rule = RULES[name](seed, seconds / stretch)
    chance = random.Random(seed)
    made = []
    at = 0.0
    while (at := at + chance.expovariate(PEAK)) < seconds:
        if chance.random() < rule(at / stretch):
            prompt = min(16_000, max(16, round(chance.lognormvariate(math.log(4400), 0.5))))
            output = min(2_000, max(1, round(chance.lognormvariate(math.log(330), 0.6))))
            made.append(Arrival(at, prompt, output))
    return Trace(name if stretch == 1.0 else f"{name} x{stretch:g}", tuple(made))
