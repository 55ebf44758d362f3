"""Circuit breaking and outlier ejection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.flow.health import (
    BUSY_MOST,
    CONNECT_FAILURES,
    EJECT_FIRST,
    EJECT_MOST,
    ERRORS,
    FAILURES,
    FORGET_AFTER,
    HEALTHY,
    KEEP_OUT,
    PROBE_SECONDS,
    WINDOW,
    Event,
    Health,
    Phase,
    breaking,
    busy,
    transition,
)

BAD = (Event.CONNECT_FAILED, Event.RESET, Event.SILENT, Event.SERVER_ERROR)


def after(*events: Event, health: Health = HEALTHY, now: float = 100.0, may_eject: bool = True) -> Health:
    for event in events:
        health = transition(health, event, now, may_eject=may_eject)
    return health


@pytest.mark.parametrize(
    ("event", "count"),
    [
        (Event.CONNECT_FAILED, CONNECT_FAILURES),
        (Event.RESET, FAILURES),
        (Event.SILENT, FAILURES),
        (Event.SERVER_ERROR, ERRORS),
    ],
)
def test_failures_in_a_row_eject(event: Event, count: int) -> None:
    assert not after(*[event] * (count - 1)).ejected
    out = after(*[event] * count)
    assert out.phase is Phase.OPEN
    assert out.until == 100.0 + EJECT_FIRST


def test_an_answer_between_failures_begins_the_count_anew() -> None:
    two = (Event.RESET,) * (FAILURES - 1)
    assert not after(*two, Event.ANSWERED, Event.ANSWERED, Event.ANSWERED, *two).ejected


def test_half_of_all_requests_failing_ejects_though_others_are_answered() -> None:
    assert after(*[Event.ANSWERED, Event.SERVER_ERROR] * (ERRORS + 1)).ejected
    assert not after(*[Event.SERVER_ERROR, Event.ANSWERED, Event.ANSWERED] * (ERRORS * 3)).ejected


def test_failures_far_apart_do_not_add_up() -> None:
    health = HEALTHY
    for turn in range(4 * ERRORS):
        health = transition(health, Event.SERVER_ERROR, turn * (WINDOW + 1))
    assert not health.ejected


def test_good_answers_of_a_healthy_replica_change_nothing_soon_after_a_failure() -> None:
    health = after(Event.RESET)
    assert transition(health, Event.ANSWERED, 101.0) is not HEALTHY
    assert transition(health, Event.ANSWERED, 101.0 + WINDOW) is HEALTHY


def test_one_probe_decides_whether_an_ejected_replica_is_back() -> None:
    out = after(*[Event.RESET] * FAILURES)
    probing = transition(out, Event.PROBE_SENT, out.until)
    assert probing.phase is Phase.HALF_OPEN
    assert probing.avoid_until == out.until + PROBE_SECONDS
    # What was sent before the ejection decides nothing.
    for event in (Event.ANSWERED, Event.RESET, Event.SERVER_ERROR):
        assert transition(probing, event, out.until).phase is Phase.HALF_OPEN
    assert not transition(probing, Event.ANSWERED, out.until, probe=True).ejected
    again = transition(probing, Event.RESET, out.until, probe=True)
    assert again.until == out.until + 2 * EJECT_FIRST


def test_a_probe_whose_client_leaves_makes_room_for_another() -> None:
    out = after(*[Event.RESET] * FAILURES)
    lost = transition(transition(out, Event.PROBE_SENT, 200.0), Event.PROBE_LOST, 201.0)
    assert (lost.phase, lost.avoid_until) == (Phase.OPEN, 201.0)


def test_each_ejection_in_a_row_is_longer_up_to_a_bound_and_forgotten_after_good_times() -> None:
    health, now, lengths = after(*[Event.RESET] * FAILURES), 100.0, []
    for _ in range(12):
        lengths.append(health.until - now)
        now = health.until
        health = transition(transition(health, Event.PROBE_SENT, now), Event.RESET, now, probe=True)
    assert lengths == sorted(lengths)
    assert lengths[0] == EJECT_FIRST
    assert lengths[-1] == EJECT_MOST
    closed = transition(health, Event.ANSWERED, now, probe=True)
    assert closed.ejections == 13
    assert transition(closed, Event.ANSWERED, now + FORGET_AFTER + 1.0) is HEALTHY


def test_a_poll_that_connects_ends_an_ejection_for_connections_only() -> None:
    assert not after(*[Event.CONNECT_FAILED] * 2, Event.ALIVE).ejected
    assert after(*[Event.SERVER_ERROR] * ERRORS, Event.ALIVE).ejected


def test_polls_that_find_nobody_keep_a_replica_out() -> None:
    out = after(*[Event.CONNECT_FAILED] * CONNECT_FAILURES)
    later = transition(out, Event.CONNECT_FAILED, out.until + 1.0)
    assert later.until == out.until + 1.0 + KEEP_OUT
    assert later.ejections == out.ejections


def test_a_busy_replica_is_left_alone_and_not_ejected() -> None:
    left = busy(HEALTHY, 3.0, 100.0)
    assert not left.ejected
    assert left.avoid_until == 103.0
    assert busy(HEALTHY, None, 100.0).avoid_until == 101.0
    assert busy(HEALTHY, 1e9, 100.0).avoid_until == 100.0 + BUSY_MOST
    assert transition(left, Event.ANSWERED, 102.0).busy_until == 103.0


def test_most_replicas_ejected_is_a_breaking_fleet() -> None:
    assert not any(breaking(*fleet) for fleet in ((0, 1), (1, 1), (1, 2), (1, 3)))
    assert all(breaking(*fleet) for fleet in ((2, 2), (2, 3), (3, 4)))


steps = st.lists(
    st.tuples(
        st.sampled_from([*Event]),
        st.integers(0, 2),
        st.booleans(),
        st.floats(0.0, 20.0, allow_nan=False),
    ),
    max_size=120,
)


@given(steps)
def test_one_replica_is_always_left_and_every_ejection_ends(script: list[tuple[Event, int, bool, float]]) -> None:
    fleet = [HEALTHY] * 3
    now = 100.0
    for event, at, probe, pause in script:
        now += pause
        others = any(not health.ejected for number, health in enumerate(fleet) if number != at)
        before = fleet[at]
        fleet[at] = transition(before, event, now, may_eject=others, probe=probe and before.phase is Phase.HALF_OPEN)
        assert any(not health.ejected for health in fleet)
        assert fleet[at].avoid_until <= now + EJECT_MOST
        if event not in BAD and event is not Event.PROBE_SENT and event is not Event.PROBE_LOST:
            # Only what a replica does wrong ejects it.
            assert before.ejected or not fleet[at].ejected


@given(st.lists(st.floats(0.0, 5.0), max_size=60))
def test_answers_alone_never_make_a_replica_less_than_healthy(pauses: list[float]) -> None:
    health, now = HEALTHY, 50.0
    for pause in pauses:
        now += pause
        health = transition(health, Event.ANSWERED, now)
    assert health is HEALTHY or (not health.ejected and health.failures == 0)
