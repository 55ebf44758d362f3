"""The choice of a replica and what is known of its load."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline_router.choice.picker import EJECT_AFTER, EJECT_MOST, STALE_AFTER, ReplicaLoad, pick


def replica(in_flight: int = 0, others: int = 0, fresh_until: float = 1e9) -> ReplicaLoad:
    load = ReplicaLoad(0.0)
    load.in_flight, load.others, load.fresh_until = in_flight, others, fresh_until
    return load


def test_the_least_loaded_is_picked() -> None:
    loads = [replica(2), replica(0, others=1), replica(3)]
    assert all(pick(loads, 0.0, turn, 100) is loads[1] for turn in range(10))


def test_requests_of_other_routers_count() -> None:
    busy, idle = replica(), replica(in_flight=1)
    busy.in_flight = 1
    busy.report(6, 1, now=0.0)
    assert busy.others == 5
    assert pick([busy, idle], 0.0, 0, 100) is idle


def test_own_requests_are_not_counted_twice() -> None:
    load = replica(in_flight=3)
    load.report(3, 1, now=0.0)
    assert load.others == 0


def test_a_stale_replica_is_not_taken_for_an_idle_one() -> None:
    silent, busy = replica(fresh_until=3.0), replica(in_flight=50)
    assert pick([silent, busy], 3.1, 0, 100) is busy
    assert pick([silent], 3.1, 0, 100) is silent


def test_a_new_replica_counts_as_fresh_until_it_had_time_to_report() -> None:
    new = ReplicaLoad(10.0)
    assert not new.stale(10.0 + STALE_AFTER)
    assert new.stale(10.01 + STALE_AFTER)


def test_a_replica_without_load_endpoint_is_judged_by_own_requests() -> None:
    load = ReplicaLoad(0.0)
    load.does_not_report(100.0)
    assert not load.stale(101.0)
    assert not load.reported


def test_an_older_report_never_overwrites_a_newer_one() -> None:
    load = replica()
    assert load.report(5, 9, now=0.0)
    assert not load.report(1, 8, now=0.5)
    assert load.others == 5


def test_after_silence_an_engine_that_counts_anew_is_believed() -> None:
    load = replica()
    load.report(5, 900, now=0.0)
    assert load.report(1, 2, now=STALE_AFTER + 0.1)
    assert load.others == 1


def test_the_second_connect_failure_ejects_and_a_connection_readmits() -> None:
    bad, good = replica(), replica(in_flight=9)
    for _ in range(EJECT_AFTER):
        assert pick([bad, good], 0.0, 0, 100) is bad
        bad.connect_failed(0.0)
    assert bad.ejected(0.0)
    assert pick([bad, good], 0.0, 0, 100) is good
    bad.connected()
    assert pick([bad, good], 0.0, 0, 100) is bad


def test_ejection_grows_to_a_bound_and_ends_by_itself() -> None:
    load = replica()
    for _ in range(50):
        load.connect_failed(100.0)
    assert load.ejected(100.0 + EJECT_MOST - 0.01)
    assert not load.ejected(100.0 + EJECT_MOST)


def test_traffic_goes_on_when_all_are_ejected() -> None:
    loads = [replica(), replica()]
    for load in loads:
        load.ejected_until = 5.0
    assert pick(loads, 0.0, 0, 100) in loads


def test_full_and_tried_replicas_are_left_out() -> None:
    full, tried = replica(in_flight=4), replica()
    assert pick([full, tried], 0.0, 0, 4, [tried]) is None
    assert pick([], 0.0, 0, 4) is None


@given(st.integers(1, 12), st.integers(1, 20))
def test_equal_replicas_take_turns(count: int, rounds: int) -> None:
    loads = [replica() for _ in range(count)]
    picked = [pick(loads, 0.0, turn, 100) for turn in range(count * rounds)]
    assert all(picked.count(load) == rounds for load in loads)


@given(st.integers(1, 8), st.integers(0, 200))
def test_in_flight_requests_never_differ_by_more_than_one_when_none_ends_early(count: int, requests: int) -> None:
    loads = [replica() for _ in range(count)]
    for turn in range(requests):
        chosen = pick(loads, 0.0, turn, 1000)
        assert chosen is not None
        chosen.in_flight += 1
        assert max(load.in_flight for load in loads) - min(load.in_flight for load in loads) <= 1


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.booleans()), min_size=1), st.integers()
)
def test_no_better_replica_is_passed_over(states: list[tuple[int, int, bool, bool]], turn: int) -> None:
    loads = []
    for in_flight, others, stale, ejected in states:
        load = replica(in_flight, others, fresh_until=0.0 if stale else 9.0)
        load.ejected_until = 9.0 if ejected else 0.0
        loads.append(load)
    chosen = pick(loads, 1.0, turn, 1000)
    assert chosen is not None

    def rank(load: ReplicaLoad) -> tuple[bool, bool, int]:
        return load.ejected(1.0), load.stale(1.0), load.in_flight + load.others

    assert rank(chosen) == min(map(rank, loads))
