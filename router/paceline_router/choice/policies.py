"""Ways to choose a replica, behind one protocol: ours and those it is compared with.

All keep to the same rules about replicas that are full, draining, ejected, silent or have failed the request.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

from .chooser import Chooser
from .decision import CODES, LAST_RESORT, NONE, POLICY, UNDECIDED, Decision
from .load import ReplicaLoad, imbalance
from .picker import pick, usable
from .ring import Ring, conversation_key

BOUNDED_FACTOR = 1.25
"""Requests that a replica may have over the mean before a conversation goes to the next one on the ring."""

L = TypeVar("L", bound=ReplicaLoad)


class ChoicePolicy(Protocol[L]):
    """See `Chooser`, which is the reference for the meaning of each member."""

    @property
    def name(self) -> str:
        """As settings have it."""
        ...

    last: Decision
    cached: int
    counts: list[int]
    prompt_tokens: int
    cached_tokens: int

    def choose(
        self,
        group: Sequence[L],
        text: bytes,
        session: bytes | None,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad] = (),
        salt: int = 0,
    ) -> L | None:
        """The replica for a request; None when there is none."""
        ...

    def forget(self, load: L) -> None:
        """The replica is gone."""
        ...

    def capacity(self, load: L, kv_tokens: int, bytes_per_token: float = 4.0) -> None:
        """What the replica's KV cache holds."""
        ...

    def imbalance(self, group: Sequence[L]) -> float | None:
        """The most work at one replica over the mean."""
        ...


class _Baseline(abc.ABC, Generic[L]):
    """What the policies to compare with have in common: no memory of prefixes."""

    name = ""

    def __init__(self) -> None:
        self.last: Decision = UNDECIDED
        self.cached = self.prompt_tokens = self.cached_tokens = 0
        self.counts = [0] * len(CODES)

    def choose(
        self,
        group: Sequence[L],
        text: bytes,
        session: bytes | None,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad] = (),
        salt: int = 0,
    ) -> L | None:
        """See `ChoicePolicy`."""
        found = self._pick(group, text, session, now, turn, limit, tried)
        code = POLICY
        if found is None:
            found = pick(group, now, turn, limit, tried)
            code = NONE if found is None else LAST_RESORT
        if found is not None:
            found.chosen += 1
            self.prompt_tokens += prompt_tokens
        self.counts[code] += 1
        self.last = (code, len(group), 0, 0.0 if found is None else found.work, 0.0)
        return found

    @abc.abstractmethod
    def _pick(
        self,
        group: Sequence[L],
        text: bytes,
        session: bytes | None,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad],
    ) -> L | None:
        """The replica by this policy; None where all that it would take are not usable."""

    def forget(self, load: L) -> None:
        """Nothing is remembered."""

    def capacity(self, load: L, kv_tokens: int, bytes_per_token: float = 4.0) -> None:
        """Nothing is remembered."""

    def imbalance(self, group: Sequence[L]) -> float | None:
        """See `ChoicePolicy`."""
        return imbalance(lambda load: load.work, list(group))


class RoundRobin(_Baseline[L]):
    """One after the other."""

    name = "round-robin"

    def _pick(
        self,
        group: Sequence[L],
        text: bytes,
        session: bytes | None,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad],
    ) -> L | None:
        for step in range(len(group)):
            load = group[(turn + step) % len(group)]
            if usable(load, now, limit, tried):
                return load
        return None


class LeastRequests(_Baseline[L]):
    """The fewest requests, own and others'."""

    name = "least-requests"

    def _pick(
        self,
        group: Sequence[L],
        text: bytes,
        session: bytes | None,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad],
    ) -> L | None:
        return pick(group, now, turn, limit, tried)


class PowerOfTwo(_Baseline[L]):
    """The one with fewer requests of two at random."""

    name = "power-of-two"

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _pick(
        self,
        group: Sequence[L],
        text: bytes,
        session: bytes | None,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad],
    ) -> L | None:
        able = [load for load in group if usable(load, now, limit, tried)]
        if len(able) > 2:
            able = self._random.sample(able, 2)
        return min(able, key=lambda load: load.in_flight + load.others, default=None)


class BoundedHashing(_Baseline[L]):
    """Consistent hashing of conversations with bounded loads: home, or the next on the ring while home has more than
    `BOUNDED_FACTOR` times the mean.
    """

    name = "consistent-hash"

    def __init__(self) -> None:
        super().__init__()
        self._group: Sequence[L] | None = None
        self._ring: Ring[L] | None = None

    def _pick(
        self,
        group: Sequence[L],
        text: bytes,
        session: bytes | None,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad],
    ) -> L | None:
        if not group:
            return None
        if self._ring is None or self._group is not group:
            self._group, self._ring = group, Ring(group)
        there = 1 + sum(load.in_flight + load.others for load in group)
        most = BOUNDED_FACTOR * there / len(group)
        return self._ring.bounded(conversation_key(text, session), max(1.0, most), tried, now, limit)

    def forget(self, load: L) -> None:
        """See `ChoicePolicy`."""
        self._group = self._ring = None


POLICIES: dict[str, Callable[[], ChoicePolicy[Any]]] = {
    policy.name: policy for policy in (Chooser, RoundRobin, LeastRequests, PowerOfTwo, BoundedHashing)
}
"""By the name that settings give."""

DEFAULT_POLICY = Chooser.name


def make_chooser(name: str) -> ChoicePolicy[Any]:
    """A policy by name, for one service.

    Raises:
        ValueError: with the names there are.
    """
    if name not in POLICIES:
        raise ValueError(f"there is no policy {name!r}; write one of {', '.join(POLICIES)}")
    return POLICIES[name]()
