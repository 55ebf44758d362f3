"""The real recommender on a simulated fleet."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline_autoscaler.capacity import Objectives, Rates
from paceline_autoscaler.observed import Fleet, Observed, Settings, Signals
from paceline_autoscaler.recommend import Decision, State, recommend
from paceline_autoscaler.samples import Absent, NotANumber, Sample, exactly
from paceline_simulator.engine import Model

from .arrivals import Arrival
from .view import View

ASKED_EVERY = 30.0
"""Seconds between two questions to Prometheus."""

UNASKED = Absent("Prometheus has not been asked yet")


def rates_of(model: Model, arrivals: Sequence[Arrival]) -> Rates:
    """What one replica does with prompts and answers as long as a trace's; on a real fleet this is measured.

    A prompt token costs its share of a full step and attention to what is before it, an answer token its share of a
    step and attention to its context.
    """
    prompts = [one.prompt for one in arrivals]
    tokens = sum(prompts)
    before = sum(prompt * prompt for prompt in prompts) / 2.0 / tokens
    prompt_ms = model.weights(model.step_tokens) / model.step_tokens + model.chunk_token + model.chunk_context * before
    answers = sum(one.output for one in arrivals)
    context = sum(one.output * (one.prompt + one.output / 2.0) for one in arrivals) / answers
    answer_ms = model.floor_token + model.decode_context * context
    mean = tokens / len(prompts)
    held = sum((one.prompt + one.output) * one.output for one in arrivals) / answers
    return Rates(
        prefill=1000.0 / prompt_ms,
        decode=1000.0 / answer_ms,
        floor=(model.floor + model.other) / 1000.0,
        full_step=(
            model.weights(model.step_tokens)
            + model.step_tokens * (prompt_ms - model.weights(model.step_tokens) / model.step_tokens)
        )
        / 1000.0,
        max_running=min(float(model.max_seqs), model.kv_tokens / held),
        prompt_cv2=sum((prompt - mean) ** 2 for prompt in prompts) / len(prompts) / mean**2,
    )


@dataclass
class Paceline:
    """`recommend` every ten seconds, as the operator has it: replicas and routers are asked directly for the load,
    Prometheus, every half a minute, for the share of requests that kept the objectives.
    """

    rates: Rates
    objectives: Objectives
    settings: Settings
    period: float = 10.0
    last: Decision | None = None
    _state: State = field(default_factory=State)
    _before: View | None = None
    _scraped: deque[tuple[float, int, int]] = field(default_factory=deque)
    _attainment: Sample = UNASKED
    _asked: float = -math.inf

    def decide(self, view: View) -> int:
        """The recommender's number."""
        self._ask_slowly(view)
        before, self._before = self._before, view
        if before is None:
            return view.desired
        span = view.now - before.now

        def per_second(value: float) -> Sample:
            return exactly(max(0.0, value / span), view.now)

        signals = Signals(
            requests=per_second(view.arrived - before.arrived),
            prefill=per_second(view.computed - before.computed),
            decode=per_second(view.generated - before.generated),
            waiting=exactly(view.waiting, view.now),
            backlog=exactly(view.backlog, view.now),
            held=exactly(view.held, view.now),
            attainment=self._attainment,
        )
        fleet = Fleet(view.desired, view.ready, tuple(pod.created for pod in view.pods if not pod.ready))
        observed = Observed(signals, fleet, self.rates, self.objectives, self.settings, view.starts)
        self.last = recommend(observed, self._state, view.now)
        self._state = self.last.state
        return self.last.replicas

    def _ask_slowly(self, view: View) -> None:
        """What Prometheus says of the answers of `judged_over` seconds, as of its last scrape."""
        if view.metrics:
            self._scraped.append((view.now, view.answered, view.kept))
        while self._scraped and self._scraped[0][0] < view.now - self.settings.judged_over:
            self._scraped.popleft()
        if view.now - self._asked < ASKED_EVERY:
            return
        self._asked = view.now
        if not view.metrics:
            self._attainment = Absent("Prometheus does not answer")
            return
        (_, answered, kept), (_, last_answered, last_kept) = self._scraped[0], self._scraped[-1]
        count = last_answered - answered
        self._attainment = exactly((last_kept - kept) / count, view.now) if count else NotANumber("NaN")
