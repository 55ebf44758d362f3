"""How strong the evidence is against a guess, in a way that may be looked at as often as one likes.

For values from 0 to 1 whose mean is `p`, drawn one after the other, the ratio of the beta-binomial mixture to the
likelihood at `p` is a martingale that starts at 1 (for 0/1 values exactly; for others it is at most one, since
`a**y * b**(1 - y) <= y*a + (1 - y)*b`). By Ville's inequality it *ever* reaches `1/alpha` with a probability of at
most `alpha`. So the guesses at which it is below that are an interval that holds at all times together, and no number
of looks raises the share of false alarms over `alpha`. Sources: Robbins, "Statistical methods related to the law of
the iterated logarithm" (1970); Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic
confidence sequences" (Annals of Statistics 2021), where this is the beta-binomial mixture bound; for quantiles Howard
and Ramdas, "Sequential estimation of quantiles with applications to A/B testing" (Bernoulli 2022).

Two versions' evidences are independent given the guesses, so that their product is a martingale of that kind too: the
pairs of guesses at which it is below `1/alpha` are a joint region, and its shadow is the interval of a difference or a
ratio. That is narrower than one interval from each side with half of `alpha`.

What it assumes: draws that do not depend on each other. Requests of one minute do; see `dispersion`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

QUANTILE_WEIGHT = 100.0
"""Samples that the mixture weighs like the level of a quantile: the interval is about the narrowest possible at some
`2 * log(1/alpha)` times as many (1,000 to 1,500), and valid at any number."""

NO_PRIOR = (0.5, 0.5)
"""Of a mean, where no guess is likelier beforehand (Jeffreys)."""

CELLS = 16
"""Pieces that one side's interval is cut into to find the joint region; each is taken at its worst."""

HALVINGS = 24
FEWEST_BLOCKS = 16
"""Blocks from which a variance between them is worth something."""


def log_evidence(hits: float, of: float, guess: float, prior: tuple[float, float] = NO_PRIOR) -> float:
    """Logarithm of the evidence against `guess` as the mean of values from 0 to 1.

    It is convex in `guess`, with its minimum at `hits / of`, and convex in `hits`.

    Args:
        hits: sum of the values, 0 to `of`.
        of: how many.
        guess: 0 to 1.
        prior: parameters of the beta distribution that is mixed over; not chosen after the data.
    """
    rest = of - hits
    if guess <= 0.0 or guess >= 1.0:
        if (hits if guess <= 0.0 else rest) > 0.0:
            return math.inf
        return _log_beta(prior[0] + hits, prior[1] + rest) - _log_beta(*prior)
    mixture = _log_beta(prior[0] + hits, prior[1] + rest) - _log_beta(*prior)
    return mixture - hits * math.log(guess) - rest * math.log1p(-guess)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


@dataclass(frozen=True, slots=True)
class Unknown:
    """One version's unknown number, as a coordinate from 0 to 1.

    Attributes:
        against: evidence (logarithm) against a coordinate; falls towards `centre` from both sides.
        centre: the likeliest coordinate.
        value: what a coordinate means; rises with it.
    """

    against: Callable[[float], float]
    centre: float
    value: Callable[[float], float]

    def end(self, budget: float, upper: bool) -> float:
        """The coordinate, above or below the centre, up to which the evidence against it is below `budget`."""
        out = 1.0 if upper else 0.0
        if self.against(out) < budget:
            return out
        inside, outside = self.centre, out
        for _ in range(HALVINGS):
            middle = 0.5 * (inside + outside)
            if self.against(middle) < budget:
                inside = middle
            else:
                outside = middle
        return outside


def mean_of(hits: float, of: float) -> Unknown:
    """The mean of values from 0 to 1, of which `of` add up to `hits`."""
    return Unknown(lambda guess: log_evidence(hits, of, guess), hits / of if of else 0.5, lambda guess: guess)


