"""Is a setting no worse than none: paired differences and their interval. Pure."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

RELATIVE_MARGIN = 0.02
ABSOLUTE_MARGIN_MS = 1.0
"""No worse: by less than the larger of these two."""

METRICS = ("first_p50_ms", "first_p99_ms", "p50_ms", "p99_ms")


class Said(enum.StrEnum):
    """What an interval says."""

    NO_WORSE = "no worse"
    WORSE = "worse"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Paired:
    """Milliseconds: the baseline's median, the mean difference from it, and the 95 % interval of that."""

    base: float
    mean: float
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
        ValueError: fewer than three rounds.
    """
    differences = [other - one for one, other in zip(base, beside, strict=True)]
    if len(differences) < 3:
        raise ValueError("three rounds at least, or there is no interval")
    mean = statistics.fmean(differences)
    half = t_quantile(len(differences) - 1) * statistics.stdev(differences) / len(differences) ** 0.5
    return Paired(statistics.median(base), mean, mean - half, mean + half)


def t_quantile(freedom: int) -> float:
    """Upper 2.5 % point of Student's t (Abramowitz and Stegun 26.7.5; 1.3 % low for two degrees of freedom, less for
    more).
    """
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / freedom + second / freedom**2 + third / freedom**3 + fourth / freedom**4
