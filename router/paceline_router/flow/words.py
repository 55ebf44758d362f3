"""What the data path says of its decisions, made only for who asks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline_router.choice import decision
from paceline_router.table import pools
from paceline_router.wire import answers

if TYPE_CHECKING:
    from paceline_router.flow.record import Record
    from paceline_router.table.routes import Lane, Route
    from paceline_router.wire.answers import Refusal

RETRY_AFTER_STARTING = 5
RETRY_AFTER_BUSY = 1
RETRY_AFTER_ZERO = 30

MAX_PLACES = 4096
PLACES: dict[bytes, tuple[str, str]] = {}
"""Pool and revision by the header lines that name them; a revision that is not known is empty."""


def place_of(labels: bytes) -> tuple[str, str]:
    """Pool and revision in the header lines of `Lane.labels`, remembered in `PLACES`."""
    found = dict(line.split(": ", 1) for line in labels.decode("latin-1").split("\r\n") if line)
    place = found.get("x-paceline-pool", ""), found.get("x-paceline-revision", "")
    if len(PLACES) >= MAX_PLACES:
        PLACES.clear()
    PLACES[labels] = place
    return place


def none_ready(route: Route, lane: Lane, by_hand: str | None, waited: float = 0.0) -> Refusal:
    """Why nobody takes the request, and when to come back.

    Args:
        waited: seconds for which the first request has waited for a replica, and so for which one has been starting.
    """
    service = route.service
    who = _who(route)
    if lane.backends:
        return answers.unavailable(f"{who} is overloaded: every ready replica is full.", RETRY_AFTER_BUSY)
    if by_hand is not None:
        return answers.unavailable(f"{who} has no ready replica of revision `{by_hand}`.", RETRY_AFTER_STARTING)
    why = f" ({service.trouble})" if service.trouble else ""
    if route.known == 0 and service.policy.hold_at_zero is not None:
        return answers.unavailable(
            f"{who} is at zero and its first replica has not started yet{why}.", _start(route, waited, RETRY_AFTER_ZERO)
        )
    if service.wanted == 0 and route.known == 0:
        return answers.unavailable(f"{who} is scaled to zero: spec.replicas is 0.", RETRY_AFTER_ZERO)
    if route.known == 0:
        return answers.unavailable(f"{who} has no replica yet{why}.", _start(route, waited, RETRY_AFTER_STARTING))
    starting = route.known - route.draining
    counts = f"{starting} not ready yet, {route.draining} stopping"
    after = _start(route, waited, RETRY_AFTER_STARTING)
    return answers.unavailable(f"{who} has no ready replica: {counts}{why}.", after)


def _start(route: Route, waited: float, otherwise: int) -> int:
    """Seconds until a replica should serve, by the slowest start of the revision that is measured."""
    if route.start_up is None:
        return otherwise
    return max(RETRY_AFTER_STARTING, math.ceil(route.start_up - waited))


def too_many_wait(route: Route, held: int) -> Refusal:
    """The queue of requests that wait for a replica is full."""
    return answers.unavailable(f"{_who(route)} has no room: {held} requests wait for a replica.", RETRY_AFTER_STARTING)


def _who(route: Route) -> str:
    return f"The model `{route.served_name}` ({route.service.key})"


def reason(exchange: Record) -> str:
    """The routing decision as a sentence: version, pool, replica."""
    living, lane = exchange.living, exchange.lane
    parts = [decision.words(exchange.choice)]
    if exchange.by_hand is not None:
        parts.append(f"revision {exchange.by_hand} asked for")
    elif lane.fallback is not None:
        parts.append(lane.fallback)
    elif len(living.route.lanes) > 1:
        parts.append("revision by weight")
    wanted = exchange.asked.wanted
    if exchange.spill:
        group = lane.groups.get(wanted)
        bound = living.policy.spill_above or (group.bound if group is not None else None)
        parts.append(pools.words(exchange.spill, wanted, bound))
    if exchange.asked.note:
        parts.append(exchange.asked.note)
    parts.append(living.shaper.explain(exchange.asked.shaped))
    if exchange.attempts > 1:
        parts.append(f"attempt {exchange.attempts}, before it: {exchange.failure}")
    return "; ".join(parts)
