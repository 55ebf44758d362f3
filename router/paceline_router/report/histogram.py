"""Histograms of times: plain lists of counts, since a labelled histogram of the usual client library costs as much as
parsing the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from paceline_crds.sketch import BUCKETS, EDGES
from paceline_router.report.text import Exemplar, Labels, Place, Sample

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
    0.25,
    0.3,
    0.4,
    0.5,
    0.75,
    0.8,
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
TPOT = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3, 0.5, 1.0)
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
    """Counts over the fine scale, from which both sketches and the buckets that are shown are made.

    Attributes:
        exemplars: of each shown bucket the last request that fell into it, and its value.
    """

    __slots__ = ("_shown", "counts", "edges", "exemplars", "sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        """
        Args:
            edges: bounds of the buckets that are shown, each of which is on the fine scale.
        """
        self.edges = edges
        self.counts = [0] * BUCKETS
        self.sum = 0.0
        self.exemplars: dict[int, tuple[bytes, float]] = {}
        self._shown = _shown_in(edges)

    def observe(self, value: float, request_id: bytes = b"") -> None:
        """Count one value, seconds, and remember whose it is."""
        bucket = bucket_of(EDGES, value)
        self.counts[bucket] += 1
        self.sum += value
        if request_id:
            self.exemplars[self._shown[bucket]] = (request_id, value)

    def samples(self, name: str, labels: Labels) -> Iterator[Sample]:
        """The series of a histogram."""
        counts = self.counts[:]
        shown = [sum(counts[begin:end]) for begin, end in _spans(self.edges)]
        return _series(name, labels, self.edges, shown, self.sum, 0)

    def pointed(self, name: str, labels: Labels) -> Iterator[tuple[Place, Exemplar]]:
        """The exemplars, each with the series that it belongs to."""
        for bound, place in enumerate(_bounds(self.edges)):
            found = self.exemplars.get(bound)
            if found is not None:
                yield (name + "_bucket", (*labels, place)), (found[0].decode("latin-1"), found[1])


@cache
def _spans(edges: tuple[float, ...]) -> tuple[tuple[int, int], ...]:
    """Which stretches of the fine scale the buckets with these bounds are."""
    return tuple(pairwise([0, *(EDGES.index(edge) + 1 for edge in edges), BUCKETS]))


@cache
def _shown_in(edges: tuple[float, ...]) -> list[int]:
    """For each bucket of the fine scale, which of the shown ones it is part of."""
    return [shown for shown, (begin, end) in enumerate(_spans(edges)) for _ in range(begin, end)]


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
