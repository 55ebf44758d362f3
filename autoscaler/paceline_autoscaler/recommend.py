"""How many replicas a pool should have now, why, and with which numbers. Pure: time is a parameter, memory a value.

Up as soon as the load that is to be expected when a new replica could serve is more than what runs and starts carries
within the objectives; down much slower, by steps, and only when the rest would have carried the highest load of a
window. What is not known moves nothing down; what is known of it moves things up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .capacity import EPSILON, Load, busy_limit, needed
from .forecast import Forecast, History, forecast, take
from .observed import Observed, Settings, Signals
from .samples import NotANumber, Present, Sample, why_unknown

OVERDUE = 3.0
"""Start-up times after which a replica that still starts is no longer counted on."""

MOST_CORRECTION = 4.0
"""However many objectives are missed, the load is taken to be no more than so many times what it seems."""

FEWEST_REQUESTS = 1e-3
"""Requests per second from which tokens per request are an average of something."""

Inputs: TypeAlias = Mapping[str, float | str | None]

NO_LOAD = Load(0.0, 0.0, 0.0)

MAY_BE_UNDEFINED = frozenset({"wait_p99", "attainment"})
"""Signals that have no value while there are no requests; that is no fault of theirs."""


@dataclass(frozen=True, slots=True)
class State:
    """What a pool's decisions remember; one for each pool, by namespace, name and uid. Starts empty.

    Attributes:
        since: when the first complete signals were seen: a new leader scales nothing down before a whole window.
        mix: the last load that was one: what a moment without any is planned for is more of that.
        backlog: prompt tokens waiting at the last decision, and when.
        needs: what was needed at each decision of the window, margin included.
        idle_since: since when one replica has had nothing to do.
        stepped: when the last step down was.
        correction: by how much the load is taken to be more than it seems, since objectives were missed with what
            should have been enough; 1 where they were not. `corrected` is when it was last worked out, `raised` when
            it last grew, and `started` when a replica was last starting: what was missed until then says nothing of
            those that serve now.
    """

    since: float | None = None
    history: History = field(default_factory=History)
    mix: Load = NO_LOAD
    backlog: tuple[float, float] | None = None
    needs: tuple[tuple[float, int], ...] = ()
    idle_since: float | None = None
    stepped: float = -math.inf
    correction: float = 1.0
    corrected: float = -math.inf
    raised: float = -math.inf
    started: float = -math.inf


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do.

    Attributes:
        replicas: the number to ask for.
        reason: one word of CamelCase.
        message: a sentence.
        inputs: the numbers that made it; None for what is not known.
        state: to hand over to the next decision.
    """

    replicas: int
    reason: str
    message: str
    inputs: Inputs
    state: State


@dataclass(frozen=True, slots=True)
class _Demand:
    """What the signals say at the least, and what is wrong with them."""

    load: Load
    backlog: float
    waiting: float
    held: float
    unknown: tuple[str, ...]


def recommend(observed: Observed, state: State, now: float) -> Decision:
    """Decide how many replicas a pool should have.

    Args:
        observed: signals, fleet and settings at this moment.
        state: `Decision.state` of the last decision, or `State()`.
        now: seconds, of the clock that `Fleet.starting` is of.
    """
    settings, fleet = observed.settings, observed.fleet
    demand = _demand(observed, state, now)
    horizon = observed.start_up
    work = demand.load.work(observed.rates)
    expected = forecast(state.history, work, now, horizon, settings.coverage, settings.smoothing)
    mix = demand.load if work > EPSILON else state.mix
    usual = mix.work(observed.rates)
    missed = _missed(observed)
    state = _correct(observed, state, demand, missed, now)
    plan = (mix.times(expected.peak / usual) if usual > EPSILON else mix).times(state.correction)
    stock = _stock(observed, demand)
    queue = _replicas_for_queue(observed, stock, expected.level, now)
    need = needed(plan, observed.rates, observed.objectives, settings.most) + queue
    rest = needed(plan.times(1.0 + settings.down_margin), observed.rates, observed.objectives, settings.most) + queue
    busy = work > EPSILON or demand.waiting > 0 or demand.backlog > 0 or demand.held > 0
    if busy:
        need, rest = max(1, need), max(1, rest)
    need, rest = need + fleet.aside, rest + fleet.aside

    state = _remember(observed, state, demand, rest, busy, now)
    wanted, reason, message = _move(observed, state, demand, need, missed, now)
    bounded, reason, message = _bound(observed, wanted, reason, message)
    if fleet.aside:
        message = f"{message}; {fleet.aside} say nothing of their load and count as full"
    if bounded < fleet.desired:
        state = replace(state, stepped=now)
    inputs = {**_inputs(observed, demand, expected, need, queue, stock), "correction": state.correction}
    return Decision(bounded, reason, message, inputs, state)


