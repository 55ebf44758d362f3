"""Staged rollouts: the edges, what holds at each of them, and that a restart at any of them changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_crds.rollout import OnBreach, OnNotKnown, OrderAction
from paceline_operator.rollout.asked import Asked, Judgement, Order, Policy, Seen, Step
from paceline_operator.rollout.capacity import Way, fit
from paceline_operator.rollout.state import SHADOW_STEP, Phase, State
from paceline_operator.rollout.transition import Record, transition
from paceline_shadow_traffic.verdict import Verdict

STEPS = (Step(5, 600.0, 3600.0, replicas=1), Step(25, 1800.0, 7200.0), Step(100, 600.0, 600.0))
POLICY = Policy(STEPS, shadow=Step(1, 60.0, 1800.0))
BARE = Policy(STEPS)
START = State("a", generation=7)
PROMOTE_AND_ABORT = (OrderAction.PROMOTE, OrderAction.ABORT)


def judged(state: State, verdict: Verdict) -> Judgement:
    """A verdict on just this."""
    return Judgement(state.candidate, state.generation, state.step, state.since, verdict, f"said {verdict}")


@dataclass
class World:
    """A rollout whose surroundings do what they are asked to, unless a test says otherwise. It restarts from the
    annotation before every edge.
    """

    asked: Asked = field(default_factory=lambda: Asked("b", POLICY))
    state: State = START
    now: float = 1000.0
    total: int = 4
    free: int | None = 4
    verdict: Verdict = Verdict.PASS
    ready: dict[str, int] | None = None
    acknowledges: bool = True
    broken: str | None = None
    records: list[Record] = field(default_factory=list)

    def seen(self) -> Seen:
        split = self.state.replicas(self.total)
        ready = {self.state.base: split.base, self.state.candidate: split.candidate}
        return Seen(
            self.total,
            self.free,
            ready if self.ready is None else self.ready,
            self.state.generation if self.acknowledges else self.state.generation - 1,
            judged(self.state, self.verdict),
            self.broken,
        )

    def edge(self) -> bool:
        """One call; whether anything changed."""
        before = self.state
        done = transition(State.from_json(before.to_json()), self.asked, self.seen(), self.now)
        self.state = done.state
        if done.record is not None:
            self.records.append(done.record)
        assert (done.record is not None) == (before != self.state)
        return done.record is not None

    def settle(self, seconds: float = 0.0) -> None:
        """Let time pass, and follow every edge that is due."""
        self.now += seconds
        for _ in range(50):
            if not self.edge():
                return
        raise AssertionError(f"it does not come to rest: {self.records[-4:]}")

    def until(self, phase: Phase, step: int | None = None) -> None:
        """Half minutes until it is there."""
        for _ in range(2000):
            if self.state.phase is phase and step in (None, self.state.step):
                return
            if not self.edge():
                self.now += 30.0
        raise AssertionError(f"{phase} was not reached: {self.state}")

    def order(self, action: OrderAction, revision: str = "b") -> None:
        self.asked = replace(self.asked, order=Order(f"{action}-{self.now}", revision, action, "ann", "I looked"))


def test_a_good_revision_goes_through_every_step_and_serves() -> None:
    world = World()
    world.until(Phase.FINISHING)
    world.settle(700.0)
    phases = [record.after for record in world.records]
    step = [Phase.PREPARING, Phase.MOVING, Phase.JUDGING]
    assert phases == [
        *(Phase.PREPARING, Phase.SHADOW),
        *step,
        *step,
        *(Phase.PREPARING, Phase.MOVING, Phase.FINISHING),
        Phase.IDLE,
    ]
    assert world.state.traffic == {"b": 100}
    assert world.state.generation == START.generation + 3
    assert [record.weight for record in world.records if record.after is Phase.MOVING] == [5, 25, 100]
    assert all(record.message for record in world.records)


@pytest.mark.parametrize("edge", range(12))
@pytest.mark.parametrize("written", [False, True])
def test_a_restart_at_every_edge_goes_on_with_the_same_weights(edge: int, written: bool) -> None:
    """Killed at an edge before the annotation was written: the edge is taken again, and is the same one."""
    whole = World()
    whole.until(Phase.FINISHING)
    whole.settle(700.0)

    world = World()
    while len(world.records) < edge:
        if not world.edge():
            world.now += 30.0
    lost, asked_for, since = world.state, world.state.traffic, len(world.records)
    if not world.edge():
        world.now += 30.0
    if not written:
        world.state = lost
        del world.records[since:]
        assert world.state.traffic == asked_for
    while world.state.phase is not Phase.IDLE or world.state.base == "a":
        if not world.edge():
            world.now += 30.0
    assert [(one.after, one.weight) for one in world.records] == [(one.after, one.weight) for one in whole.records]
    assert world.state.generation == whole.state.generation


@pytest.mark.parametrize(("phase", "step"), [(Phase.SHADOW, -1), (Phase.JUDGING, 0), (Phase.JUDGING, 1)])
def test_a_gate_that_is_worse_takes_the_traffic_back_at_once(phase: Phase, step: int) -> None:
    world = World()
    world.until(phase, step)
    world.verdict, at = Verdict.FAIL, world.now
    world.acknowledges = False
    world.settle()
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.state.traffic == {"a": 100}
    assert (world.records[-1].reason, world.records[-1].at) == ("GateWorse", at)
    assert world.state.replicas(4).base == 4
    assert world.state.replicas(4).candidate >= 1, "kept until every router has left it (C058)"
    world.acknowledges = True
    world.settle(86_400.0)
    assert (world.state.phase, world.state.rejected) == (Phase.IDLE, "b")
    assert world.state.reason == "RolledBack"
    assert world.state.replicas(8) == (world.state.replicas(8).__class__)(8, 0), "C057: a shortage is no reason"


def test_a_rejected_revision_comes_back_by_order_or_after_the_spec_left_it() -> None:
    world = World()
    world.until(Phase.JUDGING)
    world.verdict = Verdict.FAIL
    world.settle()
    world.verdict = Verdict.PASS
    assert not world.edge()
    world.order(OrderAction.PROMOTE)
    world.settle()
    assert world.state.traffic == {"b": 100}
    assert world.records[-1].revision == "b"
    assert "ann" in {record.who for record in world.records}

    world = World(asked=Asked("a", POLICY), state=replace(START, rejected="b", reason="RolledBack"))
    world.settle()
    world.asked = Asked("b", POLICY)
    world.settle()
    assert world.state.phase is Phase.SHADOW


def test_an_order_that_was_given_an_id_is_never_followed_again_though_another_one_came_between() -> None:
    """As when Git, which still has the order to promote, is applied over a person's order to abort."""
    promote, abort = (Order(action.value, "b", action, "ann", "I looked") for action in PROMOTE_AND_ABORT)
    world = World(asked=replace(Asked("b", BARE), order=promote))
    world.until(Phase.FINISHING)
    world.asked = replace(world.asked, order=abort)
    world.settle()
    assert (world.state.traffic, world.state.rejected) == ({"a": 100}, "b")
    world.asked = replace(world.asked, order=promote)
    world.settle(90_000.0)
    assert (world.state.traffic, world.state.rejected) == ({"a": 100}, "b")
    world.asked = replace(world.asked, order=replace(promote, id="another"))
    world.settle()
    assert world.state.traffic == {"b": 100}


