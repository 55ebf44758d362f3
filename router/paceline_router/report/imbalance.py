"""How unevenly the replicas of a pool are loaded. One look says nothing, so looks are averaged over some seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SECONDS = 10.0
LOOK_SECONDS = 1.0

Pool = tuple[str, str]
"""A service's key and a pool."""


class Imbalance:
    """The busiest replica's mean outstanding work over that of all of its pool; 1 is even.

    Attributes:
        ratios: of the last full stretch, replaced as a whole. A pool with fewer than two replicas, or without work, is
            not in it.
    """

    __slots__ = ("_begin", "_looked_at", "_sums", "ratios")

    def __init__(self) -> None:
        self._begin: float | None = None
        self._looked_at = 0.0
        self._sums: dict[Pool, dict[str, float]] = {}
        self.ratios: Mapping[Pool, float] = {}

    def due(self, now: float) -> bool:
        """Whether it is time for another look."""
        return now - self._looked_at >= LOOK_SECONDS

    def look(self, replicas: Iterable[tuple[Pool, str, float]], now: float) -> None:
        """Take the outstanding work of each ready replica, by its pool and uid."""
        self._looked_at = now
        if self._begin is None:
            self._begin = now
        for pool, uid, work in replicas:
            sums = self._sums.setdefault(pool, {})
            sums[uid] = sums.get(uid, 0.0) + work
        if now - self._begin >= SECONDS:
            self.ratios = {
                pool: max(sums.values()) * len(sums) / total
                for pool, sums in self._sums.items()
                if len(sums) > 1 and (total := sum(sums.values())) > 0.0
            }
            self._sums = {}
            self._begin = now