def _demand(observed: Observed, state: State, now: float) -> _Demand:
    """The least that the signals say; what is not known counts as nothing here and is named in `unknown`."""
    signals = observed.signals
    backlog = _least(signals.backlog)
    arriving = 0.0
    if isinstance(signals.backlog, Present) and state.backlog is not None and now > state.backlog[1]:
        # What arrives is what is computed plus what the queue grows by.
        arriving = (backlog - state.backlog[0]) / (now - state.backlog[1])
    load = Load(_least(signals.requests), max(0.0, _least(signals.prefill) + arriving), _least(signals.decode))
    return _Demand(load, backlog, _least(signals.waiting), _least(signals.held), _unknown(signals))


def _unknown(signals: Signals) -> tuple[str, ...]:
    """What is not known, and why; signals with the same fault together."""
    by_fault: dict[str, list[str]] = {}
    asked = list(signals.asked())
    for name, sample in asked:
        why = why_unknown(sample)
        if why is not None and not (name in MAY_BE_UNDEFINED and isinstance(sample, NotANumber)):
            by_fault.setdefault(why, []).append(name)
    if not asked:
        return ("no signal is asked for",)
    return tuple(f"{', '.join(names)}: {why}" for why, names in by_fault.items())


def _load_is_known(signals: Signals) -> bool:
    """Whether the load was measured, whatever else is not known: the history keeps only what was."""
    asked = [one for one in (signals.requests, signals.prefill, signals.decode, signals.backlog) if one is not None]
    return bool(asked) and all(why_unknown(one) is None for one in asked)


def _least(sample: Sample | None) -> float:
    return sample.low if isinstance(sample, Present) else 0.0


def _stock(observed: Observed, demand: _Demand) -> float:
    """Seconds of one replica that it takes to work off what waits, answers of waiting requests included."""
    load, rates = demand.load, observed.rates
    queued = demand.waiting + demand.held
    known = load.requests > FEWEST_REQUESTS
    answers = queued * load.decode / load.requests / rates.decode if known else 0.0
    prompts = demand.held * load.prefill / load.requests / rates.prefill if known else 0.0
    return demand.backlog / rates.prefill + prompts + answers


def _replicas_for_queue(observed: Observed, stock: float, level: float, now: float) -> int:
    """Replicas beside those for the load that work off what will still wait when a new one could serve."""
    horizon, fleet, settings = observed.start_up, observed.fleet, observed.settings
    capacity = fleet.ready * horizon
    for started in fleet.starting:
        left = horizon - (now - started)
        if left > -(OVERDUE - 1.0) * horizon:
            capacity += min(horizon, max(0.0, horizon - max(0.0, left)))
    remaining = stock + level * horizon - capacity
    if remaining <= EPSILON:
        return 0
    most = settings.most * settings.drain_backlog
    return math.ceil(min(remaining, stock + level * horizon, most) / settings.drain_backlog - EPSILON)


