"""One replica and the real `tune`, asked every ten seconds as the operator asks it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline_autoscaler.histograms import fewest_for
from paceline_autoscaler.knobs import MOVED, Decision, Observed, Range, Samples, State
from paceline_autoscaler.samples import NotANumber, Sample, exactly
from paceline_autoscaler.tuning import tune
from paceline_crds.runtime_config import RuntimeParameters
from paceline_crds.tuning import Knob
from paceline_simulator.engine import Request
from paceline_simulator.exact import EngineReplica

EVERY = 10.0
WINDOW = 60.0


@dataclass
class Tuner:
    """Moves a replica's knobs within ranges, or leaves them where they are if there is none.

    Attributes:
        limit, first_limit: seconds per token, and to the first one, that are promised to the share `level` of the
            requests.
        moves: decisions that moved a knob, with their time.
    """

    replica: EngineReplica
    started: RuntimeParameters
    ranges: Mapping[Knob, Range]
    limit: float
    first_limit: float | None = None
    level: float = 0.9
    moves: list[tuple[float, Decision]] = field(default_factory=list)
    _state: State = field(default_factory=State)
    _points: deque[tuple[float, int, int, int, int]] = field(default_factory=deque)

    def look(self, arrived: int, open_or_ended: Sequence[Request], now: float) -> None:
        """Measure, decide, and set what was decided.

        Args:
            arrived: requests so far.
            open_or_ended: of them, at least those that ended in the window.
        """
        self._points.append((now, arrived, *self.replica.worked, self.replica.preemptions))
        while len(self._points) > 2 and self._points[1][0] <= now - WINDOW:
            self._points.popleft()
        span = now - self._points[0][0]
        if not self.ranges or span < WINDOW:
            return
        samples = self._samples(open_or_ended, now, span)
        observed = Observed(samples, self.ranges, self.limit, 1, first_limit=self.first_limit)
        decision = tune(observed, self._state, now)
        self._state = decision.state
        if decision.reason in MOVED:
            self.moves.append((now, decision))
            self.replica.tune(self.started, {knob.value: value for knob, value in decision.knobs.items()})

    def _samples(self, requests: Sequence[Request], now: float, span: float) -> Samples:
        first, last = self._points[0], self._points[-1]
        arrived, prefill, decode, preempted = (
            exactly((after - before) / span, now) for before, after in zip(first[1:], last[1:], strict=True)
        )
        tpots = [
            (one.done - one.first_token) / (one.output_tokens - 1)
            for one in requests
            if now - span <= one.done <= now and one.output_tokens > 1
        ]
        ttfts = [one.first_token - one.arrival for one in requests if now - span <= one.first_token <= now]
        waiting, running = exactly(self.replica.queued, now), exactly(self.replica.running, now)
        tpot, ttft = (self._quantile(values, now) for values in (tpots, ttfts))
        return Samples(tpot, arrived, prefill, decode, waiting, running, preempted, ttft)

    def _quantile(self, values: list[float], now: float) -> Sample:
        if len(values) < (fewest := fewest_for(self.level)):
            return NotANumber(f"{len(values)} requests ended, a percentile needs {fewest}")
        return exactly(sorted(values)[int(self.level * len(values))], now)
