"""What a step will be able to find out, told before its traffic moves, from the last hour of the serving version. Pure.

A step that cannot know within its maxDuration is warned of: more traffic, more time, wider margins or fewer gates help.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_shadow_traffic.evidence import Seen, Signal, Window
from paceline_shadow_traffic.pages import PageError, window
from paceline_shadow_traffic.power import Traffic, hours, prospect
from paceline_shadow_traffic.share import NOTHING
from paceline_shadow_traffic.verdict import ALPHA, FEWEST_WINDOWS, Gate

from .asked import Foreseen
from .gathering import major
from .judging import judged_steps
from .replicas import WINDOW_SECONDS
from .rules import Rules
from .state import SHADOW_STEP, State

HISTORY_SECONDS = 3600.0
WHOLE = "service"
"""The place of what is not told apart by pool."""

PAIRS_SECONDS = 30.0
"""Of a window of pairs of answers."""


@dataclass(frozen=True, slots=True)
class Past:
    """The last hour of one place: its requests per second, and what the serving version was like."""

    requests: float
    base: Seen


def past_of(
    pages: Sequence[Mapping[str, Any] | None], service: str, base: str, candidate: str
) -> dict[str, Past] | None:
    """By place, those with few of the requests left out; None where that is not known, as while a router is silent."""
    if not pages or any(page is None for page in pages):
        return None
    try:
        found = window(pages, service, base, candidate)
    except PageError:
        return None
    kept, _ = major({place: (one,) for place, one in found.items()})
    return {place: past for place, [one] in kept.items() if (past := _past(one)) is not None}


def _past(one: Window) -> Past | None:
    counts = [side.shares.get(Signal.ERROR_RATE, NOTHING).of for side in (one.base, one.candidate)]
    seconds = one.end - one.start
    # A version that has only just begun to serve says too little by itself.
    base = one.base if counts[0] >= counts[1] else one.candidate
    requests = counts[0] + counts[1]
    return Past(requests / seconds, base) if seconds > 0.0 and requests > 0.0 else None


def foresee(rules: Rules, state: State, past: Mapping[str, Past], pools: Collection[str]) -> tuple[Foreseen, ...]:
    """What the coming step's gates can say by its end.

    Args:
        state: of a rollout in whose steps this is one with less than all traffic.
        pools: those that change.
    """
    if not past:
        words = "no request came in the last hour: nothing can be known while none comes"
        return (Foreseen(WHOLE, "", None, None, words),)
    return tuple(_of_pairs(rules, past) if state.step == SHADOW_STEP else _of_step(rules, state, past, pools))


def _of_step(rules: Rules, state: State, past: Mapping[str, Past], pools: Collection[str]) -> Iterator[Foreseen]:
    step = state.steps[state.step]
    compared = len(rules.gates) * len(past) + len(rules.replica_gates) * len(pools)
    alpha = ALPHA / max(1, compared * judged_steps(rules, state))
    for place, one in past.items():
        traffic = Traffic(round(one.requests, 3), step.weight / 100.0)
        for gate in rules.gates:
            try:
                said = prospect(gate, one.base, traffic, step.most, alpha)
            except ValueError as error:
                yield Foreseen(place, gate.name, None, None, str(error))
            else:
                yield Foreseen(place, gate.name, said.seconds, said.detectable, said.message)
    requests = sum(one.requests for one in past.values())
    for pool in pools:
        for gate in rules.replica_gates:
            yield _at_least(pool, gate, requests * min(step.weight, 100 - step.weight) / 100.0)
    for query in rules.queries:
        seconds = query.settle + query.hold_for
        words = f"{query.name} has to stay within bounds for {hours(query.hold_for)}: {hours(seconds)} at the least"
        yield Foreseen(WHOLE, f"Query/{query.name}", seconds, None, words)


def _at_least(pool: str, gate: Gate, smaller: float) -> Foreseen:
    """What replicas count is not known beforehand; how long it takes at the least is."""
    windows, samples = FEWEST_WINDOWS, gate.min_samples
    if gate.signal is Signal.THROUGHPUT:
        windows, samples = max(windows, samples), 0
    seconds = gate.settle + max(windows * WINDOW_SECONDS, samples / smaller if smaller > 0.0 else 0.0)
    return Foreseen(pool, gate.name, seconds, None, f"{gate.name} needs {hours(seconds)} at the least")


def _of_pairs(rules: Rules, past: Mapping[str, Past]) -> Iterator[Foreseen]:
    for place, one in past.items():
        pairs = one.requests * rules.shadow / 100.0
        for gate in rules.output_gates:
            seconds = max(FEWEST_WINDOWS * PAIRS_SECONDS, gate.min_samples / pairs) if pairs > 0.0 else None
            needs = "cannot be known" if seconds is None else f"needs {hours(seconds)} at the least"
            words = f"at {rules.shadow} % of {one.requests:.3g} requests/s copied, {gate.name} {needs}"
            yield Foreseen(place, gate.name, seconds, None, words)


def too_short(foreseen: Sequence[Foreseen], most: float) -> str:
    """What a step of so many seconds cannot know, in words that say what to do; empty where it can know all."""
    never = [one for one in foreseen if one.seconds is None or one.seconds > most]
    if not never:
        return ""
    worst = max(never, key=lambda one: one.seconds if one.seconds is not None else float("inf"))
    return (
        f"{len(never)} of {len(foreseen)} gates will hardly be known within the step's {hours(most)}, as "
        f"{worst.place}: {worst.message}; raise its weight or maxDuration, widen margins, or take gates away"
    )


def in_short(foreseen: Sequence[Foreseen], most: float) -> str:
    """For the status: what the step cannot know, or else when it will know all; empty where nothing is foreseen."""
    if not foreseen:
        return ""
    slowest = max(foreseen, key=lambda one: one.seconds if one.seconds is not None else float("inf"))
    return too_short(foreseen, most) or f"all gates can be known; the slowest: {slowest.place}: {slowest.message}"
