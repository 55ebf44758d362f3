"""What is recommended: never out of bounds, frozen on what is unknown, more for more, and still under constant load."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paceline_autoscaler.capacity import Objectives, Rates
from paceline_autoscaler.observed import Fleet, Observed, Settings, Signals
from paceline_autoscaler.recommend import Decision, State, recommend
from paceline_autoscaler.samples import Absent, NotANumber, Present, Sample, Stale, exactly

RATES = Rates(prefill=10_000.0, decode=3_000.0, floor=0.02, max_running=128.0, full_step=0.05)
OBJECTIVES = Objectives(ttft=2.0, tpot=0.1)
SETTINGS = Settings(least=1, most=20, down_window=120.0, down_every=30.0, start_up=60.0)
TICK = 10.0

UNKNOWN = [Absent("Prometheus does not answer"), NotANumber("NaN"), Stale(3.0, 90.0)]


def load(rate: float, now: float = 0.0, **other: Sample | None) -> Signals:
    """So many requests per second of 1000 prompt and 200 answer tokens, 1/6 s of a replica each; no queue."""
    zero = exactly(0.0, now)
    known: dict[str, Sample | None] = {
        "requests": exactly(rate, now),
        "prefill": exactly(rate * 1000.0, now),
        "decode": exactly(rate * 200.0, now),
        "waiting": zero,
        "backlog": zero,
        "held": zero,
    }
    return Signals(**{**known, **other})


def steady(replicas: int, **other: object) -> Fleet:
    return replace(Fleet(replicas, replicas), **other)  # type: ignore[arg-type]


class Pool:
    """A pool whose replicas serve as soon as they are asked for."""

    def __init__(self, replicas: int, wanted: Settings = SETTINGS) -> None:
        self.replicas, self.settings = replicas, wanted
        self.state, self.now = State(), 0.0
        self.taken: list[int] = []

    def see(self, signals: Signals, **fleet: object) -> Decision:
        observed = Observed(signals, steady(self.replicas, **fleet), RATES, OBJECTIVES, self.settings)
        decision = recommend(observed, self.state, self.now)
        self.state, self.replicas = decision.state, decision.replicas
        self.now += TICK
        self.taken.append(self.replicas)
        return decision

    def stay(self, rate: float, seconds: float, **other: Sample | None) -> Decision:
        decision = self.see(load(rate, self.now, **other))
        for _ in range(int(seconds / TICK) - 1):
            decision = self.see(load(rate, self.now, **other))
        return decision


samples = st.one_of(
    st.none(),
    st.floats(0.0, 1e6).map(lambda value: exactly(value, 0.0)),
    st.floats(0.0, 1e6).map(lambda value: Present(value, 0.0, value, float("inf"), missing=2)),
    st.sampled_from(UNKNOWN),
)
signals_of = st.builds(
    Signals,
    requests=samples,
    prefill=samples,
    decode=samples,
    waiting=samples,
    backlog=samples,
    held=samples,
    kv=samples,
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(signals_of, min_size=1, max_size=12),
    st.integers(0, 5),
    st.integers(0, 10),
    st.integers(0, 30),
    st.integers(0, 3),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 12)),
)
def test_a_decision_is_never_out_of_bounds(
    seen: list[Signals], least: int, more: int, start: int, pending: int, rolling: bool, quota: int | None
) -> None:
    pool = Pool(start, replace(SETTINGS, least=least, most=least + more))
    for signals in seen:
        decision = pool.see(signals, pending=pending, rolling=rolling, quota=quota)
        assert least <= decision.replicas <= least + more
        assert decision.message


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("name", ["requests", "prefill", "decode", "waiting", "backlog", "held", "kv"])
def test_what_is_unknown_freezes_the_number_and_is_named(name: str, unknown: Sample) -> None:
    """C079, C083: eight replicas, hardly any load, and one broken signal for twenty minutes."""
    pool = Pool(8)
    decision = pool.stay(0.5, 1200.0, **{name: unknown})
    assert pool.taken == [8] * 120
    assert decision.reason == "MetricsUnavailable"
    assert name in decision.message


def test_a_pool_that_lacks_one_replicas_metrics_is_not_shrunk() -> None:
    partial = Present(0.0, 0.0, 0.0, float("inf"), missing=1)
    pool = Pool(8)
    assert pool.stay(0.5, 3600.0, waiting=partial).replicas == 8


def test_fresh_metrics_after_an_outage_shrink_only_after_a_whole_window() -> None:
    pool = Pool(8)
    pool.stay(0.5, 600.0, waiting=Absent("no series"))
    pool.stay(0.5, 120.0)
    assert pool.replicas == 8
    pool.stay(0.5, 600.0)
    assert pool.replicas < 4


def test_a_healthy_signal_scales_up_beside_a_broken_one() -> None:
    """C082: the queue's source is down, routers hold requests; nothing scales down, and up goes on."""
    pool = Pool(2)
    decision = pool.see(load(60.0, waiting=Absent("Prometheus does not answer")))
    assert decision.replicas > 2


