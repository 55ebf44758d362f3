"""One decision about one pool, from what was seen and heard. Pure: memory is a value, time a parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from paceline_autoscaler.capacity import Rates
from paceline_autoscaler.observed import Observed, Settings, Signals
from paceline_autoscaler.rates import Learnt, learn, rates_of
from paceline_autoscaler.recommend import Decision, State, recommend
from paceline_autoscaler.samples import Present, Sample
from paceline_crds.tuning import Knob

from .asked import Asked
from .direct import Pool
from .fleet import Standing, fleet_of

NO_LOAD_RATES = Rates(prefill=1.0, decode=1.0, floor=0.0)
"""While there is no load, and that is known, or no replica to have any, no rate makes another number of it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What decisions about one pool remember.

    Attributes:
        hash: of the configuration that `learnt` is of.
        target: replicas that were decided last; None before the first decision.
    """

    hash: str = ""
    learnt: Learnt = field(default_factory=Learnt)
    state: State = field(default_factory=State)
    target: int | None = None


def decide(
    asked: Asked,
    seen: Standing,
    heard: Pool,
    held: Sample | None,
    current: int,
    draining: Collection[str],
    memory: Memory,
    tuning: Settings,
    slow: Signals | None = None,
    knobs: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Decision, Memory]:
    """How many replicas a pool should have.

    Args:
        held: requests that routers hold, as far as they say.
        current: replicas asked for, without those that drain.
        draining: uids of these.
        tuning: how eager decisions are; the bounds are those of `asked`.
        slow: the percentiles, where a Prometheus is asked for them.
        knobs: limits that replicas run with by now, where these follow load.
    """
    learnt = memory.learnt if memory.hash == seen.pool.hash else Learnt()
    for work in heard.works():
        learnt = learn(learnt, work)
    parameters = seen.pool.config.parameters
    room = float(knobs.get(Knob.MAX_NUM_SEQS, parameters.max_num_seqs))
    signals = heard.signals(room, held)
    if slow is not None:
        signals = replace(signals, wait_p99=slow.wait_p99, attainment=slow.attainment)
    rates = rates_of(learnt, room, float(knobs.get(Knob.MAX_BATCHED_TOKENS, parameters.max_batched_tokens)))
    if rates is None and (current == 0 or _idle(signals)):
        rates = NO_LOAD_RATES
    fleet = fleet_of(seen, current, draining, heard.aside)
    fewest, most = asked.bounds(heard.now)
    if rates is None:
        count = min(max(current, fewest), most)
        words = f"held at {count}: what one replica does per second is not measured yet"
        decision = Decision(count, "NotMeasured", words, {}, replace(memory.state, since=None))
    else:
        # Without the routers' word nobody could wake it again.
        least = fewest if current == 0 or isinstance(held, Present) else max(fewest, 1)
        settings = replace(
            tuning,
            least=least,
            most=most,
            idle_after=tuning.idle_after if asked.idle_after is None else asked.idle_after,
            down_window=tuning.down_window if asked.down_window is None else asked.down_window,
        )
        observed = Observed(signals, fleet, rates, asked.objectives, settings, seen.starts)
        decision = recommend(observed, memory.state, heard.now)
        if rates is not NO_LOAD_RATES:
            told = {"prefill_rate": rates.prefill, "decode_rate": rates.decode, "step_floor": rates.floor}
            decision = replace(decision, inputs={**decision.inputs, **told})
    return decision, Memory(seen.pool.hash, learnt, decision.state, decision.replicas)


def _idle(signals: Signals) -> bool:
    """Whether nothing is known to be asked for; what is not known then holds the count by itself."""
    load = (signals.prefill, signals.decode, signals.waiting, signals.backlog, signals.held)
    return not any(isinstance(one, Present) and one.low > 0 for one in load)
