"""What a pool's replicas measured over the last window, from pages of several looks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

from paceline_autoscaler.histograms import Buckets, count, fewest_for, increase, quantile, together
from paceline_autoscaler.knobs import Samples
from paceline_autoscaler.samples import Absent, NotANumber, Sample, exactly
from paceline_crds import metrics
from paceline_crds.tuning import Knob

from .replicas import COUNTERS, GAUGES, Page

NEW_LOOKS = 3.0
"""Looks for which a replica need not have said anything yet."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What one ready replica has said.

    Attributes:
        first: when it was first asked.
        points: (time, page) of the looks of a window, oldest first; from one start of its counters.
        trouble: why the last question has no answer.
    """

    first: float
    points: tuple[tuple[float, Page], ...] = ()
    trouble: str = ""

    @property
    def page(self) -> Page | None:
        """The last one, unless there was none at the last look."""
        return self.points[-1][1] if self.points and not self.trouble else None


def hear(heard: Mapping[str, Heard], said: Mapping[str, tuple[float, Page | str]], window: float) -> dict[str, Heard]:
    """What was heard with another look in it; replicas that are gone are forgotten.

    Args:
        said: by name of every ready replica, when it was asked and what it said, or why nothing.
        window: seconds that points are kept for, and one more than that.
    """
    found = {}
    for name, (at, page) in said.items():
        before = heard.get(name, Heard(at))
        if isinstance(page, str):
            found[name] = replace(before, trouble=page)
            continue
        # After a pause longer than a window what was heard before it says nothing of the last one.
        kept = tuple(point for point in before.points if point[0] >= at - 2.0 * window)
        if kept and any(page.values[one] < kept[-1][1].values[one] for one in COUNTERS):
            kept = ()  # its counters began anew, and it did too
        inside = sum(1 for then, _ in kept if then >= at - window)
        found[name] = Heard(before.first, (*kept[-(inside + 1) :], (at, page)))
    return found


def samples(heard: Mapping[str, Heard], level: float, window: float, interval: float, now: float) -> Samples:
    """A pool's samples over the last window.

    Replicas that have just begun are left out until they have been heard for a whole window; where there are only such,
    or one that should speak does not, nothing is known.

    Args:
        level: share of the requests that `tpot` and `ttft` hold for.
        interval: seconds between two looks.
    """
    due = {name: one for name, one in heard.items() if one.points and one.points[-1][0] - one.points[0][0] >= window}
    silent = {
        name: one.trouble or f"its last word is {now - one.points[-1][0]:.0f} s old"
        for name, one in heard.items()
        if (one.trouble and (one.points or now - one.first > NEW_LOOKS * interval))
        or (one.points and now - one.points[-1][0] > NEW_LOOKS * interval)
    }
    if silent:
        words = "; ".join(f"{name}: {why}" for name, why in sorted(silent.items())[:3])
        return _all(Absent(words))
    if not due:
        return _all(Absent(measuring(heard, window) or "no replica is ready"))

    def per_second(metric: metrics.Metric) -> Sample:
        rates = (
            (one.points[-1][1].values[metric.name] - one.points[0][1].values[metric.name])
            / (one.points[-1][0] - one.points[0][0])
            for one in due.values()
        )
        return exactly(sum(rates), now)

    def level_of(name: str) -> Sample:
        # Of all that spoke: a replica that has just begun has requests too.
        return exactly(sum(one.points[-1][1].values[name] for one in heard.values() if one.points), now)

    waiting, running = (level_of(name) for name in GAUGES)
    return Samples(
        tpot=_quantile(due.values(), "TPOT", lambda page: page.tpot, level, now),
        ttft=_quantile(due.values(), "TTFT", lambda page: page.ttft, level, now),
        requests=per_second(metrics.RUNTIME_REQUESTS_RECEIVED),
        prefill=per_second(metrics.RUNTIME_PREFILL_TOKENS_COMPUTED),
        decode=per_second(metrics.RUNTIME_GENERATION_TOKENS),
        waiting=waiting,
        running=running,
        preempted=per_second(metrics.RUNTIME_PREEMPTIONS),
    )


def measuring(heard: Mapping[str, Heard], window: float) -> str:
    """While no replica has been heard for a whole window, and none is silent: for how long, in words."""
    if not heard or any(one.trouble for one in heard.values()):
        return ""
    longest = max((one.points[-1][0] - one.points[0][0] for one in heard.values() if one.points), default=0.0)
    return "" if longest >= window else f"measured for {longest:.0f} s of {window:.0f} s"


def _all(sample: Sample) -> Samples:
    return Samples(*[sample] * len(fields(Samples)))


def _quantile(due: Iterable[Heard], name: str, of: Callable[[Page], Buckets], level: float, now: float) -> Sample:
    due = list(due)
    if not all(of(one.points[-1][1]) for one in due):
        return Absent(f"the release of a replica does not tell {name}")
    grown = [increase(of(one.points[0][1]), of(one.points[-1][1])) for one in due]
    known = [one for one in grown if one is not None]
    summed = together(known) if len(known) == len(grown) else None
    if summed is None:
        return Absent("replicas count in buckets of different bounds")
    ended = count(summed)
    value = quantile(summed, level)
    fewest = fewest_for(level)
    if value is None or ended < fewest:
        return NotANumber(f"{ended:.0f} requests ended, a percentile needs {fewest}")
    return exactly(value, now)


def found_values(heard: Mapping[str, Heard]) -> dict[Knob, int]:
    """The values that most replicas run with; of as many, the higher ones."""
    pages = [one.page for one in heard.values() if one.page is not None]
    votes = Counter(tuple(sorted((Knob(name), value) for name, value in page.knobs.items())) for page in pages)
    best = max(votes.items(), key=lambda item: (item[1], [value for _, value in item[0]]), default=None)
    return {} if best is None else dict(best[0])
