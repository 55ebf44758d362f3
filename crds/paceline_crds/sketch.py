"""Quantile sketches of times, as routers hand them to the operator: counts over one fixed scale, so that sketches of
several routers, revisions or stretches of time are merged by adding.

The scale is decimal: 70 steps a decade from 0.1 ms to 1000 s, none over 5 % wide, so that any round limit is on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import accumulate
from math import ceil
from typing import Any, Final

SCALE: Final = "decimal-70"
"""Names the scale on the wire; sketches of another one cannot be merged with these."""

_STEPS: Final = (*range(100, 200, 5), *range(200, 500, 10), *range(500, 1000, 25))

EDGES: Final[tuple[float, ...]] = (
    *(float(Decimal(step).scaleb(decade - 2)) for decade in range(-4, 3) for step in _STEPS),
    1000.0,
)
"""Upper bounds, seconds. Bucket 0 is all up to the first one, bucket `i` is `(EDGES[i - 1], EDGES[i]]`, and the last
bucket is all above.
"""

BUCKETS: Final = len(EDGES) + 1

RELATIVE_ERROR: Final = 0.025
"""How far a quantile is from the true one at most, for values on the scale. Others count as its ends."""


class Sketch:
    """How many values fell into which bucket. Equal where the counts are."""

    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, values: Iterable[float]) -> Sketch:
        """The sketch of these values, seconds."""
        sketch = cls()
        for value in values:
            bucket = bisect_left(EDGES, value)
            sketch.counts[bucket] = sketch.counts.get(bucket, 0) + 1
        return sketch

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self.counts.values())

    def add(self, counts: Iterable[tuple[int, int]]) -> None:
        """Add counts by bucket."""
        for bucket, count in counts:
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def merged(self, other: Sketch) -> Sketch:
        """Both together."""
        both = Sketch(self.counts)
        both.add(other.counts.items())
        return both

    def quantile(self, share: float) -> float | None:
        """The value, seconds, that `share` (0 to 1) of all do not exceed; None when there is no value."""
        ranked = sorted(self.counts.items())
        running = list(accumulate(count for _, count in ranked))
        if not running or running[-1] == 0:
            return None
        rank = min(max(1, ceil(share * running[-1])), running[-1])
        bucket = ranked[bisect_left(running, rank)][0]
        if bucket == 0 or bucket == len(EDGES):
            return EDGES[min(bucket, len(EDGES) - 1)]
        low, high = EDGES[bucket - 1], EDGES[bucket]
        return 2.0 * low * high / (low + high)

    def encode(self) -> list[list[int]]:
        """For JSON: `[bucket, count]` in order."""
        return [[bucket, count] for bucket, count in sorted(self.counts.items()) if count]

    @classmethod
    def decode(cls, value: Any) -> Sketch:
        """Read what `encode` made.

        Raises:
            ValueError: it is something else.
        """
        sketch = cls()
        for pair in value if isinstance(value, list) else [None]:
            if not (isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)):
                raise ValueError("a sketch is a list of pairs of whole numbers")
            bucket, count = pair
            if not (0 <= bucket < BUCKETS and count > 0):
                raise ValueError(f"a sketch has buckets from 0 to {BUCKETS - 1} and counts from 1")
            sketch.add([(bucket, count)])
        return sketch