def quantile_of(level: float, of: float, value: Callable[[float], float]) -> Unknown:
    """The `level` quantile (over 0, under 1) of `of` values, of which `value(share)` is what a share does not exceed.

    Its coordinate is that share: at the true quantile, `level` of all values are expected below.
    """
    prior = (QUANTILE_WEIGHT * level, QUANTILE_WEIGHT * (1.0 - level))
    return Unknown(lambda share: log_evidence(share * of, of, level, prior), level, value)


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`; an end that nothing is known of is infinite."""

    low: float
    high: float


def interval(of: Unknown, alpha: float) -> Interval:
    """The values that hold at all looks together with a probability of `1 - alpha`."""
    budget = -math.log(alpha)
    return Interval(of.value(of.end(budget, upper=False)), of.value(of.end(budget, upper=True)))


def joint_interval(
    base: Unknown, candidate: Unknown, alpha: float, combine: Callable[[float, float], float]
) -> Interval:
    """The same of `combine(candidate, base)`, which rises with the candidate and falls with the base."""
    budget = -math.log(alpha)
    return Interval(
        _extreme(base, candidate, budget, combine, upper=False), _extreme(base, candidate, budget, combine, upper=True)
    )


def _extreme(
    base: Unknown, candidate: Unknown, budget: float, combine: Callable[[float, float], float], upper: bool
) -> float:
    """One end of the joint region. The base's coordinate goes from its centre outward, against the candidate's."""
    # At its centre the candidate speaks for itself (below zero), which leaves the base that much more room.
    far = base.end(budget - candidate.against(candidate.centre), upper=not upper)
    ends = [base.centre + (far - base.centre) * step / CELLS for step in range(CELLS + 1)]
    found = []
    for near, out in itertools.pairwise(ends):
        # Within the cell the evidence is at least what it is at the near end, and the value at most what it is at
        # the far one: so the cell counts for more than it is, never for less.
        left = budget - base.against(near)
        if left <= candidate.against(candidate.centre):
            break
        found.append(combine(candidate.value(candidate.end(left, upper=upper)), base.value(out)))
    return max(found) if upper else min(found)


def dispersion(blocks: Sequence[tuple[float, float]]) -> float:
    """By how much shares vary more between stretches of time than independent draws would: samples that depend on
    each other are worth as many fewer. At least 1.

    Pearson's statistic over its degrees of freedom (McCullagh and Nelder 1989, 4.5), at this and each doubled length
    of the stretches that leaves at least `FEWEST_BLOCKS` of them (batch means), of which the largest counts.

    Args:
        blocks: (hits, of) of consecutive stretches.
    """
    worst = 1.0
    while True:
        filled = [(hits, of) for hits, of in blocks if of > 0.0]
        share = sum(hits for hits, _ in filled) / max(sum(of for _, of in filled), 1e-300)
        if len(filled) > 1 and 0.0 < share < 1.0:
            chi = sum((hits - of * share) ** 2 / (of * share * (1.0 - share)) for hits, of in filled)
            worst = max(worst, chi / (len(filled) - 1))
        if len(blocks) < 2 * FEWEST_BLOCKS:
            return worst
        pairs = zip(blocks[::2], blocks[1::2], strict=False)
        blocks = [(left[0] + right[0], left[1] + right[1]) for left, right in pairs]


@dataclass(frozen=True, slots=True)
class Stratum:
    """One stretch of time.

    Attributes:
        base, candidate: how many of each.
    """

    base: float
    candidate: float

    @property
    def weight(self) -> float:
        """With which it counts for both versions alike, so that neither has more of a busy stretch (Cochran 1954,
        Mantel and Haenszel 1959); 0 where one of them has nothing to compare.
        """
        both = self.base + self.candidate
        return self.base * self.candidate / both if both else 0.0


def matched(strata: Sequence[Stratum]) -> tuple[float, float]:
    """How many independent draws of base and candidate say as much as those of the strata, so weighted (Kish 1965)."""
    total = sum(one.weight for one in strata)
    if not total:
        return 0.0, 0.0
    squares = [one.weight**2 for one in strata]
    base = sum(square / one.base for square, one in zip(squares, strata, strict=True) if square)
    candidate = sum(square / one.candidate for square, one in zip(squares, strata, strict=True) if square)
    return total**2 / base, total**2 / candidate


def paired_dispersion(blocks: Sequence[tuple[float, float]]) -> float:
    """By how much the difference of two versions varies more between stretches of time than independent draws would. At
    least 1. What makes both slower at once is in no difference, so it makes the samples worth no less.

    The sum of squares over its expectation, at the lengths of stretches of `dispersion`, of which the largest counts.

    Args:
        blocks: (difference, its variance if draws were independent) of consecutive stretches; the differences add up to
            about 0.
    """
    worst = 1.0
    while True:
        filled = [(difference, expected) for difference, expected in blocks if expected > 0.0]
        if len(filled) > 1:
            squares, expected = sum(difference**2 for difference, _ in filled), sum(one for _, one in filled)
            worst = max(worst, squares / expected * len(filled) / (len(filled) - 1))
        if len(blocks) < 2 * FEWEST_BLOCKS:
            return worst
        pairs = zip(blocks[::2], blocks[1::2], strict=False)
        blocks = [(left[0] + right[0], left[1] + right[1]) for left, right in pairs]
