"""A bound on retries, so that a failing fleet is not also flooded."""

from __future__ import annotations

from typing import Final

BURST: Final = 256.0
"""Retries that may be made at once: one dying replica makes all that wait there retry at the same moment."""

PER_SECOND: Final = 10.0
"""Retries per second that a service with little traffic has besides its share."""


class RetryBudget:
    """A token bucket of one service: each request adds a share of a token, each retry takes one, and a floor refills
    with time. It begins full. What it stops is a fleet in which most requests fail.
    """

    __slots__ = ("_filled_at", "_per_second", "_percent", "capacity", "share", "tokens")

    def __init__(self, now: float, percent: int = 10) -> None:
        self._percent = -1
        self._filled_at = now
        self.tokens = BURST
        self.use(percent)

    def use(self, percent: int) -> None:
        """Follow the spec: retries for every hundred requests; 0 allows none."""
        if percent == self._percent:
            return
        self._percent = percent
        self.share = percent / 100.0
        self.capacity = BURST if percent else 0.0
        self._per_second = PER_SECOND if percent else 0.0
        self.tokens = min(self.tokens, self.capacity) if percent else 0.0

    def request(self) -> None:
        """Count a request."""
        if self.tokens < self.capacity:
            self.tokens += self.share

    def has(self, now: float) -> bool:
        """Whether a retry may be made now."""
        self.tokens = min(self.capacity, self.tokens + max(0.0, now - self._filled_at) * self._per_second)
        self._filled_at = now
        return self.tokens >= 1.0

    def take(self, now: float) -> bool:
        """The same, and if so it is counted."""
        if not self.has(now):
            return False
        self.tokens -= 1.0
        return True
