"""Quantiles of what was counted in histograms between two looks. Pure.

Buckets are those of the Prometheus text format: cumulative counts by their upper bound, the last one infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

FEWEST = 20
"""Observations of which any quantile at all says something."""

Buckets: TypeAlias = Mapping[float, float]
"""Observations up to each upper bound."""


def increase(before: Buckets, after: Buckets) -> Buckets | None:
    """What was observed between two looks at one histogram; of one that began anew, all that it has.

    None where they do not have the same bounds: another release, so that nothing can be said.
    """
    if before.keys() != after.keys():
        return None
    grown = {bound: count - before[bound] for bound, count in after.items()}
    return after if min(grown.values(), default=0.0) < 0 else grown


def together(found: list[Buckets]) -> Buckets | None:
    """The sum over replicas; None where their bounds differ."""
    if any(one.keys() != found[0].keys() for one in found):
        return None
    return {bound: sum(one[bound] for one in found) for bound in found[0]} if found else {}


def count(buckets: Buckets) -> float:
    """Observations in all."""
    return buckets.get(math.inf, 0.0)


def fewest_for(level: float) -> int:
    """Observations of which a quantile says something: more than one of them lies beyond it."""
    return max(FEWEST, math.ceil(2.0 / (1.0 - level) - 1e-6))


def quantile(buckets: Buckets, level: float) -> float | None:
    """The value that a share `level` of the observations does not exceed, as Prometheus' `histogram_quantile`.

    Within a bucket observations count as spread evenly, and beyond the highest finite bound as lying on it. None where
    nothing was observed.
    """
    total = count(buckets)
    if not total > 0:
        return None
    rank, lower, below = level * total, 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= rank and bound != math.inf:
            inside = buckets[bound] - below
            return lower + (bound - lower) * ((rank - below) / inside if inside > 0 else 1.0)
        if bound == math.inf:
            break
        lower, below = bound, buckets[bound]
    return lower
