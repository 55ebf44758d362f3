"""One tenant at ten times its share, and what the other one notices: the gate before a paced fleet, in virtual time."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest

from paceline_crds.tenancy import TenancySpec
from paceline_router.tenancy.gate import Gate
from paceline_router.tenancy.tenant import Tenant
from paceline_router.tenancy.tenants import Tenants
from paceline_router.wire.answers import Refusal

ROOM = 64
"""Requests that the fleet takes at one time."""

PACE = 0.01
"""Seconds for each token of an answer, whatever else runs."""

FIRST_TOKEN = 0.25
"""Seconds from the replica's taking a request to its first token."""

MEAN_TOKENS = 200
CAPACITY = ROOM / (FIRST_TOKEN + MEAN_TOKENS * PACE)
"""Requests a second."""

SECONDS = 600.0
SETTLED = 30.0


@dataclass
class Request:
    tenant: Tenant
    tokens: int
    arrived: float
    true_tokens: int
    priority: int = 0
    place: Any = None
    parked_at: float = 0.0


@dataclass
class Seen:
    """Seconds from arrival, of requests that arrived after things had settled."""

    first_token: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    refused: int = 0

    def p99(self, values: list[float]) -> float:
        return sorted(values)[int(len(values) * 0.99)]


def simulate(rates: dict[str, float], seed: int, **spec: Any) -> dict[str, Seen]:
    """Poisson arrivals of these tenants, as requests a second. Estimates are off by up to half."""
    tenants, gate = Tenants(), Gate[Request]()
    policy = TenancySpec.model_validate_json(json.dumps(spec))
    tenants.use(policy)
    gate.use(policy)
    seen = {name: Seen() for name in rates}
    # A stream of its own for each tenant: the others' presence must not change when its requests come.
    streams = {name: random.Random(f"{seed} {name}") for name in rates}
    events: list[tuple[float, int, str, Request | None]] = []
    numbers = count()
    for name, rate in rates.items():
        heappush(events, (streams[name].expovariate(rate), next(numbers), name, None))
    running = 0

    def start(request: Request, now: float) -> None:
        nonlocal running
        running += 1
        name = request.tenant.name
        end = now + FIRST_TOKEN + request.true_tokens * PACE
        heappush(events, (end, next(numbers), name, request))
        if request.arrived > SETTLED:
            seen[name].first_token.append(now + FIRST_TOKEN - request.arrived)
            seen[name].whole.append(end - request.arrived)

    while events and events[0][0] < SECONDS:
        now, _, name, ended = heappop(events)
        if ended is not None:
            running -= 1
            gate.leave(ended, ended.true_tokens)
        else:
            stream = streams[name]
            heappush(events, (now + stream.expovariate(rates[name]), next(numbers), name, None))
            tokens = stream.randint(MEAN_TOKENS // 2, MEAN_TOKENS * 3 // 2)
            tenant = tenants.identify({"x-paceline-tenant": name.encode()})
            request = Request(tenant, int(tokens * stream.uniform(0.5, 1.5)), now, tokens)
            try:
                if gate.enter(request, running < ROOM, now):
                    start(request, now)
            except Refusal:
                seen[name].refused += 1
        for expired in gate.expired(now):
            seen[expired.tenant.name].refused += 1
        while running < ROOM and (following := gate.next(now)) is not None:
            start(following, now)
    return seen


SHARE = CAPACITY / 2
TENANTS = [{"name": "chat"}, {"name": "batch"}]


@pytest.mark.parametrize("load", [0.5, 0.8])
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_times_its_share_from_one_tenant_makes_the_others_answers_less_than_a_tenth_later(
    seed: int, load: float
) -> None:
    alone = simulate({"chat": load * SHARE}, seed, tenants=TENANTS)["chat"]
    beside = simulate({"chat": load * SHARE, "batch": 10 * SHARE}, seed, tenants=TENANTS)
    chat = beside["chat"]
    assert chat.refused == 0
    assert beside["batch"].refused > 0
    assert chat.p99(chat.whole) <= 1.1 * alone.p99(alone.whole)


@pytest.mark.parametrize("seed", [1, 2])
def test_with_a_bound_on_the_ones_slots_not_even_the_others_first_token_is_later(seed: int) -> None:
    tenants = [{"name": "chat"}, {"name": "batch", "maxConcurrent": ROOM * 3 // 8}]
    alone = simulate({"chat": 0.7 * SHARE}, seed, tenants=tenants)["chat"]
    chat = simulate({"chat": 0.7 * SHARE, "batch": 10 * SHARE}, seed, tenants=tenants)["chat"]
    assert chat.p99(chat.first_token) <= 1.1 * alone.p99(alone.first_token)


def test_the_same_load_in_one_queue_would_cost_it_far_more() -> None:
    """So that the two tests above are known to show something."""
    alone = simulate({"chat": 0.7 * SHARE}, 1)["chat"]
    together = simulate({"chat": 10.7 * SHARE}, 1)["chat"]
    assert together.p99(together.whole) > 1.5 * alone.p99(alone.whole)


def test_what_one_tenant_leaves_the_other_may_use() -> None:
    beside = simulate({"chat": 0.1 * SHARE, "batch": 10 * SHARE}, 1, tenants=TENANTS)
    served = sum(len(seen.whole) for seen in beside.values())
    assert served > 0.97 * CAPACITY * (SECONDS - SETTLED)