def test_a_queue_alone_is_reason_enough() -> None:
    """C095: prefill only, the cache at 32 %, the queue grows."""
    pool = Pool(2)
    for waiting in (5, 20, 60, 150):
        tokens = exactly(6000.0 * waiting, pool.now)
        pool.see(load(3.0, pool.now, waiting=exactly(waiting, pool.now), backlog=tokens, kv=exactly(0.32, pool.now)))
    assert pool.replicas > 2


def test_a_full_cache_alone_is_none() -> None:
    pool = Pool(2)
    assert pool.stay(1.0, 300.0, kv=exactly(1.0, 0.0)).replicas <= 2


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 80.0), max_size=20), st.floats(0.0, 80.0), st.floats(0.0, 80.0), st.integers(1, 20))
def test_more_load_never_gets_fewer_replicas(before: list[float], one: float, other: float, start: int) -> None:
    pool = Pool(start)
    for requests in before:
        pool.see(load(requests, pool.now))
    low, high = sorted((one, other))
    fleet = steady(pool.replicas)
    decisions = [
        recommend(Observed(load(rate, pool.now), fleet, RATES, OBJECTIVES, SETTINGS), pool.state, pool.now).replicas
        for rate in (low, high)
    ]
    assert decisions[0] <= decisions[1]


@settings(deadline=None, max_examples=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.floats(0.0, 100.0), st.integers(1, 20))
def test_constant_load_does_not_flap(requests: float, start: int) -> None:
    """At most one turn, when errors are known and the headroom that stood for them goes; then the number stays."""
    pool = Pool(start)
    pool.stay(requests, 1500.0)
    moves = [after - before for before, after in zip([start, *pool.taken], pool.taken, strict=False) if after != before]
    turns = sum((one > 0) != (other > 0) for one, other in itertools.pairwise(moves))
    assert turns <= 1
    assert len(set(pool.taken[-30:])) == 1


def test_down_is_much_slower_than_up() -> None:
    pool = Pool(2)
    pool.stay(80.0, 60.0)
    up = pool.replicas
    assert up >= 10
    pool.stay(4.0, 60.0)
    assert pool.replicas == up, "not within the window"
    pool.stay(4.0, 180.0)
    assert 4 < pool.replicas < up, "by steps"
    pool.stay(4.0, 1800.0)
    assert pool.replicas <= 2


@pytest.mark.parametrize(("window", "pause"), [(60.0, 10.0), (180.0, 30.0), (600.0, 100.0)])
def test_who_asks_for_a_short_window_gets_shorter_pauses_between_steps_down(window: float, pause: float) -> None:
    pool = Pool(10, replace(SETTINGS, down_window=window, down_every=None))
    pool.stay(0.0, 3 * window)
    steps = [TICK * number for number, (a, b) in enumerate(itertools.pairwise([10, *pool.taken])) if a != b]
    assert {b - a for a, b in itertools.pairwise(steps)} == {pause}


def test_replicas_that_start_are_not_asked_for_twice() -> None:
    signals = load(10.0, waiting=exactly(40, 0.0), backlog=exactly(40_000.0, 0.0))
    alone = Observed(signals, Fleet(2, 2), RATES, OBJECTIVES, SETTINGS)
    asked = recommend(alone, State(), 0.0).replicas
    assert asked > 2
    fleet = Fleet(asked, 2, starting=(0.0,) * (asked - 2))
    again = recommend(replace(alone, fleet=fleet), State(), 30.0)
    assert again.replicas == asked


