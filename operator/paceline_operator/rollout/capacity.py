"""Whether two revisions fit beside each other, said before a rollout begins: with how much room, or one by one, or not
at all. Pure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from .asked import Policy, Step


class Way(enum.StrEnum):
    """How two revisions share the room.

    WARM: the base keeps all its replicas until the last hold ends, so that a rollback meets no cold replica.
    SURGE: the base shrinks as traffic leaves it; each step needs some replicas more than usual for a while.
    ONE_BY_ONE: no room at all: the base gives up a replica before the candidate gets one, one a step.
    REFUSED: one replica and no room for another: no canary is possible.
    NOT_KNOWN: the room is not known, so nothing is begun.
    """

    WARM = "Warm"
    SURGE = "Surge"
    ONE_BY_ONE = "OneByOne"
    REFUSED = "Refused"
    NOT_KNOWN = "NotKnown"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a rollout needs.

    Attributes:
        extra: replicas beyond the usual number that it needs at its most.
        steps: those of the policy, or finer ones where replicas change hands one by one.
        message: a sentence.
    """

    way: Way
    extra: int
    steps: tuple[Step, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Split:
    """Replicas of each revision."""

    base: int
    candidate: int


def candidates(total: int, step: Step) -> int:
    """Replicas that the candidate needs for a step: as its weight asks, at least one while it gets any traffic."""
    if total <= 0:
        return 0
    wanted = step.replicas if step.replicas is not None else math.ceil(total * step.weight / 100)
    return min(total, max(1, wanted))


def bases(total: int, step: Step) -> int:
    """Replicas that the base needs beside it: for the rest of the traffic, and one that is warm at the end.

    Weights are whole percents: less than one of the whole traffic does not ask for another replica.
    """
    if total <= 0:
        return 0
    return max(1, total - (total * (step.weight + 1) - 1) // 100) if step.weight < 100 else 1


def fit(policy: Policy, total: int, free: int | None, pools: int = 1) -> Capacity:
    """How a rollout of `total` replicas fits where `free` more find a place.

    Args:
        pools: that they are spread over. Each rounds its replicas up by itself, which takes some of the room.
    """
    if total <= 0:
        return Capacity(Way.WARM, 0, policy.steps, "the service is at zero: the new revision is used at its next start")
    most = max(candidates(total, step) for step in policy.steps)
    surge = _surge(policy.steps, total)
    needs = f"{most} more replicas keep the old revision whole, {surge} more let it shrink by steps"
    if free is None:
        return Capacity(Way.NOT_KNOWN, surge, policy.steps, f"it is not known how many replicas have room; {needs}")
    free = max(0, free - 2 * (pools - 1))
    if free >= most:
        return Capacity(Way.WARM, most, policy.steps, f"more replicas needed: {most}; there is room for {free}")
    if free >= surge:
        return Capacity(
            Way.SURGE, surge, policy.steps, f"more replicas needed: {surge}; there is room for {free}; {needs}"
        )
    if total == 1:
        return Capacity(
            Way.REFUSED,
            surge,
            policy.steps,
            "one replica serves and no other has room: free a place for one more, or write rollout.strategy: Recreate",
        )
    if pools > 1:
        return Capacity(
            Way.REFUSED,
            surge,
            policy.steps,
            f"{surge} more replicas would be needed, {free} have room, and {pools} pools cannot be exchanged one by "
            "one: free places, change one pool at a time, or write rollout.strategy: Rolling",
        )
    steps = tuple(_finer(policy.steps, total))
    return Capacity(
        Way.ONE_BY_ONE,
        0,
        steps,
        f"{surge} more replicas would be needed and {free} have room: one of {total} is exchanged at a time, in "
        f"{len(steps)} steps, with one fewer meanwhile",
    )


def split(capacity: Capacity, total: int, now: Step | None, coming: Step | None) -> Split:
    """Replicas of both revisions while the traffic is as in `now` (None: all at the base) and the candidate gets
    ready for `coming` (None: nothing is coming).
    """
    if total <= 0:
        return Split(0, 0)
    candidate = max(candidates(total, step) if step else 0 for step in (now, coming))
    base = bases(total, now) if now else total
    if capacity.way is Way.WARM:
        base = total
    elif capacity.way is Way.ONE_BY_ONE:
        base = max(1, min(base, total - candidate))
        candidate = min(candidate, max(1, total - base))
    return Split(base, candidate)


def _surge(steps: tuple[Step, ...], total: int) -> int:
    """Replicas beyond `total` at the most: before each step the base still carries what it carried."""
    held = [total, *(bases(total, step) for step in steps)]
    before = (old + candidates(total, step) for old, step in zip(held, steps, strict=False))
    return max(*before, held[-1] + candidates(total, steps[-1])) - total


def _finer(steps: tuple[Step, ...], total: int) -> Iterator[Step]:
    """Steps of at most one replica each. The candidate never has fewer than its weight asks for, and the old revision
    is gone at the end: where there is no room it cannot be kept warm.
    """
    start = Step(0, 0.0, 0.0)
    for old, new in pairwise((start, *steps)):
        lower = 0 if old.weight == 0 else candidates(total, replace(old, replicas=None))
        upper = candidates(total, replace(new, replicas=None))
        # From the weight that the replicas already there can carry: one more is exchanged only for that.
        between = [math.floor(100 * count / total) for count in range(lower, upper)]
        weights = [*sorted({weight for weight in between if old.weight < weight < new.weight}), new.weight]
        for weight in weights:
            yield Step(weight, new.hold / len(weights), new.most / len(weights))
