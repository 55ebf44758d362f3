"""Histograms of times: plain lists of counts, since a labelled histogram of the usual client library costs as much as
parsing the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from paceline_crds.sketch import BUCKETS, EDGES
from paceline_router.report.text import Labels, Sample

SHORT = (
    0.00002,
    0.00005,
    0.0001,
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
)
"""Upper bounds, seconds, for what takes a router or a link its microseconds to milliseconds."""

LONG = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""For waiting and for the engine."""

TTFT = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    5.0,
    7.5,
    10.0,
    20.0,
    30.0,
    60.0,
)
TPOT = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
DURATION = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""What of the fine scale of `paceline_crds.sketch` is shown: dense where objectives usually are."""


def bucket_of(edges: tuple[float, ...], value: float) -> int:
    """Index of the first bound that is not below a value. `bisect.bisect_left` finds the same, but compares objects:
    once this is compiled it takes a third of the time.
    """
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


class Histogram:
    """Counts per bucket, the last one open-ended, and the sum of all values."""

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value, seconds."""
        self.counts[bucket_of(self.edges, value)] += 1
        self.sum += value

    def samples(self, name: str, labels: Labels, zeros: int = 0) -> Iterator[Sample]:
        """The series Prometheus expects of a histogram.

        Args:
            zeros: values of 0 that `observe` was spared.
        """
        return _series(name, labels, self.edges, self.counts, self.sum, zeros)


class FineHistogram:
    """Counts over the fine scale, from which both sketches and the buckets that are shown are made."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value, seconds."""
        self.counts[bucket_of(EDGES, value)] += 1
        self.sum += value

    def samples(self, name: str, labels: Labels, edges: tuple[float, ...]) -> Iterator[Sample]:
        """The series of a histogram with these buckets, each of which is on the fine scale."""
        counts = self.counts[:]
        shown = [sum(counts[begin:end]) for begin, end in _spans(edges)]
        return _series(name, labels, edges, shown, self.sum, 0)


@cache
def _spans(edges: tuple[float, ...]) -> tuple[tuple[int, int], ...]:
    """Which stretches of the fine scale the buckets with these bounds are."""
    return tuple(pairwise([0, *(EDGES.index(edge) + 1 for edge in edges), BUCKETS]))


@cache
def _bounds(edges: tuple[float, ...]) -> tuple[tuple[str, str], ...]:
    """The label of each bucket. Without an exponent: one bound must have one spelling."""
    plain = (format(edge, "f").rstrip("0") if edge < 0.001 else str(edge) for edge in edges)
    return tuple(("le", text) for text in (*plain, "+Inf"))


def _series(
    name: str, labels: Labels, edges: tuple[float, ...], counts: Sequence[int], total: float, zeros: int
) -> Iterator[Sample]:
    bucket = name + "_bucket"
    running = zeros
    for bound, count in zip(_bounds(edges), tuple(counts), strict=True):
        running += count
        yield bucket, (*labels, bound), running
    yield name + "_sum", labels, total
    yield name + "_count", labels, running
