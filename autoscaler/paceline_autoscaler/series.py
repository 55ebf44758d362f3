"""From raw series, with the times at which they were scraped, to one sample for a pool.

The raw points are asked for, and not an instant vector: an instant vector carries the time of the query, so that a
value five minutes old looks new. Nothing here knows how the points were fetched.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from .samples import Absent, NotANumber, Present, Sample, Stale

SCRAPER_LABELS = frozenset({"prometheus", "prometheus_replica", "replica", "__replica__", "instance", "endpoint"})
"""Labels that say who scraped or at which address: series that differ in nothing else are one series seen twice."""

STALE_AFTER = 2.5
"""Scrape intervals after which a value counts as stale: two scrapes may fail, the third not."""

MIN_COVERAGE = 0.5
"""Share of a window that points have to span for a rate over it to be known."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its labels, and points of (time of the scrape in seconds, value as text), oldest first."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """How series are judged.

    Attributes:
        now: seconds, of the source's own clock: ours may differ from it.
        interval: seconds between scrapes.
        pods: replicas that are ready and therefore should be there; None where nobody knows.
        ceiling: the most that one replica can add; infinite where nothing bounds it.
    """

    now: float
    interval: float
    pods: Collection[str] | None = None
    ceiling: float = math.inf

    @property
    def limit(self) -> float:
        """Seconds after which a value is stale."""
        return STALE_AFTER * self.interval


def to_number(text: str) -> float | NotANumber:
    """A count or rate as Prometheus writes it; NaN, infinities, overflows and negative values are no count."""
    try:
        value = float(text)
    except ValueError:
        return NotANumber(text)
    return value if math.isfinite(value) and value >= 0.0 else NotANumber(text)


def gauge(series: Sequence[Series], asked: Asked) -> Sample:
    """The sum over replicas of each one's newest value."""
    return _over_pods(series, asked, lambda points: points[-1][1])


def highest(series: Sequence[Series], asked: Asked) -> Sample:
    """The highest of the replicas' newest values; `Asked.ceiling` is the most that one which is missing can have."""
    sample = gauge(series, asked)
    if not isinstance(sample, Present):
        return sample
    top = max((_newest(one) for one in _distinct(series) if _counts(one, asked)), default=0.0)
    return Present(top, sample.at, top, max(top, asked.ceiling) if sample.missing else top, sample.missing)


def rate(series: Sequence[Series], asked: Asked, window: float) -> Sample:
    """The sum over replicas of a counter's increase per second.

    A counter that falls was restarted: what it shows after that is all increase. The seconds are those between the
    first and the last point of a replica, so that a gap does not make the rate smaller; where points span less than
    half of the window in every series, or a gap is in the middle, the rate is absent.

    Args:
        window: seconds that the points were asked for.
    """
    longest = max((one.points[-1][0] - one.points[0][0] for one in series if one.points), default=0.0)
    if series and longest < MIN_COVERAGE * window:
        return Absent(f"points span {longest:.0f} s of {window:.0f} s")

    def per_second(points: Sequence[tuple[float, float]]) -> float | None:
        if len(points) < 2:
            return None
        increase = 0.0
        for (before, last), (after, value) in itertools.pairwise(points):
            if after - before > asked.limit:
                return None
            increase += value - last if value >= last else value
        return increase / (points[-1][0] - points[0][0])

    return _over_pods(series, asked, per_second)


def _over_pods(
    series: Sequence[Series], asked: Asked, of: Callable[[Sequence[tuple[float, float]]], float | None]
) -> Sample:
    wrong: NotANumber | None = None
    old: Stale | None = None
    values: dict[str, float] = {}
    newest = -math.inf
    for one in _distinct(series):
        pod = _pod(one)
        if asked.pods is not None and pod not in asked.pods:
            continue  # of a replica that is gone, or of one that is not ready yet
        numbers: list[tuple[float, float]] = []
        for at, text in one.points:
            number = to_number(text)
            if isinstance(number, NotANumber):
                wrong = number
                break
            numbers.append((at, number))
        else:
            if not numbers:
                continue
            at, last = numbers[-1]
            age = asked.now - at
            if abs(age) > asked.limit:
                if old is None or abs(age) < abs(old.age):
                    old = Stale(last, age)
                continue
            value = of(numbers)
            if value is not None:
                values[pod] = values.get(pod, 0.0) + value
                newest = max(newest, at)
    if wrong is not None:
        return wrong
    if not values:
        if asked.pods is not None and not asked.pods:
            return Present(0.0, asked.now, 0.0, 0.0)  # no replica: nothing runs, and that is known
        return old or Absent("no series" if not series else "too few points")
    total = sum(values.values())
    missing = 0 if asked.pods is None else len(set(asked.pods) - set(values))
    return Present(total, newest, total, total + (missing * asked.ceiling if missing else 0.0), missing)


def _pod(series: Series) -> str:
    return series.labels.get("pod") or series.labels.get("instance", "")


def _newest(series: Series) -> float:
    number = to_number(series.points[-1][1])
    return 0.0 if isinstance(number, NotANumber) else number


def _counts(series: Series, asked: Asked) -> bool:
    """Whether a series is of a replica that counts, and fresh."""
    known = asked.pods is None or _pod(series) in asked.pods
    return known and bool(series.points) and abs(asked.now - series.points[-1][0]) <= asked.limit


def _distinct(series: Sequence[Series]) -> list[Series]:
    """Of series that differ only in who scraped them, the one with the newest point; a tie goes to the longer."""
    best: dict[tuple[tuple[str, str], ...], Series] = {}
    for one in series:
        key = tuple(sorted((k, v) for k, v in one.labels.items() if k not in SCRAPER_LABELS or "pod" not in one.labels))
        known = best.get(key)
        if known is None or _freshness(one) > _freshness(known):
            best[key] = one
    return list(best.values())


def _freshness(series: Series) -> tuple[float, int]:
    return (series.points[-1][0] if series.points else -math.inf, len(series.points))