def test_an_order_without_an_id_counts_again_when_another_one_was_followed() -> None:
    promote, abort = (Order(f"{action}/b", "b", action, "ann", "I looked", named=False) for action in PROMOTE_AND_ABORT)
    world = World(asked=replace(Asked("b", BARE), order=promote))
    for order, traffic in ((promote, {"b": 100}), (abort, {"a": 100}), (promote, {"b": 100})):
        world.asked = replace(world.asked, order=order)
        world.settle()
        assert world.state.traffic == traffic


def test_of_orders_that_were_followed_the_state_remembers_a_bounded_number() -> None:
    state = START
    for number in range(100):
        state = state.following(Order(f"id-{number}", "b", OrderAction.SKIP, "ann", "I looked"))
    assert State.from_json(state.to_json()) == state
    assert len(state.to_json()) < 1000


@pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.JUDGING, Phase.FINISHING])
def test_a_clock_that_goes_back_by_a_day_costs_no_day(phase: Phase) -> None:
    """Of the node of the operator, or of another leader: what counts from then on is what comes then."""
    world = World()
    world.until(phase)
    before = world.state
    world.now -= 86_400.0
    world.settle()
    assert world.state.since == world.now
    assert (world.state.phase, world.state.traffic, world.state.generation) == (
        phase,
        before.traffic,
        before.generation,
    )
    assert "the clock went back by 86" in world.records[-1].message
    world.settle()
    assert world.state.since == world.now, "said once"
    if phase is not Phase.FINISHING:
        world.verdict = Verdict.FAIL
        world.settle()
        assert world.state.traffic == {"a": 100}
    else:
        world.settle(700.0)
        assert world.state.base == "b"


