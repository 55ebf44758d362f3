"""What `spec.rollout` asks for under strategy Canary, with its defaults. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paceline_crds.durations import parse_duration
from paceline_crds.rollout import (
    DEFAULT_HOLD,
    DEFAULT_MAX_DURATION,
    DEFAULT_QUERY_HOLD,
    OUTPUT_SIGNALS,
    REPLICA_SIGNALS,
    GateSignal,
    GateSpec,
    OnBreach,
    OnNotKnown,
    OrderAction,
    QuerySpec,
    RolloutSpec,
    RolloutStrategy,
    ShadowSpec,
    StepSpec,
)
from paceline_shadow_traffic.evidence import QUANTILES, Signal
from paceline_shadow_traffic.verdict import Gate

from .asked import Order, Policy, Step
from .queries import QueryGate

DEFAULT_STEPS = (StepSpec(weight=5, replicas=1), StepSpec(weight=25, hold="30m"), StepSpec(weight=100))

WARM_UP, HEAT_UP = 60.0, 600.0
"""Seconds of a step that are left out: replicas warm up in a minute, their prefix caches fill in ten."""

FEW, MANY = 200, 500
"""Requests before a gate says anything; a P99 of fewer than the second is made of a handful of them."""

FEWEST_MINUTES = 20
"""In which throughput was compared."""

GATES = (
    (Signal.TTFT_P50, 10),
    (Signal.TTFT_P99, 25),
    (Signal.TPOT_P99, 15),
    (Signal.ERROR_RATE, 1),
    (Signal.CANCELLED, 3),
)
GOODPUT = (Signal.GOODPUT, 3)
OUTPUT_GATES = (
    (Signal.ERROR_RATE, 1),
    (Signal.OUTPUT_DIFFERENCE, 5),
    (Signal.LENGTH_P50, 15),
    (Signal.REFUSALS, 2),
    (Signal.TRUNCATED, 3),
)
OUTPUTS = frozenset(Signal(signal.value) for signal in OUTPUT_SIGNALS)
OF_REPLICAS = frozenset(Signal(signal.value) for signal in REPLICA_SIGNALS)
FEW_REPLAYS = 50
"""Greedy answers before their differences say anything: only a share of the requests is asked again."""
DEFAULT_SHADOW_DURATION = "30m"

SPEC = "spec"
"""Gives an order that does not say who gave it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a new revision is rolled out, and judged.

    Attributes:
        gates: of the steps, on what routers measure.
        replica_gates: of the steps, on what replicas count.
        canary: whether what the output canary does not know counts; a wrong answer counts always.
        queries: of the steps, with names that are not filled in.
        order: a person's; a Pin is none.
        output_gates: of the shadow step.
        shadow: whole percent of the requests that are copied in it; 0 where there is none.
        opt_out: tenants of which nothing is copied.
        last_pools: those that change when all others have.
    """

    policy: Policy
    gates: tuple[Gate, ...]
    replica_gates: tuple[Gate, ...] = ()
    canary: bool = False
    queries: tuple[QueryGate, ...] = ()
    paused: bool = False
    order: Order | None = None
    output_gates: tuple[Gate, ...] = ()
    shadow: int = 0
    opt_out: tuple[str, ...] = ()
    last_pools: tuple[str, ...] = ()


def rules_of(spec: RolloutSpec | None, objectives: bool) -> Rules | None:
    """The rules of a service; None where its strategy is another.

    Args:
        objectives: the service promises something (`spec.slo`), so that it can be kept.

    Raises:
        ValueError: the steps or gates cannot be; the API server refuses those too.
    """
    if spec is None or spec.strategy is not RolloutStrategy.CANARY:
        return None
    policy = Policy(
        tuple(_step(step) for step in spec.steps or DEFAULT_STEPS),
        shadow=_shadow(spec.shadow),
        on_not_known=spec.on_not_known or OnNotKnown.PAUSE,
        on_breach=spec.on_breach or OnBreach.ROLLBACK,
    )
    canary = any(one.signal is GateSignal.OUTPUT_CANARY for one in spec.gates or ())
    given = [_gate(one) for one in spec.gates or () if one.signal is not GateSignal.OUTPUT_CANARY]
    of_steps = tuple(gate for gate in given if gate.signal not in OUTPUTS)
    if not of_steps and not canary:
        of_steps = _default_gates(objectives)
    of_outputs = [gate for gate in given if gate.signal in OUTPUTS]
    if of_outputs:
        of_outputs += [gate for gate in given if gate.signal is Signal.ERROR_RATE]
    shadow = spec.shadow
    return Rules(
        policy,
        tuple(gate for gate in of_steps if gate.signal not in OF_REPLICAS),
        tuple(gate for gate in of_steps if gate.signal in OF_REPLICAS),
        canary,
        tuple(_query(one) for one in spec.queries or ()),
        bool(spec.paused),
        _order(spec),
        output_gates=tuple(_of_pairs(shadow, of_outputs)) if shadow is not None else (),
        shadow=shadow.percent if shadow is not None else 0,
        opt_out=tuple(shadow.opt_out_tenants or ()) if shadow is not None else (),
        last_pools=tuple(spec.last_pools or ()),
    )


def _shadow(spec: ShadowSpec | None) -> Step | None:
    # It is over as soon as it is known: its answers go to nobody, so there is nothing to hold for.
    return Step(1, 0.0, parse_duration(spec.max_duration or DEFAULT_SHADOW_DURATION)) if spec is not None else None


def _of_pairs(spec: ShadowSpec, given: Sequence[Gate]) -> Iterator[Gate]:
    """The gates of the shadow step: those that are given, else the usual ones. A cold cache is no matter of answers."""
    pairs = spec.min_samples or FEW
    for gate in given or [Gate(signal, float(margin)) for signal, margin in OUTPUT_GATES]:
        least = min(FEW_REPLAYS, pairs) if gate.signal is Signal.OUTPUT_DIFFERENCE else pairs
        yield replace(gate, min_samples=least, settle=0.0)
    for score in spec.scores or ():
        least = score.min_samples or pairs
        yield Gate(Signal.SCORE, float(score.max_percent), least, settle=0.0, score=score.name)


def _step(spec: StepSpec) -> Step:
    hold = parse_duration(spec.hold or DEFAULT_HOLD)
    most = parse_duration(spec.max_duration) if spec.max_duration else max(hold, parse_duration(DEFAULT_MAX_DURATION))
    # A maximum without a hold of its own is not held for longer than that.
    return Step(spec.weight, hold if spec.hold else min(hold, most), most, spec.replicas)


def _gate(spec: GateSpec) -> Gate:
    signal = Signal(spec.signal.value)
    usual = HEAT_UP if signal is Signal.HIT_RATE else WARM_UP
    warm_up = usual if spec.warm_up is None else parse_duration(spec.warm_up)
    return Gate(signal, float(spec.max_regression_percent), spec.min_samples or _least(signal), warm_up)


def _query(spec: QuerySpec) -> QueryGate:
    return QueryGate(
        spec.name,
        spec.query,
        -math.inf if spec.min is None else float(spec.min),
        math.inf if spec.max is None else float(spec.max),
        parse_duration(spec.hold_for or DEFAULT_QUERY_HOLD),
        WARM_UP if spec.warm_up is None else parse_duration(spec.warm_up),
    )


def _default_gates(objectives: bool) -> tuple[Gate, ...]:
    chosen = (*GATES, GOODPUT) if objectives else GATES
    return tuple(Gate(signal, float(margin), _least(signal), WARM_UP) for signal, margin in chosen)


def _least(signal: Signal) -> int:
    if signal is Signal.THROUGHPUT:
        return FEWEST_MINUTES
    return MANY if QUANTILES.get(signal, ("", 0.0))[1] > 0.95 else FEW


def _order(spec: RolloutSpec) -> Order | None:
    order = spec.order
    if order is None or order.action is OrderAction.PIN:
        return None
    name = order.id or f"{order.action}/{order.revision}"
    return Order(
        name, order.revision, order.action, order.by or SPEC, order.why or "no reason is given", bool(order.id)
    )
