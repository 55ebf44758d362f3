"""What two versions do, as it is drawn: load, latencies, errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline_crds.sketch import EDGES, Sketch
from paceline_shadow_traffic.evidence import Seen, Signal, Window
from paceline_shadow_traffic.share import Share

TTFT, TPOT = (0.30, 0.6), (0.030, 0.25)
"""Median, seconds, and spread of the logarithm."""

OBJECTIVES = (1.0, 0.06)
WINDOW = 60.0
EDGE_ARRAY = np.array(EDGES)


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of the candidate, and of the traffic.

    Attributes:
        ttft, tpot: candidate's times over the base's, of every request.
        tail: the same of the slowest twentieth of its requests only.
        errors: share of requests that fail on each version: base, candidate.
        rate: requests per second, both versions together.
        swing: spread (of the logarithm) of a load that both share, which makes both slower at once; it keeps three
            fifths of itself from one minute to the next.
        own_swing: the same of each version by itself: requests of one minute are alike, and no version is to blame.
    """

    ttft: float = 1.0
    tpot: float = 1.0
    tail: float = 1.0
    errors: tuple[float, float] = (0.002, 0.002)
    rate: float = 30.0
    swing: float = 0.0
    own_swing: float = 0.0


def windows(truth: Truth, weight: float, minutes: int, draw: np.random.Generator) -> Iterator[Window]:
    """One step's windows of a minute each, from time 0.

    Args:
        weight: the candidate's share of requests, 0 to 1.
    """
    both = _swing(truth.swing, minutes, draw)
    own = (_swing(truth.own_swing, minutes, draw), _swing(truth.own_swing, minutes, draw))
    for at in range(minutes):
        seen = [
            _seen(truth, candidate, share, math.exp(both[at] + own[candidate][at]), draw)
            for candidate, share in ((False, 1.0 - weight), (True, weight))
        ]
        yield Window(at * WINDOW, (at + 1) * WINDOW, *seen)


def _swing(size: float, minutes: int, draw: np.random.Generator) -> list[float]:
    level, keep, found = draw.normal(0.0, 1.0), 0.6, []
    for _ in range(minutes):
        found.append(size * level)
        level = keep * level + math.sqrt(1.0 - keep * keep) * draw.normal(0.0, 1.0)
    return found


def _seen(truth: Truth, candidate: bool, share: float, load: float, draw: np.random.Generator) -> Seen:
    requests = int(draw.poisson(truth.rate * share * WINDOW))
    failed = int(draw.binomial(requests, truth.errors[candidate]))
    served = requests - failed
    ttft = TTFT[0] * load * np.exp(draw.normal(0.0, TTFT[1], served))
    tpot = TPOT[0] * load * np.exp(draw.normal(0.0, TPOT[1], served))
    if candidate:
        slow = np.where(draw.random(served) < 0.05, truth.tail, 1.0)
        ttft, tpot = ttft * truth.ttft * slow, tpot * truth.tpot
    met = int(np.count_nonzero((ttft <= OBJECTIVES[0]) & (tpot <= OBJECTIVES[1])))
    shares = {Signal.ERROR_RATE: Share(failed, requests), Signal.GOODPUT: Share(met, requests)}
    return Seen(ttft=_sketch(ttft), tpot=_sketch(tpot), shares=shares)


def _sketch(values: np.ndarray) -> Sketch:
    buckets, counts = np.unique(np.searchsorted(EDGE_ARRAY, values), return_counts=True)
    return Sketch(dict(zip(buckets.tolist(), counts.tolist(), strict=True)))