def test_two_leaders_clocks_may_differ_a_little() -> None:
    world = World()
    world.until(Phase.JUDGING)
    world.now -= 20.0
    assert not world.edge()


def test_a_verdict_on_another_candidate_step_or_traffic_or_from_before_counts_for_nothing() -> None:
    world = World()
    world.until(Phase.JUDGING, 1)
    seen = replace(world.seen(), judgement=None)
    right = judged(world.state, Verdict.PASS)
    later = world.now + 1800.0
    assert transition(world.state, world.asked, replace(seen, judgement=right), later).record is not None
    for judgement in (
        None,
        replace(right, since=world.state.since - 1.0),
        *(
            replace(wrong, verdict=verdict)
            for verdict in (Verdict.PASS, Verdict.FAIL)
            for wrong in (
                replace(right, generation=right.generation - 1),
                replace(right, step=0),
                replace(right, revision="c"),
                replace(right, since=world.state.begun - 1.0),
            )
        ),
    ):
        assert transition(world.state, world.asked, replace(seen, judgement=judgement), later).record is None


@pytest.mark.parametrize(
    ("policy", "phase", "weight"),
    [
        (OnNotKnown.PAUSE, Phase.JUDGING, 5),
        (OnNotKnown.CONTINUE, Phase.JUDGING, 25),
        (OnNotKnown.ROLLBACK, Phase.IDLE, 0),
    ],
)
def test_what_is_not_known_at_the_end_of_a_step_follows_the_policy(
    policy: OnNotKnown, phase: Phase, weight: int
) -> None:
    world = World(asked=Asked("b", replace(BARE, on_not_known=policy)), verdict=Verdict.NOT_KNOWN)
    world.until(Phase.JUDGING)
    world.settle(3500.0)
    assert world.state.weight == 5, "within the step's maximum nothing is decided"
    world.settle(200.0)
    assert (world.state.phase, world.state.weight) == (phase, weight)
    assert "NotKnown" in {record.reason for record in world.records}


def test_a_step_that_is_paused_because_nothing_is_known_goes_on_when_it_is() -> None:
    world = World(asked=Asked("b", BARE), verdict=Verdict.NOT_KNOWN)
    world.until(Phase.JUDGING)
    world.settle(50_000.0)
    told = len(world.records)
    world.settle(50_000.0)
    assert len(world.records) == told, "said once"
    world.verdict = Verdict.PASS
    world.settle()
    assert world.state.weight == 25


