"""Single runs of a policy with settings, and those of several seeds at a time on as many cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from paceline_simulator.exact import replica_of
from paceline_simulator.trace import TraceError

from .arrivals import requests
from .dispatch import RouterChoice
from .fleet import Run, ScaledFleet, kept
from .search import Knobs, make
from .setup import Setup


@dataclass(frozen=True)
class Task:
    """What is run, and which of its arrivals are looked at.

    Attributes:
        since, until: seconds; what arrives at `until` or later is not run at all.
        exact: with the router's own choice of a replica and the engine's own scheduler.
    """

    policy: str
    knobs: Knobs
    since: float
    until: float = math.inf
    exact: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Result:
    """Figures by metric, and the replicas asked for: (time, number)."""

    figures: dict[str, float]
    changes: list[tuple[float, int]]


Runner: TypeAlias = Callable[[Task, Sequence[int]], list[Result]]
"""Does a task with each of some seeds."""


def run(setup: Setup, policy: str, knobs: Knobs, seed: int, until: float = math.inf, exact: bool = False) -> Run:
    """One run, on what arrives before a time.

    Args:
        exact: with the router's own choice of a replica and the engine's own scheduler.
    """
    trace = setup.trace if until == math.inf else setup.trace.first(until, len(setup.trace.arrivals))
    made = [request for request in requests(trace, setup.copies, setup.shift, seed) if request.arrival < until]
    scaler = make(policy, knobs, setup)
    dispatch, serving = (RouterChoice(), lambda: replica_of(setup.model)) if exact else (None, None)
    fleet = ScaledFleet(setup.model, scaler, setup.conditions, setup.first, seed, dispatch, serving, setup.objectives)
    return fleet.run(made)


def figures(setup: Setup, outcome: Run, since: float, until: float) -> dict[str, float]:
    """The figures of what arrived between two times.

    Raises:
        TraceError: nothing did.
    """
    those = [request for request in outcome.requests if since <= request.arrival < until]
    if not those:
        raise TraceError(f"no request arrives from {since:.0f} s to {until:.0f} s, where policies are judged")
    good = sum(kept(request, setup.objectives) for request in those)
    return {
        "slo_attainment": good / len(those),
        "gpu_hours": setup.gpus * outcome.gpu_hours(since, min(until, outcome.end)),
        "violations": float(len(those) - good),
        "flaps": float(outcome.flaps(since, until)),
    }


def do(setup: Setup, task: Task) -> Result:
    """Run and look."""
    outcome = run(setup, task.policy, task.knobs, task.seed, task.until, task.exact)
    return Result(figures(setup, outcome, task.since, task.until), outcome.changes)


@contextmanager
def runner(setup: Setup, jobs: int) -> Iterator[Runner]:
    """A runner with so many processes; with one job all is done in this one."""
    if jobs <= 1:
        yield lambda task, seeds: [do(setup, replace(task, seed=seed)) for seed in seeds]
        return
    # A trace is large: each process is given it once.
    with ProcessPoolExecutor(jobs, initializer=_know, initargs=(setup,)) as pool:
        yield lambda task, seeds: list(pool.map(_do, [replace(task, seed=seed) for seed in seeds]))


_known: list[Setup] = []


def _know(setup: Setup) -> None:
    _known[:] = [setup]


def _do(task: Task) -> Result:
    return do(_known[0], task)
