"""Slots and the weighted fair queue: who goes, who waits, and that nobody is lost on the way."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline_crds.tenancy import TenancySpec
from paceline_router.tenancy import gate as gate_module
from paceline_router.tenancy.gate import Gate, priority_of
from paceline_router.tenancy.tenant import Tenant
from paceline_router.tenancy.tenants import Tenants
from paceline_router.wire.answers import Refusal


class Ticket:
    """What the gate wants of an exchange."""

    def __init__(self, tenant: Tenant, tokens: int = 100, priority: int = 0) -> None:
        self.tenant = tenant
        self.tokens = tokens
        self.priority = priority
        self.place: Any = None
        self.parked_at = 0.0


class Site:
    """A gate, its tenants, and shorthands."""

    def __init__(self, max_queued: int = gate_module.MAX_QUEUED, **fields: Any) -> None:
        self.tenants = Tenants()
        self.gate: Gate[Ticket] = Gate(max_queued)
        self.use(**fields)

    def use(self, **fields: Any) -> None:
        spec = TenancySpec.model_validate_json(json.dumps(fields))
        self.tenants.use(spec)
        self.gate.use(spec)

    def ticket(self, name: str = "a", tokens: int = 100, priority: int = 0) -> Ticket:
        return Ticket(self.tenants.identify({"x-paceline-tenant": name.encode()}), tokens, priority)

    def parked(self, *names: str, now: float = 0.0, **more: Any) -> list[Ticket]:
        tickets = [self.ticket(name, **more) for name in names]
        for ticket in tickets:
            assert not self.gate.enter(ticket, False, now)
        return tickets

    def order(self, now: float = 1.0) -> list[Ticket]:
        return list(iter(lambda: self.gate.next(now), None))


def answer(caught: pytest.ExceptionInfo[Refusal]) -> Any:
    assert caught.value.status == 429
    return caught.value.answer


def test_with_room_and_a_slot_a_request_goes_at_once() -> None:
    site = Site(default={"maxConcurrent": 2})
    first, second, third = (site.ticket() for _ in range(3))
    assert site.gate.enter(first, True, 0.0)
    assert site.gate.enter(second, True, 0.0)
    assert not site.gate.enter(third, True, 0.0)
    assert site.gate.next(0.0) is None
    site.gate.leave(first)
    assert site.gate.next(0.0) is third
    assert site.gate.next(0.0) is None
    assert first.tenant.counts.admitted == 3


def test_one_tenants_full_slots_do_not_hold_up_another() -> None:
    site = Site(tenants=[{"name": "batch", "maxConcurrent": 1}, {"name": "chat"}])
    assert site.gate.enter(site.ticket("batch"), True, 0.0)
    assert not site.gate.enter(site.ticket("batch"), True, 0.0)
    assert site.gate.enter(site.ticket("chat"), True, 0.0)


def test_whoever_comes_while_others_wait_for_room_goes_behind_them() -> None:
    site = Site()
    (waiting,) = site.parked("a")
    late = site.ticket("b")
    assert not site.gate.enter(late, True, 0.0)
    assert site.order() == [waiting, late]


def test_one_tenants_requests_go_by_class_and_then_as_they_came() -> None:
    site = Site()
    tickets = [site.ticket(priority=priority) for priority in (0, 1, 0, -1, 5, -1)]
    for ticket in tickets:
        assert not site.gate.enter(ticket, False, 0.0)
    assert [tickets.index(ticket) for ticket in site.order()] == [3, 5, 0, 2, 1, 4]


@pytest.mark.parametrize(
    ("value", "priority"), [(None, 0), (b"high", -1), (b"normal", 0), (b"low", 1), (b"-12", -12), (b"+3", 3)]
)
def test_a_priority_is_a_word_or_a_number(value: bytes | None, priority: int) -> None:
    assert priority_of(value) == priority


def test_a_priority_means_nothing_to_other_tenants() -> None:
    site = Site()
    first, second = site.parked("a", "a", priority=9)
    urgent, other = site.parked("b", "b", priority=-9)
    assert site.order() == [first, urgent, second, other]


def test_tenants_that_wait_share_by_weight_and_tokens() -> None:
    site = Site(maxQueuedPerTenant=1000, tenants=[{"name": "chat", "weight": 4}, {"name": "batch", "weight": 1}])
    site.parked(*["batch"] * 400, tokens=50)
    site.parked(*["chat"] * 400, tokens=100)
    served = dict.fromkeys(("chat", "batch"), 0)
    for _ in range(300):
        ticket = site.gate.next(1.0)
        assert ticket is not None
        served[ticket.tenant.name] += ticket.tokens
        # Within one largest request ÷ weight of each.
        assert abs(served["chat"] / 4 - served["batch"]) <= 100 / 4 + 50 or min(served.values()) == 0


def test_a_share_is_reckoned_by_what_requests_took_in_truth() -> None:
    site = Site(maxQueuedPerTenant=1000)
    site.parked(*["sly"] * 500, tokens=1, now=1.0)
    site.parked(*["fair"] * 500, tokens=100, now=1.0)
    took = dict.fromkeys(("sly", "fair"), 0)
    for _ in range(400):
        ticket = site.gate.next(1.0)
        assert ticket is not None
        took[ticket.tenant.name] += 100
        site.gate.leave(ticket, used=100)
    assert abs(took["sly"] - took["fair"]) <= 400


def test_who_begins_to_wait_goes_first_until_it_has_its_share_of_what_runs_and_no_further() -> None:
    site = Site(maxQueuedPerTenant=1000)
    site.parked(*["busy"] * 200)
    for _ in range(100):
        assert site.gate.next(1.0) is not None
    site.parked(*["back"] * 100)
    names = [ticket.tenant.name for ticket in site.order()]
    # Of 100 that run, half is its share; then they take turns.
    assert names[:48].count("back") == 48
    assert names[52:102].count("back") == 25


def test_who_comes_back_when_nothing_runs_has_nothing_saved_up() -> None:
    site = Site(maxQueuedPerTenant=1000)
    site.parked(*["busy"] * 200)
    for _ in range(100):
        ticket = site.gate.next(1.0)
        assert ticket is not None
        site.gate.leave(ticket)
    site.parked(*["back"] * 100)
    names = [ticket.tenant.name for ticket in site.order()]
    assert names[:100].count("back") == 50


def test_queues_are_bounded_for_each_tenant_and_for_all() -> None:
    site = Site(max_queued=8, maxQueuedPerTenant=3, tenants=[{"name": "chat"}])
    site.parked("x", "x", "x")
    with pytest.raises(Refusal) as caught:
        site.parked("x")
    assert "3 requests wait already, and at most 3 may" in answer(caught).body["error"]["message"]
    assert answer(caught).headers["retry-after"] == "30"
    site.parked("y")
    with pytest.raises(Refusal) as caught:
        site.parked("z")
    assert "4 requests of all tenants wait already" in answer(caught).body["error"]["message"]
    # What names that clients make up cannot take is there for those in the spec.
    site.parked("chat", "chat", "chat")
    assert site.gate.queued == 7
    assert len(site.order()) == 7


def test_where_nobody_may_wait_a_request_is_refused_at_once() -> None:
    site = Site(maxQueuedPerTenant=0, default={"maxConcurrent": 1})
    assert site.gate.enter(site.ticket(), True, 0.0)
    with pytest.raises(Refusal) as caught:
        site.gate.enter(site.ticket(), True, 0.0)
    assert "none may wait" in answer(caught).body["error"]["message"]


def test_the_time_to_come_back_is_that_of_the_measured_queue() -> None:
    site = Site(maxQueuedPerTenant=20)
    site.parked(*["a"] * 20)
    now = 0.0
    for _ in range(60):
        now += 0.5
        assert site.gate.next(now) is not None
        site.parked("a", now=now)
    with pytest.raises(Refusal) as caught:
        site.parked("a", now=now)
    assert answer(caught).headers["retry-after"] == "10"
    # A queue that stands still is not called fast.
    with pytest.raises(Refusal) as caught:
        site.parked("a", now=now + 20)
    assert answer(caught).headers["retry-after"] == "200"


def test_who_waited_too_long_is_let_go_with_words() -> None:
    site = Site(maxWait="2s", default={"maxConcurrent": 1})
    assert site.gate.enter(site.ticket(), True, 0.0)
    (old,) = site.parked("a", now=0.0)
    (young,) = site.parked("a", now=1.0)
    assert site.gate.expired(1.9) == []
    assert site.gate.oldest_wait(1.9) == pytest.approx(1.9)
    assert site.gate.expired(2.5, hold=60.0) == []
    assert site.gate.expired(2.5) == [old]
    refusal = site.gate.refusal(old, 2.5)
    assert refusal.status == 429
    assert "nothing became free within 2 s (1 of its requests run" in str(refusal)
    assert int(refusal.answer.headers["retry-after"]) >= 1
    assert old.tenant.counts.rejected["wait"] == 1
    assert site.gate.expired(3.5) == [young]
    assert site.gate.queued == 0
    assert site.gate.oldest_wait(3.5) == 0.0


def test_a_ticket_that_leaves_twice_frees_one_slot() -> None:
    site = Site(default={"maxConcurrent": 2})
    running = [site.ticket() for _ in range(2)]
    for ticket in running:
        assert site.gate.enter(ticket, True, 0.0)
    site.gate.leave(running[0])
    site.gate.leave(running[0])
    assert running[0].tenant.running == 1


def test_whoever_is_put_back_keeps_its_turn_and_the_time_it_has_waited() -> None:
    site = Site()
    first, second = site.parked("a", "a", now=1.0)
    (other,) = site.parked("b", now=1.0)
    assert site.gate.next(5.0) is first
    site.gate.put_back(first, 5.0)
    site.gate.put_back(first, 5.0)
    assert (first.tenant.running, first.tenant.queued, first.parked_at) == (0, 2, 1.0)
    assert site.gate.oldest_wait(5.0) == 4.0
    assert [ticket is first for ticket in site.order()].index(True) <= 1
    assert first.tenant.counts.admitted + other.tenant.counts.admitted == 3
    direct = site.ticket("c")
    assert site.gate.enter(direct, True, 6.0)
    site.gate.put_back(direct, 6.0)
    assert direct.parked_at == 6.0
    assert site.order() == [direct]
    assert second.tenant.running == 2


def test_more_slots_or_another_weight_count_at_once() -> None:
    site = Site(tenants=[{"name": "a", "maxConcurrent": 1}])
    assert site.gate.enter(site.ticket("a"), True, 0.0)
    site.parked("a", "a")
    assert site.gate.next(0.0) is None
    site.use(tenants=[{"name": "a", "maxConcurrent": 2}])
    assert site.gate.next(0.0) is not None
    assert site.gate.next(0.0) is None
    site.use()
    assert site.gate.next(0.0) is not None


def test_what_is_left_of_those_who_went_away_is_bounded() -> None:
    site = Site(maxQueuedPerTenant=10)
    (first,) = site.parked("a", priority=-1)
    queue = first.tenant.queue
    assert queue is not None
    for _ in range(2000):
        (ticket,) = site.parked("a")
        site.gate.drop(ticket)
    for number in range(2000):
        (ticket,) = site.parked(f"n{number % 7}")
        site.gate.drop(ticket)
    assert len(queue.heap) < 100
    assert len(site.gate._order) < 100
    assert site.order() == [first]


def test_waits_and_queues_are_counted_by_tenant() -> None:
    site = Site(tenants=[{"name": "a"}])
    site.parked("a", "a", "b", now=1.0)
    assert site.gate.next(1.5) is not None
    labels = (("namespace", "demo"), ("service", "chat"))
    samples = {(name, *(v for _, v in more[2:])): value for name, more, value in site.tenants.samples(labels)}
    assert samples["paceline_router_tenant_queued", "a"] == 1
    assert samples["paceline_router_tenant_queued", "b"] == 1
    assert samples["paceline_router_tenant_running", "a"] == 1
    assert samples["paceline_router_tenant_admitted_total", "a"] == 1
    assert samples["paceline_router_tenant_wait_seconds_sum", "a"] == 0.5
    assert ("paceline_router_tenant_wait_seconds_sum", "b") not in samples


NAMES = ("chat", "batch", "x", "y")
SLOTS = {"chat": 3, "batch": 1, "x": 2, "y": 2}


class Life(RuleBasedStateMachine):
    """Requests come, wait, run, end and go away in any order, with a fleet that has room for so many."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Site(
            maxQueuedPerTenant=5,
            maxWait="10s",
            default={"maxConcurrent": 2},
            tenants=[{"name": "chat", "weight": 4, "maxConcurrent": 3}, {"name": "batch", "maxConcurrent": 1}],
        )
        self.slots = dict(SLOTS)
        self.room = 5
        self.now = 1.0
        self.waiting: list[Ticket] = []
        self.running: list[Ticket] = []
        self.gone: list[Ticket] = []

    def pump(self) -> None:
        while len(self.running) < self.room:
            ticket = self.site.gate.next(self.now)
            if ticket is None:
                return
            self.waiting.remove(ticket)
            self.run_ticket(ticket)

    def run_ticket(self, ticket: Ticket) -> None:
        self.running.append(ticket)
        assert sum(other.tenant is ticket.tenant for other in self.running) <= self.slots[ticket.tenant.name]

    @rule(name=st.sampled_from(NAMES), tokens=st.integers(0, 500), priority=st.integers(-1, 1), step=st.floats(0, 3.0))
    def come(self, name: str, tokens: int, priority: int, step: float) -> None:
        self.now += step
        ticket = self.site.ticket(name, tokens, priority)
        queued = sum(other.tenant is ticket.tenant for other in self.waiting)
        try:
            goes = self.site.gate.enter(ticket, len(self.running) < self.room, self.now)
        except Refusal:
            assert queued >= 5  # whoever is put back needs no place
            self.gone.append(ticket)
            return
        if goes:
            self.run_ticket(ticket)
        else:
            self.waiting.append(ticket)
        self.pump()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), used=st.none() | st.integers(0, 2000))
    def end(self, data: st.DataObject, used: int | None) -> None:
        ticket = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.site.gate.leave(ticket, used)
        self.gone.append(ticket)
        self.pump()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def find_no_replica(self, data: st.DataObject) -> None:
        ticket = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.site.gate.put_back(ticket, self.now)
        self.waiting.append(ticket)
        self.pump()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.site.gate.drop(ticket)
        self.gone.append(ticket)
        self.pump()

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        self.site.gate.leave(data.draw(st.sampled_from(self.gone)))

    @rule(step=st.floats(0, 12.0))
    def pass_time(self, step: float) -> None:
        self.now += step
        expired = self.site.gate.expired(self.now)
        assert set(expired) == {ticket for ticket in self.waiting if self.now - ticket.parked_at >= 10.0}
        self.waiting = [ticket for ticket in self.waiting if ticket not in expired]
        self.gone += expired
        self.pump()

    @rule(room=st.integers(0, 8))
    def scale(self, room: int) -> None:
        self.room = room
        self.pump()

    @rule(chat=st.integers(1, 5), weight=st.integers(1, 9))
    def change_spec(self, chat: int, weight: int) -> None:
        self.site.use(
            maxQueuedPerTenant=5,
            maxWait="10s",
            default={"maxConcurrent": 2},
            tenants=[
                {"name": "chat", "weight": weight, "maxConcurrent": chat},
                {"name": "batch", "maxConcurrent": 1},
            ],
        )
        self.slots["chat"] = chat
        self.pump()

    @invariant()
    def nobody_is_lost_or_counted_twice(self) -> None:
        gate = self.site.gate
        assert gate.queued == len(self.waiting)
        for tenant in self.site.tenants:
            assert tenant.running == sum(ticket.tenant is tenant for ticket in self.running)
            assert tenant.queued == sum(ticket.tenant is tenant for ticket in self.waiting)

    @invariant()
    def no_room_is_left_empty_while_somebody_may_go(self) -> None:
        if len(self.running) < self.room:
            for ticket in self.waiting:
                assert ticket.tenant.running >= self.slots[ticket.tenant.name]


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("seed", range(5))
def test_whoever_waits_long_enough_goes_although_new_ones_keep_coming(seed: int) -> None:
    rng = random.Random(seed)
    weights = {"light": 1, "heavy": 1000}
    site = Site(maxQueuedPerTenant=1000, tenants=[{"name": name, "weight": weight} for name, weight in weights.items()])
    (light,) = site.parked("light", tokens=5000)
    site.parked(*["heavy"] * 10, tokens=1)
    site.parked("light", tokens=5000)
    light_went = 0
    for _ in range(6000):
        site.parked("heavy", tokens=rng.randint(900, 1100))
        ticket = site.gate.next(1.0)
        assert ticket is not None
        light_went += ticket.tenant is light.tenant
    # 5000 tokens of weight 1 come due when the heavy one has had 5,000,000.
    assert light_went == 2


@pytest.mark.parametrize("seed", range(8))
def test_over_any_span_shares_are_within_one_request_of_each(seed: int) -> None:
    rng = random.Random(seed)
    weights = {f"t{number}": rng.randint(1, 9) for number in range(5)}
    site = Site(maxQueuedPerTenant=100, tenants=[{"name": name, "weight": weight} for name, weight in weights.items()])
    sizes = {name: rng.randint(10, 2000) for name in weights}
    for name in weights:
        site.parked(*[name] * 50, tokens=sizes[name])
    served = dict.fromkeys(weights, 0.0)
    history = [dict(served)]
    for _ in range(400):
        ticket = site.gate.next(1.0)
        assert ticket is not None
        name = ticket.tenant.name
        served[name] += ticket.tokens / weights[name]
        history.append(dict(served))
        site.parked(name, tokens=rng.randint(1, sizes[name]))
    for begin, end in (sorted(rng.sample(range(401), 2)) for _ in range(200)):
        shares = {name: history[end][name] - history[begin][name] for name in weights}
        for one in weights:
            for other in weights:
                bound = sizes[one] / weights[one] + sizes[other] / weights[other]
                assert abs(shares[one] - shares[other]) <= bound + 1e-6
