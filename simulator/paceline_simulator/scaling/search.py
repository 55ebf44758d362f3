"""Settings for each policy: found on one half of a trace, so that the other half is new to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from paceline_autoscaler.observed import Settings

from .paceline import Paceline
from .peers import Hpa, Keda, Kpa, Static
from .setup import Setup
from .view import Scaler

Knobs: TypeAlias = Mapping[str, float]

POLICIES = ("paceline", "hpa", "keda", "kpa", "static")

TARGETS = (64.0, 48.0, 32.0, 24.0, 16.0, 12.0, 8.0, 6.0, 4.0, 2.0)
QUEUES = (16.0, 8.0, 4.0, 2.0, 1.0)
WINDOWS = (60.0, 300.0, 600.0, 1200.0)
COVERAGES = (0.3, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98)
OURS = ((60.0, 120.0), (120.0, 120.0), (30.0, 60.0), (30.0, 120.0), (60.0, 300.0), (10.0, 300.0), (30.0, 1200.0))
"""Seconds of smoothing, and of the window for scaling down."""


AS_CHEAP = 0.01
"""Share by which costs may differ and still be the same."""


def make(policy: str, knobs: Knobs, setup: Setup) -> Scaler:
    """A policy with settings."""
    if policy == "static":
        return Static(int(knobs["replicas"]))
    if policy == "hpa":
        return Hpa(knobs["target"], knobs["window"])
    if policy == "keda":
        return Keda(knobs["target"], knobs["window"])
    if policy == "kpa":
        return Kpa(knobs["target"], knobs["window"])
    settings = Settings(
        most=setup.conditions.most,
        smoothing=knobs["smoothing"],
        coverage=knobs["coverage"],
        down_window=knobs["window"],
        down_margin=0.05,
    )
    return Paceline(setup.rates, setup.objectives, settings)


def lines(policy: str, setup: Setup) -> list[list[dict[str, float]]]:
    """Settings to try, as lines that each go from cheap to dear."""
    if policy == "static":
        return [[{"replicas": float(number)} for number in range(1, setup.conditions.most + 1)]]
    if policy == "paceline":
        return [
            [{"smoothing": smoothing, "window": window, "coverage": coverage} for coverage in COVERAGES]
            for smoothing, window in OURS
        ]
    targets = QUEUES if policy == "keda" else TARGETS
    return [[{"target": target, "window": window} for target in targets] for window in WINDOWS]


@dataclass(frozen=True)
class Score:
    """Share of requests that kept the objectives, and what it cost."""

    attainment: float
    gpu_hours: float


def search(policy: str, setup: Setup, goal: float, score: Callable[[Knobs], Score]) -> tuple[Knobs, Score, int]:
    """The cheapest settings that reach the goal, else those that come nearest; their score, and how many were tried.

    Of two that cost the same, nearly, the one that attains more: what attains too little may cost as much, in replicas
    for the queue. So a line is left one setting after it has reached the goal, or when it costs more than what has
    reached it: what follows costs more. At last two values between the best and its cheaper neighbour are tried.
    """
    best: tuple[Knobs, Score] | None = None
    cheaper: Knobs | None = None
    tried = 0
    for line in lines(policy, setup):
        reached = False
        for before, knobs in zip([None, *line], line, strict=False):
            found = score(knobs)
            tried += 1
            if best is None or _better(found, best[1], goal):
                best, cheaper = (knobs, found), before
            if reached or (best[1].attainment >= goal and found.gpu_hours > best[1].gpu_hours * (1.0 + AS_CHEAP)):
                break
            reached = found.attainment >= goal
    assert best is not None, "every policy has settings to try"
    for _ in range(2):
        middle = _between(cheaper, best[0])
        if middle is None:
            break
        found = score(middle)
        tried += 1
        if _better(found, best[1], goal):
            best = (middle, found)
        else:
            cheaper = middle
    return best[0], best[1], tried


def _between(cheaper: Knobs | None, dearer: Knobs) -> Knobs | None:
    """The setting half way from one to its neighbour; None where nothing is between."""
    if cheaper is None or "replicas" in dearer:
        return None
    return {name: (cheaper[name] + value) / 2.0 for name, value in dearer.items()}


def _better(one: Score, other: Score, goal: float) -> bool:
    if one.attainment >= goal and other.attainment >= goal:
        if abs(one.gpu_hours / other.gpu_hours - 1.0) <= AS_CHEAP:
            return one.attainment > other.attainment
        return one.gpu_hours < other.gpu_hours
    return (one.attainment, -one.gpu_hours) > (other.attainment, -other.gpu_hours)
