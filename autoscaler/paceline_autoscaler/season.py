"""Whether the load repeats itself after some minutes, and what it then will be. Pure: memory is a value.

Jobs that start at every full quarter of an hour, or a test that goes round and round, make a load whose next rise can
be known before any of it is seen. Of every lag the mean squared difference between the load and itself so much earlier
is kept (the variogram: Matheron 1963). A load without rhythm is as unlike itself after a while as any two of its
values, twice its variance; one that repeats is like itself again after its period, and unlike between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BIN = 15.0
LAGS = 400
"""Bins of the longest period that is looked for: 100 minutes. A day is another matter: see `forecast`."""

KEPT = math.exp(-1.0 / (2 * LAGS))
"""What of the memory is left after one bin more."""

COMPARED = 0.75
"""Share of a period that has to have been seen twice."""

UNLIKE = 0.5
"""Share of what two values at random differ by that a shorter lag has to reach: else any small lag is a period."""

LIKE = 0.35
"""Share up to which a load counts as like itself."""

AS_GOOD = 0.05
VARIED = 0.3
"""Share of the load's variance that has to lie in what was compared: two quiet times are alike and tell nothing."""

DRIFT_BINS = 8
"""Bins over which it is judged by how much the load is now above or below a period ago."""

SPREAD_BINS = 2
"""Bins that a peak has to last for."""


@dataclass(frozen=True, slots=True)
class Season:
    """What was seen, in bins of `BIN` seconds; the older of it weighs less.

    Attributes:
        bins: means, the oldest first; None where nothing was measured.
        filling: number of the bin that is being filled, the sum in it, and the count.
        sums: weight, sum, and sum of squares of all bins.
        lags: of each lag, one bin first: weight, squared differences, sum and sum of squares of the later values.
    """

    bins: tuple[float | None, ...] = ()
    filling: tuple[int, float, int] = (-1, 0.0, 0)
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    lags: tuple[tuple[float, float, float, float], ...] = ()


def see(season: Season, load: float, now: float) -> Season:
    """With one measurement more."""
    number, total, count = season.filling
    here = int(now // BIN)
    if here == number:
        return Season(season.bins, (number, total + load, count + 1), season.sums, season.lags)
    if not count or not number < here <= number + LAGS:
        return Season(filling=(here, load, 1))
    season = _filled(season, total / count)
    for _ in range(here - number - 1):
        season = _filled(season, None)
    return Season(season.bins, (here, load, 1), season.sums, season.lags)


def _filled(season: Season, mean: float | None) -> Season:
    bins = (*season.bins, mean)[-LAGS - DRIFT_BINS :]
    if mean is None:
        return Season(bins, season.filling, season.sums, season.lags)
    weight, total, squares = season.sums
    sums = (KEPT * weight + 1.0, KEPT * total + mean, KEPT * squares + mean * mean)
    lags = list(season.lags)
    for lag, before in enumerate(reversed(bins[:-1][-LAGS:])):
        if lag == len(lags):
            lags.append((0.0, 0.0, 0.0, 0.0))
        if before is not None:
            pairs, apart, of, squared = lags[lag]
            lags[lag] = (
                KEPT * pairs + 1.0,
                KEPT * apart + (mean - before) ** 2,
                KEPT * of + mean,
                KEPT * squared + mean * mean,
            )
    return Season(bins, season.filling, sums, tuple(lags))


def period(season: Season) -> int | None:
    """Bins after which the load is like itself again; None where there is no such time, or too little was seen."""
    weight, total, squares = season.sums
    if not weight:
        return None
    variance = squares / weight - (total / weight) ** 2
    unlike = False
    known: dict[int, float] = {}
    for lag, (pairs, apart, of, squared) in enumerate(season.lags, 1):
        if pairs <= 0 or variance <= 1e-9:
            continue
        varied = squared / pairs - (of / pairs) ** 2
        if unlike and pairs >= COMPARED * lag and varied >= VARIED * variance:
            known[lag] = apart / pairs / (2.0 * varied)
        unlike = unlike or apart / pairs >= 2.0 * UNLIKE * variance
    if not known:
        return None
    limit = min(known.values())
    if limit > LIKE:
        return None
    limit += AS_GOOD
    first = next(lag for lag, share in known.items() if share <= limit)
    best = lag = first
    while known.get(lag, math.inf) <= limit:
        best = min(best, lag, key=known.__getitem__)
        lag += 1
    return best


def predict(season: Season, after: int, level: float, horizon: float) -> float | None:
    """The peak of the next `horizon` seconds, if the load goes on as a period of so many bins ago."""
    bins = season.bins
    if after + DRIFT_BINS > len(bins):
        return None
    ahead = math.ceil(horizon / BIN) + SPREAD_BINS
    start = len(bins) - after
    then = bins[start - 1 : start + min(ahead, after)]
    if any(value is None for value in then):
        return None
    values = [value for value in then if value is not None]
    peak = max(_mean(values[place : place + SPREAD_BINS]) for place in range(max(1, len(values) - SPREAD_BINS + 1)))
    pairs = [
        (now, before)
        for now, before in zip(bins[-DRIFT_BINS:], bins[start - DRIFT_BINS : start], strict=True)
        if now is not None and before is not None
    ]
    drift = _mean([now - before for now, before in pairs]) if pairs else 0.0
    return max(level, peak + drift)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
