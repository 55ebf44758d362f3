"""How values are spread: cells with counts, from a sketch or from single values, and their quantiles."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Final

from paceline_crds.sketch import EDGES, Sketch

RESOLUTION_PERCENT: Final = 5.0
"""Widest bucket of a sketch: smaller differences between two versions' quantiles cannot be told."""

_BOUNDS: Final = ((0.0, EDGES[0]), *pairwise(EDGES), (EDGES[-1], math.inf))


class Spread:
    """Counts in cells of rising values; within a cell they are taken as evenly spread."""

    __slots__ = ("_cells", "_counts", "_until", "count")

    def __init__(self, cells: Iterable[tuple[float, float, float]]) -> None:
        """
        Args:
            cells: (low, high, count), rising, without empty ones.
        """
        taken = list(cells)
        self._cells = [(low, high) for low, high, _ in taken]
        self._counts = [count for _, _, count in taken]
        self._until = list(accumulate(self._counts))
        self.count = self._until[-1] if taken else 0.0

    @classmethod
    def of_sketch(cls, sketch: Sketch) -> Spread:
        """Of times, seconds. What lies above the scale has no upper end."""
        return cls.of_buckets(sketch.counts)

    @classmethod
    def of_buckets(cls, counts: Mapping[int, float]) -> Spread:
        """The same of counts by bucket, which may be fractions."""
        return cls((*_BOUNDS[bucket], count) for bucket, count in sorted(counts.items()) if count)

    @classmethod
    def of_values(cls, values: Iterable[float]) -> Spread:
        """Of single values."""
        return cls((value, value, 1.0) for value in sorted(values))

    def at(self, share: float) -> float:
        """The value that `share` (0 to 1) of all do not exceed. At 0 it is 0 and at 1 infinite: what was not seen
        has no bound.
        """
        if share >= 1.0:
            return math.inf
        if share <= 0.0 or not self._cells:
            return 0.0
        rank = share * self.count
        at = min(bisect_left(self._until, rank), len(self._cells) - 1)
        low, high = self._cells[at]
        if low == high or math.isinf(high):
            return high
        within = (rank - (self._until[at] - self._counts[at])) / self._counts[at]
        return low + (high - low) * within


def below(sketch: Sketch, value: float) -> float:
    """How many of a sketch's values do not exceed `value`, evenly spread within its bucket."""
    bucket = bisect_left(EDGES, value)
    low, high = _BOUNDS[bucket]
    within = 0.0 if math.isinf(high) else (value - low) / (high - low)
    return sum(count for one, count in sketch.counts.items() if one < bucket) + within * sketch.counts.get(bucket, 0)
