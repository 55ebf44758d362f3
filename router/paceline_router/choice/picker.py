"""The plain choice: fewest requests, whatever they are. Also what is left when no replica is as it should be."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypeVar

from .load import EJECT_AFTER, EJECT_MOST, STALE_AFTER, ReplicaLoad

__all__ = ["EJECT_AFTER", "EJECT_MOST", "STALE_AFTER", "ReplicaLoad", "pick", "usable"]

_BUSY: Final = 1e4
_STALE: Final = 1e6
_EJECTED: Final = 1e9

L = TypeVar("L", bound=ReplicaLoad)


def usable(load: ReplicaLoad, now: float, limit: int, tried: Collection[ReplicaLoad] = ()) -> bool:
    """Whether it may get something new and nothing speaks against it; warming up does not."""
    return (
        load.in_flight < limit
        and now <= load.fresh_until
        and now >= load.ejected_until
        and now >= load.busy_until
        and not load.draining
        and not (tried and load in tried)
    )


def pick(candidates: Sequence[L], now: float, turn: int, limit: int, tried: Collection[ReplicaLoad] = ()) -> L | None:
    """The replica with the fewest requests.

    Own requests in flight plus those of others decide. One that asked for a pause comes after all that did not, one
    whose load is stale after those (stale is not idle), an ejected one after those (all being ejected must not stop
    traffic). Equal ones take turns. A draining one is never picked.

    Args:
        turn: a number that grows with each call; where the look begins.
        limit: requests in flight at which a replica is full.
        tried: replicas that have failed this request already.

    Returns:
        None when there is no candidate, or all are full, draining or tried.
    """
    count = len(candidates)
    if count == 0:
        return None
    best: L | None = None
    best_score = 0.0
    index = turn % count
    for _ in range(count):
        candidate = candidates[index]
        index += 1
        if index == count:
            index = 0
        if candidate.in_flight >= limit or candidate.draining or (tried and candidate in tried):
            continue
        score = float(candidate.in_flight + candidate.others)
        if now > candidate.fresh_until:
            score += _STALE
        if now < candidate.busy_until:
            score += _BUSY
        if now < candidate.ejected_until:
            score += _EJECTED
        if best is None or score < best_score:
            best, best_score = candidate, score
            if score == 0:
                break
    return best