def test_a_breach_under_pause_waits_for_a_person() -> None:
    world = World(asked=Asked("b", replace(BARE, on_breach=OnBreach.PAUSE)))
    world.until(Phase.JUDGING)
    world.verdict = Verdict.FAIL
    world.settle(90_000.0)
    assert (world.state.phase, world.state.weight) == (Phase.HELD, 5)
    world.order(OrderAction.SKIP)
    world.verdict = Verdict.NOT_KNOWN
    world.settle()
    assert world.state.weight == 25
    assert ("Skip by ann: I looked", "ann") in {(record.message, record.who) for record in world.records}
    world.settle()
    assert world.state.weight == 25, "an order counts once"
    world.order(OrderAction.ABORT)
    world.settle()
    assert (world.state.traffic, world.state.rejected) == ({"a": 100}, "b")


def test_an_order_about_another_revision_is_not_followed() -> None:
    world = World(asked=Asked("b", BARE), verdict=Verdict.NOT_KNOWN)
    world.until(Phase.JUDGING)
    world.order(OrderAction.PROMOTE, "c")
    world.settle()
    assert world.state.weight == 5


def test_promoting_during_a_rollback_turns_it() -> None:
    world = World(asked=Asked("b", BARE))
    world.until(Phase.JUDGING)
    world.verdict, world.acknowledges = Verdict.FAIL, False
    world.settle()
    world.order(OrderAction.PROMOTE)
    world.verdict, world.acknowledges = Verdict.NOT_KNOWN, True
    world.settle()
    assert world.state.traffic == {"b": 100}


def test_a_new_spec_in_the_middle_goes_back_first_and_then_begins() -> None:
    world = World(asked=Asked("b", BARE))
    world.until(Phase.JUDGING, 1)
    world.asked, world.acknowledges = Asked("c", BARE), False
    world.settle()
    assert (world.state.candidate, world.state.traffic) == ("b", {"a": 100})
    world.acknowledges = True
    world.settle()
    assert (world.state.candidate, world.state.weight) == ("c", 5)
    assert "Superseded" in {record.reason for record in world.records}


def test_a_new_spec_in_the_last_hold_begins_from_what_serves() -> None:
    world = World(asked=Asked("b", BARE))
    world.until(Phase.FINISHING)
    world.asked = Asked("c", BARE)
    world.settle()
    assert world.state.traffic == {"b": 95, "c": 5}


def test_going_back_to_the_base_in_the_last_hold_meets_warm_replicas() -> None:
    world = World(asked=Asked("b", BARE))
    world.until(Phase.FINISHING)
    assert world.state.replicas(4).base == 4
    world.asked = Asked("a", BARE)
    world.settle()
    assert (world.state.traffic, world.state.rejected, world.state.phase) == ({"a": 100}, "", Phase.IDLE)


def test_pause_stops_what_rises_and_no_rollback() -> None:
    world = World(asked=Asked("b", BARE))
    world.until(Phase.JUDGING)
    world.asked = replace(world.asked, paused=True)
    world.settle(90_000.0)
    assert world.state.weight == 5
    world.verdict = Verdict.FAIL
    world.settle()
    assert world.state.traffic == {"a": 100}


@pytest.mark.parametrize(("ready", "weight"), [({"a": 4}, 0), ({"a": 0, "b": 1}, 5), ({"a": 0, "b": 0}, 0)])
def test_traffic_goes_back_as_soon_as_the_base_has_a_replica(ready: dict[str, int], weight: int) -> None:
    world = World(asked=Asked("b", BARE))
    world.until(Phase.JUDGING)
    world.verdict, world.ready, world.acknowledges = Verdict.FAIL, ready, False
    world.settle()
    assert (world.state.phase, world.state.weight) == (Phase.ROLLING_BACK, weight)
    world.ready = {"a": 1, "b": 1}
    world.settle()
    assert world.state.weight == 0


