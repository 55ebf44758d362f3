"""The fast loop: replicas are asked directly, every few seconds, and what they said is judged as series of Prometheus
are. The asking is at the end; all before it is pure.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline_autoscaler.observed import Signals
from paceline_autoscaler.rates import Work
from paceline_autoscaler.samples import Sample
from paceline_autoscaler.series import Asked, Series, gauge, highest, rate
from paceline_crds import metrics
from paceline_kube import JsonObject
from paceline_operator.drift.asking import ask, heard
from paceline_operator.drift.replicas import port_of

from .pages import values_of

METRICS_PATH = "/metrics"
ASK_TIMEOUT = 3.0
MAX_BODY = 1024 * 1024
AT_A_TIME = 64

RATE_LOOKS = 2.0
"""Looks that a rate is over."""

NEW_LOOKS = 3.0
"""Looks for which a replica that has just become ready need not have said anything: it had no time to."""

SILENT_LOOKS = 12.0
"""Looks after which a replica that says nothing is set aside."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What one ready replica has said.

    Attributes:
        first: when it was first seen ready.
        last: when it last said something, or was first seen.
        points: (time, values by name) of the last looks, oldest first.
        trouble: why the last question has no answer.
    """

    first: float
    last: float
    points: tuple[tuple[float, Mapping[str, str]], ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Pool:
    """What was heard of a pool's ready replicas, by uid, and how it is judged."""

    heard: Mapping[str, Heard]
    now: float
    interval: float

    @property
    def aside(self) -> tuple[str, ...]:
        """Replicas that have said nothing for long."""
        limit = SILENT_LOOKS * self.interval
        return tuple(uid for uid, one in self.heard.items() if self.now - one.last > limit)

    def _due(self, points: int) -> list[str]:
        """Replicas that should be in a sum: those that could have said so much by now, or have.

        Where none could have, all should be: what they do is not known, and not nothing.
        """
        aside, limit = self.aside, NEW_LOOKS * self.interval
        asked = {uid: one for uid, one in self.heard.items() if uid not in aside}
        due = [uid for uid, one in asked.items() if len(one.points) >= points or self.now - one.first > limit]
        return due or list(asked)

    @property
    def speaking(self) -> Collection[str]:
        """Replicas of which at least one answer is there."""
        return [uid for uid, one in self.heard.items() if one.points and uid not in self.aside]

    def signals(self, max_running: float, held: Sample | None) -> Signals:
        """The pool's signals; `held` is the routers' to say."""
        window = RATE_LOOKS * self.interval
        speaking, counted = self._due(1), self._due(2)

        def level(metric: metrics.Metric, ceiling: float = math.inf) -> Sample:
            return gauge(self._series(metric), Asked(self.now, self.interval, speaking, ceiling))

        def per_second(metric: metrics.Metric) -> Sample:
            return rate(self._series(metric, window), Asked(self.now, self.interval, counted), window)

        usage = self._series(metrics.RUNTIME_KV_CACHE_USAGE)
        return Signals(
            requests=per_second(metrics.RUNTIME_REQUESTS_RECEIVED),
            prefill=per_second(metrics.RUNTIME_PREFILL_TOKENS_COMPUTED),
            decode=per_second(metrics.RUNTIME_GENERATION_TOKENS),
            waiting=level(metrics.RUNTIME_REQUESTS_WAITING),
            running=level(metrics.RUNTIME_REQUESTS_RUNNING, max_running),
            backlog=level(metrics.RUNTIME_PREFILL_TOKENS),
            held=held,
            kv=highest(usage, Asked(self.now, self.interval, speaking, 1.0)),
        )

    def works(self) -> list[Work]:
        """What each replica did since the look before the last."""
        found = []
        for one in self.heard.values():
            if len(one.points) >= 2 and one.points[-1][0] == one.last and not one.trouble:
                (_, before), (_, after) = one.points[-2:]
                work = work_between(before, after)
                if work is not None:
                    found.append(work)
        return found

    def busyness(self, uid: str) -> float | None:
        """Requests that a replica has, by its last word; None where it has said nothing of late."""
        one = self.heard.get(uid)
        if one is None or not one.points or self.now - one.points[-1][0] > NEW_LOOKS * self.interval:
            return None
        values = one.points[-1][1]
        try:
            return sum(
                float(values[m.name]) for m in (metrics.RUNTIME_REQUESTS_RUNNING, metrics.RUNTIME_REQUESTS_WAITING)
            )
        except KeyError:
            return None

    def _series(self, metric: metrics.Metric, window: float | None = None) -> list[Series]:
        oldest = -math.inf if window is None else self.now - window - self.interval / 2
        found = []
        for uid, one in self.heard.items():
            points = [(at, values[metric.name]) for at, values in one.points if metric.name in values and at >= oldest]
            if points:
                found.append(Series({"pod": uid}, points))
        return found


def work_between(before: Mapping[str, str], after: Mapping[str, str]) -> Work | None:
    """What a replica did between two looks; None where it began anew meanwhile or does not count these things."""
    try:
        grown = [
            float(after[metric.name]) - float(before[metric.name])
            for metric in (
                metrics.RUNTIME_STEP_PHASE,
                metrics.RUNTIME_ENGINE_STEPS,
                metrics.RUNTIME_PREFILL_TOKENS_COMPUTED,
                metrics.RUNTIME_GENERATION_TOKENS,
            )
        ]
    except KeyError:
        return None
    return Work(*grown) if all(one >= 0 for one in grown) else None  # NaN is not


def hear(
    heard: Mapping[str, Heard], said: Mapping[str, tuple[float, Mapping[str, str] | str]], keep: float
) -> dict[str, Heard]:
    """What was heard with another look in it; replicas that are gone are forgotten.

    Args:
        said: by uid of every ready replica, when it was asked and the values, or why there are none.
        keep: seconds for which points are kept.
    """
    found = {}
    for uid, (at, values) in said.items():
        before = heard.get(uid, Heard(at, at))
        if isinstance(values, str):
            found[uid] = replace(before, trouble=values)
        else:
            points = (*(point for point in before.points if point[0] > at - keep), (at, values))
            found[uid] = Heard(before.first, at, points)
    return found


@dataclass(slots=True)
class Replicas:
    """Asks pods for their metrics, so many at a time over all services.

    Attributes:
        clock: when an answer came, by this.
        read: what is wanted of a page.
    """

    clock: Callable[[], float]
    read: Callable[[str], Mapping[str, str]] = values_of
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))

    async def ask(self, pods: Iterable[JsonObject]) -> dict[str, tuple[float, Mapping[str, str] | str]]:
        """By uid, when it was asked and what it said, or in words why it said nothing."""
        asked: Sequence[JsonObject] = list(pods)
        said = await asyncio.gather(*(self._ask(pod) for pod in asked))
        return {str(pod["metadata"]["uid"]): one for pod, one in zip(asked, said, strict=True)}

    async def _ask(self, pod: JsonObject) -> tuple[float, Mapping[str, str] | str]:
        async def page(address: str) -> Mapping[str, str] | str:
            answer = await ask(address, port_of(pod), METRICS_PATH, {"accept": "text/plain"}, MAX_BODY)
            return self.read(answer.body.decode()) if answer.status == 200 else f"it answered {answer.status}"

        said = await heard(pod, page, self.gate, ASK_TIMEOUT)
        return self.clock(), said
