"""Policies on a trace: settings from its first half, figures from its second, over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_bench.results import Row

from .runs import Task, runner
from .search import Knobs, Score, search
from .setup import Setup

METRICS = {"slo_attainment": "share", "gpu_hours": "h", "violations": "requests", "flaps": "changes"}

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for an interval of 95 %, from one degree of freedom on."""

OURS = "paceline"

WARM_UP = 0.25
"""Share of the first half that settings are not judged by: nobody that learns or averages has seen anything by then."""

RESERVE = 0.5
"""Share of what the goal allows to miss that settings leave over on the first half: the second is new to them."""

SAVING = 0.8
COST_MARGIN = 1.02
ATTAINMENT_MARGIN = 0.002


@dataclass
class Found:
    """What a policy gave: its settings, and by metric one figure for each seed.

    Attributes:
        tried: settings that were tried.
        changes: of the first seed's run, for the plot: (time, replicas).
    """

    policy: str
    knobs: Knobs
    on_first_half: Score
    tried: int
    figures: dict[str, list[float]] = field(default_factory=dict)
    changes: list[tuple[float, int]] = field(default_factory=list)


def study(
    setup: Setup,
    policies: Sequence[str],
    goal: float,
    seeds: Sequence[int],
    exact: bool = False,
    progress: Callable[[str], None] = lambda line: None,
    trying: Callable[[str], None] = lambda line: None,
    jobs: int = 1,
) -> list[Found]:
    """Search and score every policy; the second half is scored in runs of the whole trace, so that none starts cold.

    Settings are judged by the mean over the seeds: of one run of half a trace a lucky one would be believed.

    Args:
        exact: score with the router's own choice of a replica and the engine's own scheduler; the search stays quick.
        progress: is told of every policy that is done.
        trying: is told of every setting before it is tried.
        jobs: seeds that are run at a time, each in a process of its own.
    """
    half = setup.trace.length / 2.0
    found = []
    with runner(setup, min(jobs, len(seeds))) as results:
        for policy in policies:

            def score(knobs: Knobs, policy: str = policy) -> Score:
                trying(f"{policy}: trying {_words(knobs)} on the first half")
                got = [one.figures for one in results(Task(policy, knobs, WARM_UP * half, half), seeds)]
                return Score(_mean(got, "slo_attainment"), _mean(got, "gpu_hours"))

            knobs, first, tried = search(policy, setup, goal + RESERVE * (1.0 - goal), score)
            trying(f"{policy}: {_words(knobs)} on the whole")
            runs = results(Task(policy, knobs, half, exact=exact), seeds)
            by_metric = {metric: [one.figures[metric] for one in runs] for metric in METRICS}
            found.append(Found(policy, knobs, first, tried, by_metric, runs[0].changes))
            progress(f"{policy}: {tried} settings tried, {_words(knobs)}")
    return found


def _mean(figures: Sequence[Mapping[str, float]], metric: str) -> float:
    return statistics.fmean(one[metric] for one in figures)


def _words(knobs: Knobs) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in knobs.items())


def unreached(setup: Setup, found: Sequence[Found], goal: float) -> list[str]:
    """In words: of which policies no settings reached the goal where they were searched; and why, where it is known."""
    short = [one for one in found if one.on_first_half.attainment < goal]
    said = [
        f"{one.policy}: none of {one.tried} settings reached the goal on the trace's first half (at best "
        f"{100 * one.on_first_half.attainment:.2f} %); its figures are of the settings that came nearest."
        for one in short
    ]
    half, start_up = setup.trace.length / 2.0, setup.conditions.start_up
    if half <= start_up:
        said.append(
            f"That half lasts {half:.0f} s and a new replica takes {start_up:g} s to start, so none that is added "
            "serves in it: take a longer trace or more of it (--hours, --limit), or a shorter --start-up."
        )
    return said


def interval(values: Sequence[float]) -> float:
    """Half the width of the mean's interval of 95 %; infinite for one value."""
    if len(values) < 2:
        return math.inf
    t = T95[min(len(values) - 2, len(T95) - 1)]
    return t * statistics.stdev(values) / math.sqrt(len(values))


def verdict(ours: Found, peer: Found, goal: float) -> str:
    """Whether ours is better as asked for: a fifth cheaper at equal attainment, or half the violations at equal cost.

    Equal attainment: both reach the goal, or ours is at most 0.2 points lower. Pairs are of the same seed. Where the
    interval of the cost has the limit inside, it is not known.
    """
    a, b = ours.figures, peer.figures
    cost = [x / y for x, y in zip(a["gpu_hours"], b["gpu_hours"], strict=True)]
    attained, theirs = statistics.mean(a["slo_attainment"]), statistics.mean(b["slo_attainment"])
    missed, their_missed = statistics.mean(a["violations"]), statistics.mean(b["violations"])
    ratio = statistics.mean(cost)
    width = interval(cost)
    spread = f" ± {100 * width:.0f}" if math.isfinite(width) else ""
    text = f"{100 * (ratio - 1):+.0f}{spread} % GPU-hours, {100 * (attained - theirs):+.2f} points"
    equal = attained >= min(theirs, goal) - ATTAINMENT_MARGIN
    if equal and ratio + width <= SAVING:
        return f"met: {text}"
    halved = missed <= their_missed / 2 and their_missed > 0
    if ratio <= COST_MARGIN and halved:
        return f"met: {text}, {missed:.0f} violations to {their_missed:.0f}"
    open_still = (equal and ratio - width <= SAVING) or (halved and ratio - width <= COST_MARGIN)
    word = "not known" if open_still else "not met"
    return f"{word}: {text}, {missed:.0f} violations to {their_missed:.0f}"


def rows(setup: Setup, found: Sequence[Found], goal: float, seeds: Sequence[int], exact: bool = False) -> list[Row]:
    """For the archive: means over seeds, with the half width of their interval in `params`."""
    made = []
    for one in found:
        params: dict[str, Any] = {
            "model": setup.name,
            "gpus_per_replica": setup.gpus,
            "copies": setup.copies,
            "start_up_s": setup.conditions.start_up,
            "ttft_s": setup.objectives.ttft,
            "tpot_s": setup.objectives.tpot,
            "outages_s": [list(span) for span in setup.conditions.outages],
            "failures_s": list(setup.conditions.failures),
            "requests": len(setup.trace.arrivals),
            "exact": exact,
            "goal": goal,
            "seeds": list(seeds),
            "settings": dict(one.knobs),
            "settings_tried": one.tried,
            "goal_reached_in_search": one.on_first_half.attainment >= goal,
            "attainment_in_search": round(one.on_first_half.attainment, 6),
        }
        for metric, values in one.figures.items():
            width = interval(values)
            spread = {"ci95": round(width, 6) if math.isfinite(width) else None}
            mean = round(statistics.mean(values), 6)
            made.append(Row(setup.trace.name, one.policy, metric, mean, METRICS[metric], {**params, **spread}))
    return made