def test_a_slow_start_asks_for_more_than_a_quick_one() -> None:
    """The same queue and load: what waits until a replica serves has to be worked off as well."""
    signals = load(30.0, waiting=exactly(40, 0.0), backlog=exactly(40_000.0, 0.0))

    def asked(seconds: float) -> int:
        observed = Observed(signals, Fleet(3, 3), RATES, OBJECTIVES, replace(SETTINGS, up_least=20), (seconds,) * 5)
        return recommend(observed, State(), 0.0).replicas

    assert asked(600.0) > asked(30.0)


def test_a_rollout_and_its_surge_are_no_load() -> None:
    """C089: two idle replicas, a third one of the new version."""
    pool = Pool(2, replace(SETTINGS, least=2))
    for _ in range(60):
        pool.see(load(0.5, pool.now), rolling=True, ready=2, starting=(pool.now,))
    assert set(pool.taken) == {2}


def test_pending_replicas_are_the_first_to_go_and_no_more_are_asked_for() -> None:
    """C091."""
    pool = Pool(6)
    decision = pool.see(load(100.0), ready=5, pending=1)
    assert (decision.replicas, decision.reason) == (6, "Unschedulable")
    idle = Pool(6)
    decision = idle.see(load(0.1), ready=5, pending=1)
    assert (decision.replicas, decision.reason) == (5, "PendingRemoved")


def test_a_quota_bounds_what_is_added_and_takes_nothing_away() -> None:
    pool = Pool(4)
    assert pool.see(load(100.0), quota=5).replicas == 5
    held = Pool(8)
    assert held.see(load(100.0), quota=5).replicas == 8


def test_a_replica_that_starts_is_not_idle_until_its_start_takes_far_too_long() -> None:
    pool = Pool(1, replace(SETTINGS, least=0, idle_after=30.0, down_window=20.0))
    while pool.now < 3.0 * SETTINGS.start_up:
        assert pool.see(load(0.0, pool.now), ready=0, starting=(0.0,)).replicas == 1
    for _ in range(10):
        decision = pool.see(load(0.0, pool.now), ready=0, starting=(0.0,))
    assert decision.replicas == 0


def test_the_last_replica_goes_after_an_idle_time_of_its_own() -> None:
    """C085: five replicas, no load: by steps to one, then to none after the idle time at one."""
    pool = Pool(5, replace(SETTINGS, least=0, idle_after=300.0, down_share=0.1))
    pool.stay(0.0, 3600.0)
    seen = list(dict.fromkeys(pool.taken))
    assert seen == [5, 4, 3, 2, 1, 0]
    first, last = pool.taken.index(1), pool.taken.index(0)
    assert (last - first) * TICK >= 300.0


def test_a_held_request_wakes_a_pool_at_zero() -> None:
    pool = Pool(0, replace(SETTINGS, least=0))
    assert pool.stay(0.0, 60.0).replicas == 0
    decision = pool.see(load(0.0, held=exactly(1.0, pool.now)), ready=0)
    assert (decision.replicas, decision.reason) == (1, "Wake")


def test_a_new_leader_shrinks_nothing_before_it_has_seen_a_window() -> None:
    """C097."""
    pool = Pool(8)
    pool.stay(0.5, 110.0)
    assert set(pool.taken) == {8}


def test_a_changed_window_holds_at_the_next_decision() -> None:
    """C092."""
    pool = Pool(8)
    pool.stay(0.5, 60.0)
    pool.settings = replace(SETTINGS, down_window=30.0)
    assert pool.see(load(0.5, pool.now)).replicas < 8


def test_a_decision_names_its_numbers() -> None:
    decision = Pool(3).see(load(12.0))
    assert decision.inputs["requests"] == 12.0
    assert decision.inputs["work"] == pytest.approx(12.0 * (1000 / 10_000 + 200 / 3_000))
    assert decision.inputs["start_up"] == 60.0
    assert (
        recommend(Observed(load(1.0, waiting=UNKNOWN[0]), steady(3), RATES, OBJECTIVES, SETTINGS), State(), 0.0).inputs[
            "waiting"
        ]
        is None
    )


