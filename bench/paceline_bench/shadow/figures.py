"""Is a setting no worse than none: paired differences and their interval. Pure."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

RELATIVE_MARGIN = 0.02
ABSOLUTE_MARGIN_MS = 1.0
"""No worse: by less than the larger of these two."""

CONFIDENCE = 0.95
LEAST_ROUNDS = 6

METRICS = ("first_p50_ms", "first_p99_ms", "p50_ms", "p99_ms")


class Said(enum.StrEnum):
    """What an interval says."""

    NO_WORSE = "no worse"
    WORSE = "worse"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Paired:
    """Milliseconds: the baseline's median, the median difference from it, and the interval of that."""

    base: float
    middle: float
    low: float
    high: float

    @property
    def margin(self) -> float:
        """What counts as no difference."""
        return max(RELATIVE_MARGIN * self.base, ABSOLUTE_MARGIN_MS)

    @property
    def said(self) -> Said:
        """Whether the difference is within the margin."""
        if self.high <= self.margin:
            return Said.NO_WORSE
        return Said.WORSE if self.low > self.margin else Said.NOT_KNOWN


def paired(base: Sequence[float], beside: Sequence[float]) -> Paired:
    """Compare two settings round by round.

    Args:
        base: without copies, one value a round; each the mean of the runs before and after the other's.
        beside: with copies, as many.

    Raises:
        ValueError: fewer than `LEAST_ROUNDS`.
    """
    differences = sorted(other - one for one, other in zip(base, beside, strict=True))
    rank = _rank(len(differences))
    return Paired(statistics.median(base), statistics.median(differences), differences[rank], differences[-1 - rank])


def _rank(rounds: int) -> int:
    """Which of the sorted differences, from either end, bounds the median with `CONFIDENCE`: the sign test turned
    round, which needs no shape of the noise (Hollander, Wolfe and Chicken 2013, 3.6).
    """
    outside, rank = 0.0, 0
    while (outside := outside + 2 * comb(rounds, rank) / 2**rounds) <= 1 - CONFIDENCE:
        rank += 1
    if rank == 0:
        raise ValueError(f"{LEAST_ROUNDS} rounds at least, or there is no interval")
    return rank - 1
