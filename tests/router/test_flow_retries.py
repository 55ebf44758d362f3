"""When a request is sent again, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.flow.causes import REASONS, SAFE, STALE_SECONDS, STOP_WORDS, Cause, Verdict, Where, decide, lost
from paceline_router.flow.retries import BURST, PER_SECOND, RetryBudget


def verdict(cause: Cause, attempts: int = 1, **facts: bool) -> Verdict:
    return decide(cause, attempts, 3, **{"breaking": False, "probe": False, "budget": True, **facts})


@pytest.mark.parametrize("cause", [Cause.CONNECT, Cause.RESET, Cause.UNAVAILABLE, Cause.BUSY])
def test_what_was_surely_not_answered_is_sent_elsewhere(cause: Cause) -> None:
    assert verdict(cause) is Verdict.RETRY


@pytest.mark.parametrize("cause", [Cause.SERVER_ERROR, Cause.SILENT, Cause.LATE])
def test_what_may_have_been_done_or_may_break_the_next_one_is_not_sent_again(cause: Cause) -> None:
    assert verdict(cause) is Verdict.UNSAFE


def test_a_stale_connection_is_repeated_at_the_same_replica_within_the_attempts() -> None:
    assert verdict(Cause.STALE, attempts=2, breaking=True, budget=False) is Verdict.SAME
    assert verdict(Cause.STALE, attempts=3) is Verdict.ATTEMPTS


def test_only_a_kept_connection_that_ends_at_once_and_unheard_is_stale() -> None:
    assert lost(STALE_SECONDS, reused=True, unheard=True) is Cause.STALE
    assert lost(STALE_SECONDS * 1.01, reused=True, unheard=True) is Cause.RESET
    assert lost(0.0, reused=False, unheard=True) is Cause.RESET
    assert lost(0.0, reused=True, unheard=False) is Cause.RESET


def test_what_was_never_sent_goes_to_a_good_replica_whatever_fleet_and_budget_say() -> None:
    assert verdict(Cause.CONNECT, breaking=True, budget=False, another=True) is Verdict.UNSENT
    assert verdict(Cause.CONNECT, attempts=3, another=True) is Verdict.ATTEMPTS
    assert verdict(Cause.RESET, breaking=True, another=True) is Verdict.BREAKING


def test_attempts_fleet_and_budget_bound_retries() -> None:
    assert verdict(Cause.RESET, attempts=3) is Verdict.ATTEMPTS
    assert verdict(Cause.RESET, breaking=True) is Verdict.BREAKING
    assert verdict(Cause.RESET, budget=False) is Verdict.BUDGET


def test_a_probe_may_be_repeated_in_a_breaking_fleet() -> None:
    assert verdict(Cause.CONNECT, breaking=True, probe=True) is Verdict.RETRY
    assert verdict(Cause.CONNECT, breaking=True, probe=True, budget=False) is Verdict.BUDGET


def test_every_cause_is_in_the_table_and_every_retry_has_a_label() -> None:
    assert set(SAFE) == set(Cause)
    assert set(REASONS) == {cause for cause, where in SAFE.items() if where is not Where.NOWHERE}
    assert set(STOP_WORDS) == set(Verdict) - {Verdict.RETRY, Verdict.SAME, Verdict.UNSENT}


def test_no_percent_means_no_retries() -> None:
    budget = RetryBudget(0.0, 0)
    for _ in range(1000):
        budget.request()
    assert not budget.take(1000.0)


def test_a_new_percentage_holds_at_once() -> None:
    budget = RetryBudget(0.0, 10)
    budget.use(0)
    assert not budget.take(10.0)
    budget.use(50)
    for _ in range(2):
        budget.request()
    assert budget.take(10.0)


@given(
    st.integers(1, 100), st.lists(st.tuples(st.sampled_from(["request", "retry"]), st.floats(0.0, 0.2)), max_size=1500)
)
def test_retries_stay_within_their_share_of_the_requests(percent: int, script: list[tuple[str, float]]) -> None:
    budget = RetryBudget(0.0, percent)
    requests = retries = 0
    now = 0.0
    for step, gap in script:
        now += gap
        if step == "request":
            budget.request()
            requests += 1
        else:
            retries += budget.take(now)
        assert retries <= BURST + requests * percent / 100.0 + PER_SECOND * now + 1e-6


def test_the_floor_refills_with_time() -> None:
    budget = RetryBudget(0.0, 10)
    while budget.take(0.0):
        pass
    assert not budget.take(0.0)
    assert sum(budget.take(1.0) for _ in range(100)) == PER_SECOND
