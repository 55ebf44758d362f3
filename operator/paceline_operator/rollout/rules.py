"""What `spec.rollout` asks for under strategy Canary, with its defaults. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_crds.durations import parse_duration
from paceline_crds.rollout import (
    DEFAULT_HOLD,
    DEFAULT_MAX_DURATION,
    GateSpec,
    OnBreach,
    OnNotKnown,
    OrderAction,
    RolloutSpec,
    RolloutStrategy,
    StepSpec,
)
from paceline_shadow_traffic.evidence import QUANTILES, Signal
from paceline_shadow_traffic.verdict import Gate

from .asked import Order, Policy, Step

DEFAULT_STEPS = (StepSpec(weight=5, replicas=1), StepSpec(weight=25, hold="30m"), StepSpec(weight=100))

WARM_UP = 60.0
FEW, MANY = 200, 500
"""Requests before a gate says anything; a P99 of fewer than the second is made of a handful of them."""

GATES = (
    (Signal.TTFT_P50, 10),
    (Signal.TTFT_P99, 25),
    (Signal.TPOT_P99, 15),
    (Signal.ERROR_RATE, 1),
    (Signal.CANCELLED, 3),
)
GOODPUT = (Signal.GOODPUT, 3)

SPEC = "spec"
"""Gives an order that does not say who gave it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a new revision is rolled out, and judged.

    Attributes:
        order: a person's; a Pin is none.
    """

    policy: Policy
    gates: tuple[Gate, ...]
    paused: bool = False
    order: Order | None = None


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
        on_not_known=spec.on_not_known or OnNotKnown.PAUSE,
        on_breach=spec.on_breach or OnBreach.ROLLBACK,
    )
    gates = tuple(_gate(one) for one in spec.gates or ()) or _default_gates(objectives)
    return Rules(policy, gates, bool(spec.paused), _order(spec))


def _step(spec: StepSpec) -> Step:
    hold = parse_duration(spec.hold or DEFAULT_HOLD)
    most = parse_duration(spec.max_duration) if spec.max_duration else max(hold, parse_duration(DEFAULT_MAX_DURATION))
    # A maximum without a hold of its own is not held for longer than that.
    return Step(spec.weight, hold if spec.hold else min(hold, most), most, spec.replicas)


def _gate(spec: GateSpec) -> Gate:
    signal = Signal(spec.signal.value)
    warm_up = WARM_UP if spec.warm_up is None else parse_duration(spec.warm_up)
    return Gate(signal, float(spec.max_regression_percent), spec.min_samples or _least(signal), warm_up)


def _default_gates(objectives: bool) -> tuple[Gate, ...]:
    chosen = (*GATES, GOODPUT) if objectives else GATES
    return tuple(Gate(signal, float(margin), _least(signal), WARM_UP) for signal, margin in chosen)


def _least(signal: Signal) -> int:
    return MANY if QUANTILES.get(signal, ("", 0.0))[1] > 0.95 else FEW


def _order(spec: RolloutSpec) -> Order | None:
    order = spec.order
    if order is None or order.action is OrderAction.PIN:
        return None
    name = order.id or f"{order.action}/{order.revision}"
    return Order(name, order.revision, order.action, order.by or SPEC, order.why or "no reason is given")
