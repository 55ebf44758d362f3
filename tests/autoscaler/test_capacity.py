"""Replicas for a load: by hand where the formula can be done by hand, else by what must not happen."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_autoscaler.capacity import Load, Objectives, Rates, busy_limit, carries, erlang_c, late_share, needed

RATES = Rates(prefill=10_000.0, decode=2_000.0, floor=0.02)
loads = st.builds(Load, requests=st.floats(0.01, 50), prefill=st.floats(1, 200_000), decode=st.floats(0, 30_000))


def test_erlang_c_is_that_of_the_tables() -> None:
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, abs=1e-4)
    assert erlang_c(3, 3.0) == 1.0


def test_no_load_needs_no_replica() -> None:
    assert needed(Load(0.0, 0.0, 0.0), RATES, Objectives(1.0, 0.1), 8) == 0


def test_tpot_bounds_how_busy_a_replica_may_be() -> None:
    # 0.02 s / (1 - busy) <= 0.05 s: busy 60 % at most. 3.1 replicas of work need 6.
    objectives = Objectives(tpot=0.05)
    assert busy_limit(RATES, objectives) == pytest.approx(0.6)
    assert needed(Load(1.0, 11_000.0, 4_000.0), RATES, objectives, 20) == 6


def test_a_step_that_cannot_be_too_long_bounds_nothing() -> None:
    assert busy_limit(replace(RATES, full_step=0.045), Objectives(tpot=0.05)) == 0.95


def test_what_runs_needs_room() -> None:
    # 2000 tokens/s. Three replicas are a third busy: 0.03 s a token, 60 requests run. Four: 0.0267 s, 53 run.
    load = Load(10.0, 0.0, 2_000.0)
    room = replace(RATES, max_running=15.0)
    assert not carries(3, load, room, Objectives())
    assert carries(4, load, room, Objectives())


def test_a_rounding_error_needs_no_further_replica() -> None:
    """C080: 4.9999999 of 5."""
    load = Load(1.0, 9_500.0 * 2 + 1e-5, 0.0)
    assert needed(load, RATES, Objectives(), 9) == 2


def test_the_tail_of_the_wait_is_near_a_simulated_queue() -> None:
    """M/M/n with first come first served: four replicas at 80 %."""
    chance = random.Random(5)
    load = Load(requests=32.0, prefill=32_000.0, decode=0.0)
    free = [0.0] * 4
    now, late, count = 0.0, 0, 100_000
    for _ in range(count):
        now += chance.expovariate(32.0)
        first = free.index(min(free))
        start = max(now, free[first])
        free[first] = start + chance.expovariate(10.0)
        late += start - now > 0.2
    # `late_share` takes the prompt's own mean time off its limit.
    assert late_share(4, load, RATES, 0.2 + 0.1) == pytest.approx(late / count, rel=0.1)


@settings(deadline=None)
@given(loads, st.floats(1.0, 3.0), st.floats(0.2, 10.0), st.floats(0.03, 0.5))
def test_more_load_never_needs_fewer(load: Load, factor: float, ttft: float, tpot: float) -> None:
    objectives = Objectives(ttft, tpot)
    assert needed(load.times(factor), RATES, objectives, 64) >= needed(load, RATES, objectives, 64)


@settings(deadline=None)
@given(loads, st.floats(0.2, 10.0), st.floats(0.03, 0.5))
def test_what_is_needed_carries_and_one_less_does_not(load: Load, ttft: float, tpot: float) -> None:
    objectives = Objectives(ttft, tpot)
    count = needed(load, RATES, objectives, 64)
    if count < 64:
        assert carries(count, load, RATES, objectives)
        assert count == 0 or not carries(count - 1, load, RATES, objectives)


@pytest.mark.parametrize("wrong", [{"prefill": 0.0}, {"decode": -1.0}, {"max_running": 0.0}, {"prefill": math.nan}])
def test_rates_that_were_not_measured_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="measure"):
        Rates(**{"prefill": 1.0, "decode": 1.0, "floor": 0.0, **wrong})
