"""How long an answer will be, learned from answers to requests alike: same tenant, route and prompt version, about the
same length of prompt; else more coarsely.
"""

from __future__ import annotations

import enum
from typing import Final, Generic, TypeVar

from .histogram import LogHistogram

V = TypeVar("V")

ENOUGH: Final = 24
"""Answers from which their quantiles are believed."""

HALF_LIFE: Final = 200
SIGHTINGS: Final = 3
"""A key gets a histogram with its so-manieth request: whoever sends a new key each time fills no memory with them."""

MAX_KEYS: Final = 512
MAX_ROUTES: Final = 16
MATURE: Final = 256
"""Answers from which a coarse histogram counts only every fourth: enough to follow, cheaper for everybody."""

PRIOR_TOKENS: Final = 256
PRIOR_HIGH_TOKENS: Final = 1024
"""Median and P90 where nothing is known, bounded by `max_tokens`. Chat traces have medians of 130 to 640."""


class Basis(enum.IntEnum):
    """What an expected length stands on, from nothing to the most."""

    PRIOR = 0
    ROUTE = 1
    TENANT = 2
    ALIKE = 3

    @property
    def label(self) -> str:
        """As a metric has it."""
        return self.name.lower()


BASIS_WORDS: Final = {
    Basis.PRIOR: "not known yet: a general assumption, bounded by max_tokens",
    Basis.ROUTE: "learned from all requests to this path",
    Basis.TENANT: "learned from the tenant's requests to this path",
    Basis.ALIKE: "learned from the tenant's requests with this prompt version and about this length",
}


class Lengths(LogHistogram):
    """Lengths of answers, and how fine the group of requests is that they are of."""

    __slots__ = ("basis",)

    def __init__(self, basis: Basis) -> None:
        super().__init__(half_life=HALF_LIFE)
        self.basis = int(basis)


class Recent(Generic[V]):
    """A mapping that forgets what has not been asked for lately; holds at most twice `limit` entries.

    Two generations: what is found in the old one moves to the young one; when that is full, it becomes the old one.
    """

    __slots__ = ("_limit", "_old", "young")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.young: dict[int, V] = {}
        self._old: dict[int, V] = {}

    def get(self, key: int) -> V | None:
        """The value, None when there is none or it has been forgotten."""
        found = self.young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: int, value: V) -> None:
        """Keep a value."""
        if len(self.young) >= self._limit:
            self._old, self.young = self.young, {}
        self.young[key] = value

    def __len__(self) -> int:
        return len(self.young) + len(self._old)


class OutputLength:
    """The histograms of one service: of requests alike; by tenant and route; by route.

    Keys are hashes: what clients choose is never kept. Two of the three levels forget what is not used.
    """

    __slots__ = ("_by_alike", "_by_route", "_by_tenant", "_seen", "_turn")

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._by_alike: Recent[Lengths] = Recent(max_keys)
        self._by_tenant: Recent[Lengths] = Recent(max_keys)
        self._by_route: dict[bytes, Lengths] = {}
        self._seen: Recent[int] = Recent(8 * max_keys)
        self._turn = 0

    def __len__(self) -> int:
        return len(self._by_alike) + len(self._by_tenant) + len(self._by_route)

    def of(self, alike: int, tenant: str, path: bytes) -> Lengths | None:
        """The finest histogram with enough in it.

        Args:
            alike: hash of tenant, route, prompt version and the prompt's order of length.
        """
        found = self._by_alike.young.get(alike) or self._by_alike.get(alike)
        if found is not None and found.count >= ENOUGH:
            return found
        found = self._by_tenant.get(hash((tenant, path)))
        if found is not None and found.count >= ENOUGH:
            return found
        found = self._by_route.get(path)
        return found if found is not None and found.count >= ENOUGH else None

    def learn(self, alike: int, tenant: str, path: bytes, tokens: int, max_tokens: int | None) -> None:
        """An answer of so many tokens."""
        turn = self._turn = self._turn + 1
        found = self._by_alike.get(alike) or self._introduce(self._by_alike, alike, Basis.ALIKE)
        if found is not None:
            _add(found, tokens, max_tokens, turn)
        key = hash((tenant, path))
        found = self._by_tenant.get(key) or self._introduce(self._by_tenant, key, Basis.TENANT)
        if found is not None and (found.count < MATURE or not turn & 3):
            _add(found, tokens, max_tokens, turn)
        found = self._by_route.get(path)
        if found is None and len(self._by_route) < MAX_ROUTES:
            found = self._by_route[path] = Lengths(Basis.ROUTE)
        if found is not None and (found.count < MATURE or not turn & 3):
            _add(found, tokens, max_tokens, turn)

    def _introduce(self, level: Recent[Lengths], key: int, basis: Basis) -> Lengths | None:
        seen = (self._seen.get(key) or 0) + 1
        if seen < SIGHTINGS:
            self._seen.put(key, seen)
            return None
        made = Lengths(basis)
        level.put(key, made)
        return made


def _add(histogram: LogHistogram, tokens: int, max_tokens: int | None, turn: int) -> None:
    """Count an answer. One that was allowed not even half the median says little of the others: its shortness is the
    client's wish, and its own estimate is bounded by that wish anyway. One in eight still counts, lest everybody's
    wish should change.
    """
    if max_tokens is not None and 2 * max_tokens < histogram.low and histogram.count >= ENOUGH and turn & 7:
        return
    histogram.add(tokens)