def test_a_replica_that_never_says_its_load_counts_as_full_and_holds_up_nothing() -> None:
    pool = Pool(6)
    for _ in range(60):
        decision = pool.see(load(0.0, pool.now), ready=pool.replicas - 2, aside=2)
    assert decision.replicas == 2
    assert "2 say nothing of their load" in decision.message
    assert decision.inputs["aside"] == 2


def test_load_beside_replicas_that_are_full_asks_for_more_than_them() -> None:
    pool = Pool(3)
    decision = pool.see(load(9.0, pool.now), ready=1, aside=2)
    assert decision.replicas > 4


# Objectives that are missed.


class Judged(Pool):
    """A pool whose users are promised something."""

    def see(self, signals: Signals, **fleet: object) -> Decision:
        observed = Observed(
            signals, steady(self.replicas, **fleet), RATES, replace(OBJECTIVES, promised=0.9), self.settings
        )
        decision = recommend(observed, self.state, self.now)
        self.state, self.replicas = decision.state, decision.replicas
        self.now += TICK
        self.taken.append(self.replicas)
        return decision


def kept(share: float) -> Sample:
    return exactly(share, 0.0)


def test_a_replica_that_does_half_of_what_was_measured_is_noticed_by_what_users_get() -> None:
    pool = Judged(4)
    alone = pool.stay(12.0, 600.0, attainment=kept(0.99))
    believed = alone.replicas
    # A replica more each time that the last one has been judged, until users get what they were promised.
    while pool.replicas < 2 * believed:
        before = pool.replicas
        decision = pool.stay(12.0, 200.0, attainment=kept(0.5))
        assert before <= pool.replicas <= before + 1
        assert pool.now < 6000.0, "it goes on until it is enough"
    assert decision.inputs["correction"] > 1.5
    assert decision.inputs["attainment"] == 0.5
    # What was learnt holds while it is kept, and is forgotten slowly.
    assert pool.stay(12.0, 600.0, attainment=kept(0.97)).replicas == 2 * believed
    assert pool.stay(12.0, 6 * 3600.0, attainment=kept(0.97)).replicas < 2 * believed


@pytest.mark.parametrize(
    ("rate", "share"),
    [(12.0, 0.9), (0.05, 0.5), (0.5, 0.5)],
    ids=["as promised", "three of six, which is chance", "idle replicas, of which more would change nothing"],
)
def test_nothing_is_added_for_what_is_no_miss_or_what_replicas_do_not_mend(rate: float, share: float) -> None:
    pool = Judged(4)
    before = pool.stay(rate, 600.0, attainment=kept(0.99))
    after = pool.stay(rate, 600.0, attainment=kept(share))
    assert after.inputs["correction"] == 1.0
    assert after.replicas <= before.replicas


def test_what_was_missed_before_all_replicas_served_is_no_fault_of_the_rates() -> None:
    """The last two minutes are judged; while replicas started requests were late, and that is mended by now."""
    pool = Judged(4)
    pool.stay(12.0, 600.0, attainment=kept(0.99))
    pool.see(load(12.0, pool.now, attainment=kept(0.4)), starting=(pool.now - 60.0,))
    late = pool.stay(12.0, 100.0, attainment=kept(0.4))
    assert late.inputs["correction"] == 1.0
    assert pool.stay(12.0, 60.0, attainment=kept(0.4)).inputs["correction"] != 1.0, "what is missed after that is"


def test_the_load_is_remembered_while_only_what_users_get_is_unknown() -> None:
    pool = Judged(4)
    pool.stay(12.0, 600.0, attainment=kept(0.99))
    decision = pool.stay(24.0, 900.0, attainment=Absent("Prometheus does not answer"))
    assert decision.reason == "MetricsUnavailable"
    assert decision.inputs["errors"] == len(pool.state.history.closed) - 1 > 100
    assert pool.state.history.points[-1][0] == pool.now - TICK


def test_while_objectives_are_missed_nothing_goes_down_and_that_is_said() -> None:
    pool = Judged(8)
    decision = pool.stay(2.0, 900.0, attainment=kept(0.8))
    assert (decision.replicas, decision.reason) == (8, "ObjectivesMissed")
    assert "80.0% of the requests kept the objectives, 90% are promised" in decision.message
    assert pool.stay(2.0, 900.0, attainment=NotANumber("NaN")).replicas < 8, "no requests, nothing missed"
