"""Quantiles of a stream of positive numbers in constant memory and constant time, the newest weighing the most."""

from __future__ import annotations

import math
from array import array
from typing import Final

PER_OCTAVE: Final = 8
"""Buckets between a value and its double: a quantile is off by at most `ERROR` of itself."""

OCTAVES: Final = 20
BUCKETS: Final = PER_OCTAVE * OCTAVES
ERROR: Final = 2 ** (0.5 / PER_OCTAVE) - 1
"""Half a bucket, as a share of the value: 4.4 %."""

LARGEST: Final = 2**OCTAVES - 1
_TABLE: Final = bytes(0 if value < 1 else int(PER_OCTAVE * math.log2(value)) for value in range(4096))
_MIDDLES: Final = tuple(2 ** ((bucket + 0.5) / PER_OCTAVE) for bucket in range(BUCKETS))
_TOO_HEAVY: Final = 1e100


def bucket_of(value: int) -> int:
    """The bucket of a whole number; 0 and 1 share one, and so does everything from `LARGEST` on."""
    if value < 4096:
        return _TABLE[value] if value > 0 else 0
    return min(BUCKETS - 1, int(PER_OCTAVE * math.log2(value)))


class LogHistogram:
    """Two quantiles of whole numbers from 1 to a million, kept up to date with each number.

    Each number weighs more than the one before by a constant factor, so that the weight of what is `half_life` numbers
    old is half that of the newest: after a change the median is the new one within `half_life` numbers. The two
    quantiles are kept as places in the histogram that move by the few buckets that one number can move them.

    Attributes:
        count: numbers seen, old and new.
        low, high: the two quantiles; 0 before the first number.
    """

    __slots__ = (
        "_below_high",
        "_below_low",
        "_buckets",
        "_growth",
        "_high_at",
        "_high_share",
        "_low_at",
        "_low_share",
        "_total",
        "_weight",
        "count",
        "high",
        "low",
    )

    def __init__(self, low: float = 0.5, high: float = 0.9, half_life: float = 200) -> None:
        self._buckets = array("d", bytes(8 * BUCKETS))
        self._low_share, self._high_share = low, high
        self._growth = 2 ** (1 / half_life)
        self._weight = 1.0
        self._total = 0.0
        self._low_at = self._high_at = 0
        self._below_low = self._below_high = 0.0
        self.count = 0
        self.low = self.high = 0

    def add(self, value: int) -> None:
        """Count one number."""
        bucket = (_TABLE[value] if value > 0 else 0) if value < 4096 else bucket_of(value)
        weight = self._weight
        buckets = self._buckets
        buckets[bucket] += weight
        total = self._total = self._total + weight
        self.count += 1

        at, below, wanted = self._low_at, self._below_low, self._low_share * total
        if bucket < at:
            below += weight
        while below > wanted and at:
            at -= 1
            below -= buckets[at]
        while below + buckets[at] < wanted and at < BUCKETS - 1:
            below += buckets[at]
            at += 1
        if at != self._low_at or not self.low:
            self._low_at = at
            self.low = int(_MIDDLES[at] + 0.5)
        self._below_low = below

        at, below, wanted = self._high_at, self._below_high, self._high_share * total
        if bucket < at:
            below += weight
        while below > wanted and at:
            at -= 1
            below -= buckets[at]
        while below + buckets[at] < wanted and at < BUCKETS - 1:
            below += buckets[at]
            at += 1
        if at != self._high_at or not self.high:
            self._high_at = at
            self.high = int(_MIDDLES[at] + 0.5)
        self._below_high = below

        self._weight = weight * self._growth
        if total > _TOO_HEAVY:
            self._lighten()

    def quantile(self, share: float) -> int:
        """Any other quantile, by counting; 0 before the first number."""
        wanted = share * self._total
        reached = 0.0
        for bucket, weight in enumerate(self._buckets):
            reached += weight
            if weight and reached >= wanted:
                return int(_MIDDLES[bucket] + 0.5)
        return self.high

    def _lighten(self) -> None:
        """Divide all weights, and sum up anew what rounding has blurred meanwhile."""
        scale = 1 / self._weight
        self._buckets = array("d", (weight * scale for weight in self._buckets))
        self._weight = 1.0
        self._total = sum(self._buckets)
        self._below_low = sum(self._buckets[: self._low_at])
        self._below_high = sum(self._buckets[: self._high_at])