def test_a_candidate_that_cannot_start_or_is_gone_goes_back() -> None:
    world = World(ready={"a": 4}, broken="ModelNotFound: no such file")
    world.settle()
    assert (world.state.rejected, world.records[-2].reason) == ("b", "CandidateBroken")
    world = World(asked=Asked("b", BARE))
    world.until(Phase.JUDGING)
    world.ready = {"a": 4, "b": 0}
    world.settle()
    assert "CandidateGone" in {record.reason for record in world.records}


def test_a_service_at_zero_starts_nothing_and_takes_the_revision_at_its_next_start() -> None:
    """C060."""
    world = World(total=0)
    world.settle()
    assert (world.state.base, world.state.candidate, world.state.reason) == ("b", "", "TakenAtZero")
    assert sum((world.state.replicas(0).base, world.state.replicas(0).candidate)) == 0


def test_a_service_that_goes_to_zero_in_the_middle_begins_the_step_anew_when_it_wakes() -> None:
    world = World(asked=Asked("b", BARE))
    world.until(Phase.JUDGING, 1)
    world.total = 0
    world.settle(90_000.0)
    assert (world.state.phase, world.state.step, world.state.weight) == (Phase.PREPARING, 1, 0)
    world.total, world.ready = 4, {"a": 1, "b": 0}
    world.settle()
    assert world.state.phase is Phase.PREPARING, "a candidate that starts anew is not gone"
    world.ready = None
    world.settle()
    assert (world.state.phase, world.state.weight) == (Phase.JUDGING, 25)


def test_a_person_may_say_that_there_is_room() -> None:
    world = World(free=None)
    world.settle()
    assert world.state.reason == "RoomNotKnown"
    world.order(OrderAction.SKIP)
    world.settle()
    assert (world.state.way, world.state.candidate) == (Way.SURGE, "b")


def test_several_pools_are_not_exchanged_one_by_one() -> None:
    assert fit(BARE, 4, 0, pools=2).way is Way.REFUSED
    assert "one pool at a time" in fit(BARE, 4, 0, pools=2).message
    assert fit(BARE, 4, 5, pools=2).way is Way.SURGE
    assert fit(BARE, 4, 6, pools=2).way is Way.WARM


@pytest.mark.parametrize(("free", "total", "reason"), [(0, 1, "NoRoom"), (None, 4, "RoomNotKnown")])
def test_where_there_is_no_room_or_it_is_not_known_nothing_begins(free: int | None, total: int, reason: str) -> None:
    world = World(free=free, total=total)
    world.settle(90_000.0)
    assert (world.state.phase, world.state.reason, len(world.records)) == (Phase.BLOCKED, reason, 1)
    assert world.state.replicas(total).candidate == 0
    world.free = 5
    world.settle()
    assert world.state.phase is Phase.SHADOW


# --- whatever happens ------------------------------------------------------------------------------------------------

policies = st.builds(
    Policy,
    steps=st.sampled_from([STEPS, (Step(100, 0.0, 0.0),), (Step(1, 0.0, 60.0), Step(50, 60.0, 60.0), STEPS[-1])]),
    shadow=st.sampled_from([None, Step(1, 60.0, 1800.0)]),
    on_not_known=st.sampled_from(OnNotKnown),
    on_breach=st.sampled_from(OnBreach),
)
orders = st.one_of(
    st.none(),
    st.builds(
        Order,
        id=st.sampled_from("123456"),
        revision=st.sampled_from("abc"),
        action=st.sampled_from([OrderAction.PROMOTE, OrderAction.SKIP, OrderAction.ABORT]),
        who=st.just("ann"),
        why=st.just("because"),
    ),
)
moments = st.tuples(
    st.sampled_from("abbbbbbbc"),
    orders,
    st.sampled_from([False, False, False, True]),
    st.sampled_from([0, 1, 3, 3, 3, 10]),
    st.sampled_from([None, 0, 1, 20]),
    st.sampled_from(["all", "all", "all", "none", "base"]),
    st.booleans(),
    st.sampled_from([Verdict.PASS, Verdict.PASS, Verdict.FAIL, Verdict.NOT_KNOWN, None]),
    st.sampled_from([0.0, 61.0, 700.0, 8000.0]),
)


