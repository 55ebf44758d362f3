"""The slow loop: what only Prometheus knows of a pool, its percentiles. Asked now and then, kept between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

from paceline_autoscaler.observed import Signals
from paceline_autoscaler.samples import Absent, Present, Sample, Stale
from paceline_autoscaler.source import MetricsSource, Pool

INTERVAL_SECONDS = 30.0
STALE_AFTER = 3.0
"""Intervals after which an answer is stale."""


@dataclass(slots=True)
class Slow:
    """Remembers what a source said of each pool."""

    source: MetricsSource
    clock: Callable[[], float]
    interval: float = INTERVAL_SECONDS
    _said: dict[Pool, tuple[float, Signals]] = field(default_factory=dict)

    async def ask(self, pools: Iterable[Pool]) -> None:
        """Ask about these and forget all others. One answer of a source that is down is the answer for all."""
        down: Signals | None = None
        said: dict[Pool, tuple[float, Signals]] = {}
        for pool in pools:
            found = await self.source.signals(pool) if down is None else down
            if _is_down(found):
                down = found
            said[pool] = self.clock(), found
        self._said = said

    def of(self, pool: Pool, with_objectives: bool) -> Signals:
        """The percentiles of a pool, stale where the answer is old.

        Args:
            with_objectives: something is promised, so that it can be kept.
        """
        if pool not in self._said:
            unasked = Absent("Prometheus has not been asked yet")
            return Signals(wait_p99=unasked, attainment=unasked if with_objectives else None)
        at, said = self._said[pool]
        age = self.clock() - at

        def judged(sample: Sample | None) -> Sample | None:
            if isinstance(sample, Present) and not 0 <= age <= STALE_AFTER * self.interval:
                return Stale(sample.value, age)
            return sample

        return Signals(wait_p99=judged(said.wait_p99), attainment=judged(said.attainment) if with_objectives else None)


def _is_down(said: Signals) -> bool:
    """Whether nothing at all was answered, and for one reason."""
    samples = {getattr(said, one.name) for one in fields(said)}
    return len(samples) == 1 and isinstance(next(iter(samples)), Absent)
