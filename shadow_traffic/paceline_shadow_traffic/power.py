"""What a step can find out, computed before it begins: a step that can never know is told of beforehand. Pure.

Each figure is of the expected counts: about half of all rollouts need longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from paceline_crds.sketch import Sketch

from .evidence import EITHER_WAY, MORE_IS_BETTER, QUANTILES, Seen, Signal, Window
from .sequential import Interval
from .share import NOTHING, Share
from .verdict import FEWEST_WINDOWS, Gate, judge_gate

FARTHEST = 30 * 86400.0
"""Seconds up to which a duration is looked for."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a place gets.

    Attributes:
        requests: per second, of both versions together.
        candidate_share: 0 to 1.
        dispersion: by how much the base's windows vary more than independent requests would; 1 if not known.
    """

    requests: float
    candidate_share: float
    dispersion: float = 1.0


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a gate can say by the end of a step.

    Attributes:
        seconds: until an unchanged candidate is called no worse; None where it takes over 30 days.
        detectable: the smallest regression, in the gate's unit, that is called worse by the end; None where none is.
        message: a sentence.
    """

    seconds: float | None
    detectable: float | None
    message: str


def prospect(gate: Gate, base: Seen, traffic: Traffic, duration: float, alpha: float) -> Prospect:
    """What a gate on times or shares will know.

    Args:
        base: what is known of the serving version; its counts say how values are spread, not how many come.
        duration: of the step, seconds.
        alpha: of this gate in this step.

    Raises:
        ValueError: the gate is on throughput or length, which cannot be planned, or the base says
            nothing of the signal.
    """
    seconds = _seconds(gate, base, traffic, alpha)
    detectable = _detectable(gate, base, traffic, duration, alpha)
    share, rate = 100.0 * traffic.candidate_share, traffic.requests
    at = f"at {share:g} % of {rate:g} requests/s"
    never = f"{at}, {gate.signal} within {gate.margin:g} {gate.unit} cannot be known"
    needs = (
        never if seconds is None else f"{at}, {gate.signal} within {gate.margin:g} {gate.unit} needs {hours(seconds)}"
    )
    finds = (
        f"no regression is found in {hours(duration)}"
        if detectable is None
        else f"in {hours(duration)} a regression of {detectable:.3g} {gate.unit} is found"
    )
    return Prospect(seconds, detectable, f"{needs}; {finds}")


def hours(seconds: float) -> str:
    """A time in words, to two digits or so."""
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"


def _seconds(gate: Gate, base: Seen, traffic: Traffic, alpha: float) -> float | None:
    if _expected(gate, base, traffic, FARTHEST, alpha).high > gate.margin:
        return None
    short, long = 1.0, FARTHEST
    while long > 1.01 * short:
        middle = (short * long) ** 0.5
        if _expected(gate, base, traffic, middle, alpha).high > gate.margin:
            short = middle
        else:
            long = middle
    smaller = traffic.requests * min(traffic.candidate_share, 1.0 - traffic.candidate_share)
    return gate.settle + max(long, gate.min_samples / smaller)


def _detectable(gate: Gate, base: Seen, traffic: Traffic, duration: float, alpha: float) -> float | None:
    judged = duration - gate.settle
    if judged <= 0.0 or traffic.requests * judged * traffic.candidate_share < gate.min_samples:
        return None
    if gate.signal in QUANTILES:
        # A candidate that is slower by a factor moves both ends of the ratio by it.
        low = 1.0 + _expected(gate, base, traffic, judged, alpha).low / 100.0
        return 100.0 * ((1.0 + gate.margin / 100.0) / low - 1.0) if low > 0.0 else None
    value = base.shares[gate.signal].value or 0.0
    least, most = 0.0, value if gate.signal in MORE_IS_BETTER else 1.0 - value
    if _expected(gate, base, traffic, judged, alpha, most).low <= gate.margin:
        return None
    for _ in range(20):
        middle = 0.5 * (least + most)
        if _expected(gate, base, traffic, judged, alpha, middle).low > gate.margin:
            most = middle
        else:
            least = middle
    return 100.0 * most


def _expected(gate: Gate, base: Seen, traffic: Traffic, duration: float, alpha: float, worse: float = 0.0) -> Interval:
    """The interval of the regression from expected counts.

    Args:
        worse: by how much (0 to 1) the candidate's share is worse; for times 0.
    """
    requests = traffic.requests * duration / traffic.dispersion / FEWEST_WINDOWS
    by = -worse if gate.signal in MORE_IS_BETTER else worse
    old = _scaled(gate.signal, base, requests * (1.0 - traffic.candidate_share), 0.0)
    new = _scaled(gate.signal, base, requests * traffic.candidate_share, by)
    windows = [Window(float(at), at + 1.0, old, new) for at in range(FEWEST_WINDOWS)]
    free = replace(gate, min_samples=1, settle=0.0)
    found = judge_gate(free, windows, 0.0, float(FEWEST_WINDOWS), alpha)
    return found.regression or Interval(-math.inf, math.inf)


def _scaled(signal: Signal, base: Seen, requests: float, by: float) -> Seen:
    """The same spread with so many requests; a share is moved by `by`."""
    if signal in QUANTILES and signal not in EITHER_WAY:
        name = QUANTILES[signal][0]
        sketch: Sketch | None = getattr(base, name)
        if sketch is None or not sketch.count:
            raise ValueError(f"nothing is known of {signal}; wait until the serving version was seen for a while")
        factor = requests / sketch.count
        scaled = Sketch()
        # Fractions of requests: expected counts, which are never sent anywhere.
        scaled.counts = {bucket: count * factor for bucket, count in sketch.counts.items()}  # type: ignore[misc]
        return Seen(ttft=scaled, tpot=scaled)
    value = base.shares.get(signal, NOTHING).value
    if value is None:
        raise ValueError(f"nothing is known of {signal} beforehand; only gates on times and shares can be planned")
    return Seen(shares={signal: Share(min(1.0, max(0.0, value + by)) * requests, requests)})
