"""From replicas' own counters to the evidence of the gates on what only they know: throughput, preemptions and cache
hits, by pool. Pure.

Shapes are not told apart there. A replica that is silent, or began anew, leaves its pool's window not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from paceline_crds import metrics
from paceline_operator.scaling.pages import values_of
from paceline_shadow_traffic.evidence import Seen, Signal, Window
from paceline_shadow_traffic.share import NOTHING, Share

from .gathering import bounded

WINDOW_SECONDS = 60.0
LONGEST_SECONDS = 150.0
"""To which a window is drawn out while one of the two versions has hardly a request in it."""

FEWEST_REQUESTS = 5
"""Of each version, below which a window says nothing of throughput."""

COUNTERS = (
    metrics.RUNTIME_REQUESTS_RECEIVED.name,
    metrics.RUNTIME_GENERATION_TOKENS.name,
    metrics.RUNTIME_PREEMPTIONS.name,
    metrics.RUNTIME_PREFIX_CACHE_QUERIES.name,
    metrics.RUNTIME_PREFIX_CACHE_HITS.name,
)

wanted = partial(values_of, wanted=COUNTERS)
"""Reads these of a page."""

Said = Mapping[str, Mapping[str, str] | str]
"""By uid of a ready replica what its page says, by name; or in words why it said nothing."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one version's replicas did: requests that came, tokens made, preemptions, prompt tokens that were looked up
    in the prefix cache, and those found there.
    """

    received: float = 0.0
    tokens: float = 0.0
    preempted: float = 0.0
    looked_up: float = 0.0
    hits: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(one + two for one, two in zip(self._values, other._values, strict=True)))

    def since(self, before: Work) -> Work | None:
        """What came since; None where something fell, as after a restart."""
        grown = [one - two for one, two in zip(self._values, before._values, strict=True)]
        return Work(*grown) if all(one >= 0.0 for one in grown) else None

    @property
    def is_count(self) -> bool:
        """Whether all of it are finite numbers from 0 up."""
        return all(math.isfinite(one) and one >= 0.0 for one in self._values)

    @property
    def _values(self) -> tuple[float, ...]:
        return self.received, self.tokens, self.preempted, self.looked_up, self.hits


@dataclass(frozen=True, slots=True)
class Open:
    """The window of a pool that is not over yet.

    Attributes:
        begin: seconds since the epoch.
        trouble: why it says nothing; empty where it will.
    """

    begin: float
    base: Work = field(default_factory=Work)
    candidate: Work = field(default_factory=Work)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the replicas of both versions counted in one step.

    Attributes:
        since: begin of the evidence, seconds since the epoch.
        last: counters at the last look, by uid.
        open: by pool.
        windows: by pool, in order.
        trouble: why the last look has no numbers; empty where it has.
    """

    since: float
    last: Mapping[str, Work] = field(default_factory=dict)
    open: Mapping[str, Open] = field(default_factory=dict)
    windows: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    trouble: str = ""


def count(counted: Counted, said: Mapping[str, tuple[Said, Said]], now: float) -> Counted:
    """With another look in it.

    Args:
        said: by pool that changes, of the ready replicas of base and candidate.
        now: seconds since the epoch.
    """
    last: dict[str, Work] = {}
    open_windows: dict[str, Open] = {}
    windows = {pool: counted.windows.get(pool, ()) for pool in said}
    troubles = []
    for pool, (base, candidate) in said.items():
        before = counted.open.get(pool, Open(now))
        if before.begin > now:  # the clock went back
            before = Open(now)
        old, wrong = _grown(base, counted.last, last)
        new, also_wrong = _grown(candidate, counted.last, last)
        trouble = wrong or also_wrong
        troubles += [f"pool {pool}: {trouble}"] if trouble else []
        grown = Open(before.begin, before.base + old, before.candidate + new, before.trouble or trouble)
        over = _over(grown, now)
        open_windows[pool] = Open(now) if over else grown
        if over:
            windows[pool] = bounded((*windows[pool], _window(grown, now)))
    return replace(counted, last=last, open=open_windows, windows=windows, trouble="; ".join(troubles))


def _grown(said: Said, before: Mapping[str, Work], last: dict[str, Work]) -> tuple[Work, str]:
    """What replicas did since the look before, and why some of it is not known; their counters go into `last`."""
    total, troubles = Work(), []
    for uid, values in said.items():
        try:
            if isinstance(values, str):
                raise ValueError(values)
            now = Work(*(float(values[name]) for name in COUNTERS))
            if not now.is_count:
                raise ValueError("its counters are no counts")
        except KeyError as missing:
            troubles.append(f"a replica counts no {missing.args[0]}")
            continue
        except ValueError as error:
            troubles.append(f"a replica says nothing: {error}")
            continue
        last[uid] = now
        # One that has just come begins to count now.
        grown = now.since(before[uid]) if uid in before else Work()
        if grown is None:
            troubles.append("a replica began anew")
        else:
            total += grown
    return total, next(iter(troubles), "")


def _over(one: Open, now: float) -> bool:
    enough = min(one.base.received, one.candidate.received) >= FEWEST_REQUESTS
    return now - one.begin >= (WINDOW_SECONDS if enough else LONGEST_SECONDS)


def _window(one: Open, now: float) -> Window:
    if one.trouble:
        return Window(one.begin, now, Seen(), Seen())
    sides = (one.base, one.candidate)
    received = sum(side.received for side in sides)
    enough = min(side.received for side in sides) >= FEWEST_REQUESTS
    seen = [
        Seen(
            throughput=side.tokens / (now - one.begin) * received / side.received if enough else None,
            shares=_shares(side),
        )
        for side in sides
    ]
    return Window(one.begin, now, *seen)


def _shares(side: Work) -> dict[Signal, Share]:
    """A request counts once: its tokens are found in the cache, or not, together."""
    found = NOTHING
    if side.looked_up:
        found = Share(min(1.0, side.hits / side.looked_up) * side.received, side.received)
    return {
        Signal.PREEMPTIONS: Share(min(side.preempted, side.received), side.received),
        Signal.HIT_RATE: found,
    }


def pools_of(windows: Mapping[str, tuple[Window, ...]], pools: Iterable[str]) -> dict[str, tuple[Window, ...]]:
    """The windows of every pool that changes: one of which nothing was heard is not known, and not left out."""
    return {pool: windows.get(pool, ()) for pool in pools}
