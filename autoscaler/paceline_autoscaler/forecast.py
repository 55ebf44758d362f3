"""What the load's peak will be until a replica that is asked for now could serve, from the load's own history.

Four ways to tell are tried on everything that happens: that the load stays as it is, that its slope goes on, that the
day goes as earlier days did, and that the load repeats itself after some minutes. Each one's errors are kept once the
time they were about has passed. What is planned for is the prediction plus the quantile of its errors (a
split-conformal bound: Vovk et al. 2005), so that the promise is about coverage whichever way is taken; of the errors
that were made at loads like this one (localised: Lei and Wasserman 2014). A way that asks for less capacity than no
prediction, at the same coverage, is used; else none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .season import Season, period, predict, see

MEMORY_SECONDS = 3600.0
"""Errors older than that are forgotten: they are of another load."""

MIN_ERRORS = 30
"""Errors needed before they are believed."""

NEAR = 0.1
NEAR_ERRORS = 40
"""Of them, those count that were made at a prediction within this share of the one now, and at least so many."""

PRIOR_HEADROOM = 0.25
"""Share of the load kept as headroom until then."""

CHEAP_COVERAGE = 0.95
CHEAP = 0.05
"""So much is covered anyway, as far as it takes no more than this share of the load."""

ADVANTAGE = 0.02
"""Share of capacity that a prediction has to save to be used."""

DAY_BIN = 300.0
DAY = 86400.0
BINS_A_DAY = int(DAY / DAY_BIN)
DAYS_KEPT = 7

WAYS = ("none", "slope", "daily", "seasonal")


@dataclass(frozen=True, slots=True)
class Open:
    """Predictions whose time has not come: when they were made, until when they reach, and the peak seen so far."""

    made: float
    until: float
    predicted: tuple[float | None, ...]
    peak: float


@dataclass(frozen=True, slots=True)
class Closed:
    """Predictions whose time has passed, by way, and what the peak was."""

    until: float
    predicted: tuple[float | None, ...]
    peak: float


@dataclass(frozen=True, slots=True)
class History:
    """What the forecast remembers. A value: `take` returns another one.

    Attributes:
        points: (time, load) of the last minutes.
        day: mean load of each `DAY_BIN` that has passed, by the number of the bin since the epoch, oldest first.
        bin: sum and count of the bin that is being filled, with its number.
        season: whether the load repeats itself, and `period`, after how many of its bins.
    """

    points: tuple[tuple[float, float], ...] = ()
    open: tuple[Open, ...] = ()
    closed: tuple[Closed, ...] = ()
    day: tuple[tuple[int, float], ...] = ()
    bin: tuple[int, float, int] = (-1, 0.0, 0)
    season: Season = field(default_factory=Season)
    period: int | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """A peak to plan for.

    Attributes:
        level: the load now.
        peak: what to plan for.
        way: how it was predicted, of `WAYS`.
        headroom: what the quantile of the errors adds, or takes away.
        errors: how many errors that stands on.
    """

    level: float
    peak: float
    way: str
    headroom: float
    errors: int


def forecast(history: History, load: float, now: float, horizon: float, coverage: float, smoothing: float) -> Forecast:
    """The peak until `now + horizon` that holds in a share `coverage` of cases; the load has just been measured.

    The load now is the mean over `smoothing` seconds. Which way is taken, and its errors, are of the time before: a
    higher load can only make the peak higher.
    """
    points = (*history.points, (now, load))
    predicted = _predict(points, history, now, horizon, smoothing)
    level = _level(points, now, smoothing)
    best: tuple[str, float, list[tuple[float, float]]] | None = None
    cost = math.inf
    for way, prediction, place in zip(WAYS, predicted, range(len(WAYS)), strict=True):
        past = [(one.predicted[place], one.peak) for one in history.closed]
        known = [(value, peak - value) for value, peak in past if value is not None]
        if prediction is None or len(known) < MIN_ERRORS:
            continue
        mean = sum(value for value, _ in known) / len(known) + _quantile(known, coverage)
        if mean < cost * (1.0 - ADVANTAGE):
            best, cost = (way, prediction, known), mean
    if best is None:
        return Forecast(level, level * (1.0 + PRIOR_HEADROOM), WAYS[0], level * PRIOR_HEADROOM, 0)
    way, prediction, known = best
    # At its height a burst goes no further up; errors of quiet times say nothing of that.
    apart = sorted(abs(value - prediction) for value, _ in known)
    limit = max(apart[min(NEAR_ERRORS, len(apart)) - 1], NEAR * prediction)
    near = [one for one in known if abs(one[0] - prediction) <= limit]
    headroom = _quantile(near, coverage)
    # Where errors are small it costs little to cover nearly all of them.
    headroom = max(headroom, min(_quantile(near, CHEAP_COVERAGE), headroom + CHEAP * prediction))
    return Forecast(level, max(0.0, level, prediction + headroom), way, headroom, len(known))


def _quantile(known: Sequence[tuple[float, float]], coverage: float) -> float:
    """The error that a share `coverage` does not pass; of (predicted, error)."""
    errors = sorted(error for _, error in known)
    return errors[min(len(errors) - 1, math.ceil(coverage * (len(errors) + 1)) - 1)]


def take(history: History, load: float, now: float, horizon: float, smoothing: float) -> History:
    """The history with one more measurement of the load."""
    points = tuple(point for point in history.points if point[0] > now - max(2.0 * horizon, smoothing))
    points = (*points, (now, load))
    still: list[Open] = []
    done: list[Closed] = []
    level = _level(points, now, smoothing)
    for one in history.open:
        # The level, and not the sample: what has to be carried is what lasts.
        grown = replace(one, peak=level) if level > one.peak else one
        if now >= one.until:
            done.append(Closed(one.until, one.predicted, grown.peak))
        else:
            still.append(grown)
    predicted = _predict(points, history, now, horizon, smoothing)
    still.append(Open(now, now + horizon, predicted, 0.0))
    kept = tuple(one for one in history.closed if one.until > now - MEMORY_SECONDS)
    number, total, count = history.bin
    here = int(now // DAY_BIN)
    day = history.day
    if number == here:
        filled = (number, total + load, count + 1)
    else:
        if count:
            day = (*(one for one in day if one[0] > here - DAYS_KEPT * BINS_A_DAY), (number, total / count))
        filled = (here, load, 1)
    season = see(history.season, load, now)
    after = history.period if season.bins is history.season.bins else period(season)
    return History(points, tuple(still), (*kept, *done), day, filled, season, after)


def _level(points: Sequence[tuple[float, float]], now: float, smoothing: float) -> float:
    recent = [load for at, load in points if at > now - smoothing]
    return sum(recent) / len(recent)


def _predict(
    points: Sequence[tuple[float, float]], history: History, now: float, horizon: float, smoothing: float
) -> tuple[float | None, ...]:
    level = _level(points, now, smoothing)
    again = None if history.period is None else predict(history.season, history.period, level, horizon)
    return (level, _by_slope(points, level, now, horizon), _by_day(history, level, now, horizon), again)


def _by_slope(points: Sequence[tuple[float, float]], level: float, now: float, horizon: float) -> float | None:
    """The load goes on rising as over the last horizon; one that falls has its peak now."""
    recent = [(at - now, load) for at, load in points if at > now - horizon]
    if len(recent) < 4:
        return None
    middle = sum(at for at, _ in recent) / len(recent)
    spread = sum((at - middle) ** 2 for at, _ in recent)
    slope = sum((at - middle) * load for at, load in recent) / spread
    return level + max(0.0, slope) * horizon


def _by_day(history: History, level: float, now: float, horizon: float) -> float | None:
    """The load changes by the factor by which it changed at this time on earlier days, on average."""
    bins = dict(history.day)
    here, last = int(now // DAY_BIN), int((now + horizon) // DAY_BIN)
    before = after = 0.0
    for day in range(1, DAYS_KEPT + 1):
        start = bins.get(here - day * BINS_A_DAY)
        ends = [bins.get(number - day * BINS_A_DAY) for number in range(here, last + 1)]
        known = [end for end in ends if end is not None]
        if start is None or not known:
            continue
        before += start
        after += max(known)
    return level * max(1.0, after / before) if before > 0 else None