def _remember(observed: Observed, state: State, demand: _Demand, rest: int, busy: bool, now: float) -> State:
    settings = observed.settings
    complete = not demand.unknown
    needs = (*(one for one in state.needs if one[0] > now - settings.down_window), (now, rest))
    backlog = (demand.backlog, now) if isinstance(observed.signals.backlog, Present) else None
    work = demand.load.work(observed.rates)
    history = state.history
    if _load_is_known(observed.signals):
        history = take(history, work, now, observed.start_up, settings.smoothing)
    if not complete:
        # A hole in the window: it begins anew with complete signals.
        return replace(state, since=None, history=history, backlog=backlog, needs=needs, idle_since=None)
    # A replica that was asked for gets to serve once, however long its start takes.
    idle = not busy and observed.fleet.desired <= 1 and not _coming(observed, now)
    return replace(
        state,
        since=now if state.since is None else state.since,
        history=history,
        mix=demand.load if work > EPSILON else state.mix,
        backlog=backlog,
        needs=needs,
        idle_since=(now if state.idle_since is None else state.idle_since) if idle else None,
    )


def _missed(observed: Observed) -> float | None:
    """The share of requests that kept the objectives, where that is fewer than promised; None where it is not.

    Fewer than chance explains: of so many requests twice the standard deviation of a binomial may be missed beside
    those that the promise leaves.
    """
    kept, requests, promised = observed.signals.attainment, observed.signals.requests, observed.objectives.promised
    if promised is None or not (isinstance(kept, Present) and isinstance(requests, Present)):
        return None
    count = requests.value * observed.settings.judged_over
    allowed = (1.0 - promised) * count + 2.0 * math.sqrt(promised * (1.0 - promised) * count)
    return kept.value if (1.0 - kept.value) * count > allowed else None


def _correct(observed: Observed, state: State, demand: _Demand, missed: float | None, now: float) -> State:
    """Trust the measured rates less after a miss, by one replica at a time, and slowly more again after that.

    Only what was judged since all replicas serve counts, and a replica more is waited for until it is judged. Where
    replicas have nothing waiting and are not half as busy as they may be, more of them would change nothing.
    """
    fleet, settings = observed.fleet, observed.settings
    since = max(0.0, now - state.corrected) if state.corrected > -math.inf else 0.0
    correction = 1.0 + (state.correction - 1.0) * math.exp(-since / settings.trust_again)
    raised = state.raised
    started = now if fleet.starting else state.started
    if missed is not None:
        correction = state.correction
        limit = busy_limit(observed.rates, observed.objectives)
        work = correction * demand.load.work(observed.rates)
        busy = demand.waiting > 0 or work > 0.5 * limit * fleet.ready
        waited = now - raised >= observed.start_up + settings.judged_over
        if busy and fleet.ready and waited and now - started >= settings.judged_over:
            correction, raised = correction * (fleet.ready + 1) / fleet.ready, now
    return replace(state, correction=min(correction, MOST_CORRECTION), corrected=now, raised=raised, started=started)


