"""In which order requests leave the queue."""

from __future__ import annotations

from collections.abc import Callable

from paceline_crds.runtime_config import PressurePolicy, QueuePolicy

from .limits import SchedulingRules
from .rates import Rates
from .request import Request

Key = tuple[float, ...]
KeyOf = Callable[[Request], Key]
"""Less is sooner. The first number is the class, the second tells those that lost their blocks (0) from those that
never ran (1), the last one is unique."""

PATIENCE_SECONDS = 60.0
"""Within which a request without a deadline is served where others have one, as if it had been its own."""

QUOTA = 8
"""Where a rule lets some pass others, one admission in so many goes to the request that has been here for longest."""


def order(rules: SchedulingRules, rates: Rates) -> KeyOf:
    """The order of the queue by its policy."""
    match rules.policy:
        case QueuePolicy.PRIORITY:
            return lambda r: (r.priority, not r.num_preemptions, r.sequence)
        case QueuePolicy.DEADLINE:
            return lambda r: (0, not r.num_preemptions, latest_start(r, rates), r.sequence)
        case QueuePolicy.FCFS:
            return lambda r: (0, not r.num_preemptions, r.sequence)


def order_under_pressure(rules: SchedulingRules) -> KeyOf | None:
    """The order while the KV cache is nearly full; `None` where it stays the same."""
    match rules.under_pressure:
        case PressurePolicy.SHORTEST_REMAINING:
            return lambda r: (urgency(r, rules), not r.num_preemptions, remaining(r), r.sequence)
        case PressurePolicy.NONE:
            return None


def urgency(request: Request, rules: SchedulingRules) -> int:
    """A request's class where classes count: less is more urgent."""
    return request.priority if rules.policy is QueuePolicy.PRIORITY else 0


def latest_start(request: Request, rates: Rates) -> float:
    """When a request has to start at the latest to be in time: its deadline, less its own work at the rates measured.

    The work ahead of it is the same for all that wait for the same batch, so it does not change their order.
    """
    deadline = request.deadline if request.deadline is not None else request.arrival_time + PATIENCE_SECONDS
    return deadline - rates.own_seconds(len(request.tokens), request.max_len - len(request.tokens))


def remaining(request: Request) -> int:
    """Tokens that a waiting request has to compute and make at most."""
    return request.max_len * request.num_slots


def rule_name(rules: SchedulingRules, pressed: bool) -> str:
    """By which rule the next request is chosen."""
    names = [
        *(["FairShare"] if rules.fair_share else []),
        *(["ShortestRemaining"] if pressed else []),
        *([] if pressed and rules.policy is QueuePolicy.FCFS else [str(rules.policy)]),
    ]
    return "+".join(names)