def look(state: State, moment: tuple, policy: Policy) -> tuple[Asked, Seen]:  # type: ignore[type-arg]
    revision, order, paused, total, free, ready, acknowledges, verdict, _ = moment
    split = state.replicas(total)
    counts = {
        state.base: split.base if ready != "none" else 0,
        state.candidate: split.candidate if ready == "all" else 0,
    }
    judgement = None if verdict is None else judged(state, verdict)
    generation = state.generation if acknowledges else None
    return Asked(revision, policy, order, paused), Seen(total, free, counts, generation, judgement)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(policies, st.lists(moments, min_size=1, max_size=40))
def test_whatever_happens_the_rules_hold(policy: Policy, story: list[tuple]) -> None:  # type: ignore[type-arg]
    state, now = START, 1000.0
    for moment in story:
        now += moment[-1]
        asked, seen = look(state, moment, policy)
        done = transition(state, asked, seen, now)
        after, record = done.state, done.record

        assert State.from_json(after.to_json()) == after
        assert 1 <= len(after.traffic) <= 2
        assert sum(after.traffic.values()) == 100
        assert after.generation == state.generation + (after.traffic != state.traffic), "each change has its generation"

        if after.traffic.get(asked.revision, 0) > state.traffic.get(asked.revision, 0) and asked.revision != state.base:
            if seen.total > 0:
                assert (state.phase, after.phase) == (Phase.PREPARING, Phase.MOVING)
                assert seen.ready[state.candidate] >= 1
                assert after.weight == state.steps[state.step].weight
                assert not asked.paused
            else:
                assert record is not None
                assert record.reason == "TakenAtZero"
        if record is not None and (after.candidate, after.step) != (state.candidate, state.step) and after.candidate:
            _was_allowed(state, after, asked, seen, now, record)
        current = seen.judgement is not None and seen.judgement.verdict is Verdict.FAIL
        if current and state.phase in (Phase.SHADOW, Phase.MOVING, Phase.JUDGING) and asked.revision == state.candidate:
            assert after.phase in (Phase.ROLLING_BACK, Phase.HELD) or (record is not None and record.who == "ann")
        if after.phase is Phase.ROLLING_BACK and moment[3] > 0:
            assert after.replicas(moment[3]).candidate >= 1

        _the_way_back_is_open(after, policy, now)
        state = after


def _was_allowed(state: State, after: State, asked: Asked, seen: Seen, now: float, record: Record) -> None:
    """A further step is entered after a verdict that passes and the hold, by order, or under Continue."""
    if not state.candidate:
        assert after.step in (SHADOW_STEP if asked.policy.shadow else 0,) or record.who == "ann"
        return
    if record.who == "ann":
        return
    assert state.phase in (Phase.SHADOW, Phase.JUDGING)
    assert after.step == state.step + 1
    times = asked.policy.shadow if state.step == SHADOW_STEP else state.steps[state.step]
    verdict = seen.judgement.verdict if seen.judgement else Verdict.NOT_KNOWN
    # The policy may lose its shadow step while it runs; then nothing holds it.
    hold, most = (times.hold, times.most) if times else (0.0, 0.0)
    passed = verdict is Verdict.PASS and now - state.since >= hold
    went_on = (
        verdict is Verdict.NOT_KNOWN and asked.policy.on_not_known is OnNotKnown.CONTINUE and now - state.since >= most
    )
    assert passed or went_on


def _the_way_back_is_open(state: State, policy: Policy, now: float) -> None:
    if not state.candidate:
        return
    world = World(Asked(state.candidate, policy), state, now, verdict=Verdict.NOT_KNOWN)
    world.order(OrderAction.ABORT, state.candidate)
    world.settle()
    assert (world.state.phase, world.state.traffic) == (Phase.IDLE, {state.base: 100})
    assert world.state.rejected == state.candidate