def _move(
    observed: Observed, state: State, demand: _Demand, need: int, missed: float | None, now: float
) -> tuple[int, str, str]:
    """The number without the bounds."""
    settings, fleet = observed.settings, observed.fleet
    current = fleet.desired
    if need > current:
        return _up(observed, demand, need, now)
    if demand.unknown:
        return current, "MetricsUnavailable", f"held at {current}; {'; '.join(demand.unknown)}"
    if current <= settings.least:
        return current, "Steady", f"{current} carry the load; fewer are not allowed"
    if missed is not None:
        promised = observed.objectives.promised or 0.0
        words = f"held at {current}: {missed:.1%} of the requests kept the objectives, {promised:.0%} are promised"
        return current, "ObjectivesMissed", words
    if fleet.rolling:
        return current, "RollingOut", f"held at {current} until the rollout is over; {need} would carry the load"
    if fleet.pending:
        # They serve nobody, so that taking them away takes no capacity away.
        fewer = max(need, current - fleet.pending, settings.least)
        if fewer < current:
            return fewer, "PendingRemoved", f"no node has room for {fleet.pending} of {current}, and {need} are enough"
    assert state.since is not None
    if now - state.since < settings.down_window:
        seen = now - state.since
        return current, "Watching", f"held at {current}: {seen:.0f} s seen of the {settings.down_window:.0f} s window"
    if current == 1:
        return _to_zero(settings, state, now)
    highest = max(max(rest for _, rest in state.needs), 1)
    if highest >= current:
        return current, "Steady", f"{highest} were needed within the last {settings.down_window:.0f} s"
    if now - state.stepped < settings.down_pause:
        return current, "SteppingDown", f"held at {current} for {settings.down_pause:.0f} s after the last step"
    fewer = max(highest, current - max(1, int(settings.down_share * current)))
    return fewer, "LessNeeded", f"{highest} would have carried the last {settings.down_window:.0f} s"


def _to_zero(settings: Settings, state: State, now: float) -> tuple[int, str, str]:
    if settings.least > 0 or state.idle_since is None:
        return 1, "Steady", "one replica carries the load"
    idle = now - state.idle_since
    if idle < settings.idle_after:
        return 1, "Idle", f"idle for {idle:.0f} s of {settings.idle_after:.0f} s until none is kept"
    return 0, "ScaledToZero", f"idle for {idle:.0f} s"


def _up(observed: Observed, demand: _Demand, need: int, now: float) -> tuple[int, str, str]:
    settings, fleet = observed.settings, observed.fleet
    current = fleet.desired
    if fleet.pending:
        return current, "Unschedulable", f"{need} are needed, but no node has room for {fleet.pending} of {current}"
    step = max(settings.up_least, math.ceil(settings.up_share * current - EPSILON))
    reached = min(need, current + step)
    if current == 0:
        return reached, "Wake", f"{demand.held:.0f} requests are held"
    coming = _coming(observed, now)
    beside = f", beside {coming} that start" if coming else ""
    return reached, "MoreNeeded", f"{need} are needed for the load in {observed.start_up:.0f} s{beside}"


def _coming(observed: Observed, now: float) -> int:
    """Replicas that start, and can still be counted on."""
    return sum(now - started < OVERDUE * observed.start_up for started in observed.fleet.starting)


def _bound(observed: Observed, wanted: int, reason: str, message: str) -> tuple[int, str, str]:
    settings, fleet = observed.settings, observed.fleet
    if wanted > settings.most:
        return settings.most, "AtMax", f"{message}; maxReplicas is {settings.most}"
    if fleet.quota is not None and wanted > max(fleet.quota, settings.least) and wanted > fleet.desired:
        return (
            max(fleet.quota, settings.least, min(fleet.desired, settings.most)),
            "Quota",
            (f"{message}; the quota allows {fleet.quota}"),
        )
    if wanted < settings.least:
        return settings.least, "AtMin", f"{message}; minReplicas is {settings.least}"
    return wanted, reason, message


def _inputs(observed: Observed, demand: _Demand, expected: Forecast, need: int, queue: int, stock: float) -> Inputs:
    known: dict[str, float | str | None] = {
        name: sample.value if isinstance(sample, Present) else None for name, sample in observed.signals.asked()
    }
    return {
        **known,
        "work": expected.level,
        "peak": expected.peak,
        "prediction": expected.way,
        "headroom": expected.headroom,
        "errors": expected.errors,
        "stock_seconds": stock,
        "busy_limit": busy_limit(observed.rates, observed.objectives),
        "start_up": observed.start_up,
        "needed": need,
        "for_queue": queue,
        "ready": observed.fleet.ready,
        "starting": len(observed.fleet.starting),
        "aside": observed.fleet.aside,
    }
