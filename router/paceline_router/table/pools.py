"""Which pool takes a request: the one of its shape, else another by an explicit rule. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, Protocol

from paceline_router.table.routes import Group, Lane


class Spill(enum.IntEnum):
    """Why a request is not in the pool of its shape."""

    NONE = 0
    ABSENT = 1
    DOWN = 2
    FULL = 3
    TOO_LONG = 4

    @property
    def label(self) -> str:
        """As a metric has it."""
        return self.name.lower()


WORDS: Final = {
    Spill.ABSENT: "there is no pool {wanted}",
    Spill.DOWN: "no replica of pool {wanted} is ready",
    Spill.FULL: "every replica of pool {wanted} has {bound} requests or more",
    Spill.TOO_LONG: "pool {wanted} does not take requests this long",
}


class Loaded(Protocol):
    """What the rule needs of a replica: requests of this router there, and those of others by the last report."""

    in_flight: int
    others: int


def full(backends: Sequence[Loaded], bound: int | None) -> bool:
    """Whether every replica has `bound` requests or more."""
    if bound is None:
        return False
    for backend in backends:  # noqa: SIM110 - a generator costs more than the look at the first replica
        if backend.in_flight + backend.others < bound:
            return False
    return True


def pool_for(lane: Lane, wanted: str, tokens: int, spill_above: int | None = None) -> tuple[Group | None, Spill]:
    """The pool for a request.

    The pool of the request's shape takes it while it has a ready replica, is under its bound and takes requests of this
    length. Otherwise the others are tried, `default` first, and one that is under its own bound gets it. Where all are
    full the request stays at home: it waits there rather than burden strangers. The rule looks at the moment only, so
    requests come back with the first one that finds its pool in order.

    Args:
        lane: the version's groups.
        wanted: the pool of the request's shape.
        tokens: a lower bound of prompt and answer together; 0 when not known.
        spill_above: requests at each replica from which a pool is full; None: its own bound.

    Returns:
        The group, None when no pool of the lane has a ready replica, and why it is not the wanted one.
    """
    groups = lane.groups
    home = groups.get(wanted)
    if home is None:
        why = Spill.ABSENT
    elif not home.backends:
        why = Spill.DOWN
    elif home.max_model_len is not None and tokens > home.max_model_len:
        why = Spill.TOO_LONG
    elif full(home.backends, spill_above or home.bound):
        why = Spill.FULL
    else:
        return home, Spill.NONE
    last: Group | None = None
    for group in lane.order:
        if group is home or not group.backends:
            continue
        if group.max_model_len is not None and tokens > group.max_model_len:
            continue
        if not full(group.backends, spill_above or group.bound):
            return group, why
        last = last or group
    if home is not None and home.backends and (why is Spill.FULL or last is None):
        # Every other one is full too, or takes nothing this long; an exact count at the replica decides on the length.
        return home, Spill.NONE
    return last, why


def words(why: Spill, wanted: str, bound: int | None) -> str:
    """The reason as a part of a sentence; empty for `Spill.NONE`."""
    return WORDS[why].format(wanted=wanted, bound=bound) if why else ""
