"""Traces made for one question each: an hour of one-kilotoken prompts whose rate goes by a rule."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from .arrivals import Arrival, Trace

SECONDS = 3600
RATE = 6.0
"""Requests per second on average, about."""


def _steps(at: float) -> float:
    return RATE * (0.4 if at % 1200 < 600 else 1.6)


def _ramp(at: float) -> float:
    return RATE * (0.3 + 1.4 * (1.0 - abs(2.0 * (at % 1800) / 1800 - 1.0)))


def _cycle(at: float) -> float:
    return RATE * (1.0 - 0.8 * math.cos(2.0 * math.pi * at / 1200))


def _bursts(at: float) -> float:
    return RATE * (2.5 if at % 300 < 45 else 0.6)


RULES: dict[str, Callable[[float], float]] = {"steps": _steps, "ramp": _ramp, "cycle": _cycle, "bursts": _bursts}


def construct(name: str, seed: int = 0) -> Trace:
    """A trace by the name of its rule; arrivals are Poisson, lengths log-normal about 1000 and 200 tokens.

    Raises:
        KeyError: there is no such rule.
    """
    rate = RULES[name]
    chance = random.Random(seed)
    made = []
    at = 0.0
    peak = 3.0 * RATE
    while (at := at + chance.expovariate(peak)) < SECONDS:
        if chance.random() < rate(at) / peak:
            prompt = min(16_000, max(16, round(chance.lognormvariate(math.log(800), 0.7))))
            output = min(2_000, max(1, round(chance.lognormvariate(math.log(150), 0.8))))
            made.append(Arrival(at, prompt, output))
    return Trace(name, tuple(made))
