"""Predictions are used where they beat none, and what is planned for covers the share that was asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from paceline_autoscaler.forecast import Forecast, History, forecast, take
from paceline_autoscaler.season import BIN

TICK, HORIZON, SMOOTHING = 10.0, 60.0, 20.0


def follow(rule: Callable[[float], float], seconds: float, coverage: float = 0.9) -> list[tuple[float, Forecast]]:
    """What is forecast at each moment of a load."""
    history = History()
    seen = []
    now = 0.0
    while now < seconds:
        load = rule(now)
        seen.append((now, forecast(history, load, now, HORIZON, coverage, SMOOTHING)))
        history = take(history, load, now, HORIZON, SMOOTHING)
        now += TICK
    return seen


def noise(seed: int, spread: float = 1.0) -> Callable[[float], float]:
    chance = random.Random(seed)
    return lambda now: 10.0 + chance.gauss(0.0, spread)


def test_a_quarter_is_kept_until_errors_are_known() -> None:
    first = follow(lambda now: 8.0, 200.0)
    assert first[0][1].errors == 0
    assert first[0][1].peak == 10.0


def test_a_load_that_does_not_change_needs_no_headroom() -> None:
    _, last = follow(lambda now: 8.0, 1200.0)[-1]
    assert (last.way, last.peak, last.headroom) == ("none", 8.0, 0.0)


def test_at_the_height_of_a_burst_no_further_burst_is_planned_for() -> None:
    """Bursts at times that nobody knows: headroom is kept below them, and none on top of one."""
    chance = random.Random(4)
    starts = [0.0]
    while starts[-1] < 10_800.0:
        starts.append(starts[-1] + chance.uniform(200.0, 700.0))

    def bursts(now: float) -> float:
        return 9.0 if any(start <= now < start + 90.0 for start in starts[1:]) else 2.0

    late = [(bursts(now), one) for now, one in follow(bursts, 10_800.0, 0.95) if now > 5000.0]
    quiet = [one.peak for load, one in late if load == one.level == 2.0]
    high = [one.peak for load, one in late if load == one.level == 9.0]
    assert min(quiet) >= 9.0
    assert max(high) < 11.0


def test_a_slope_is_followed_where_there_is_one() -> None:
    def stairs(now: float) -> float:
        return 4.0 + 0.02 * max(0.0, now % 2400.0 - 1500.0)

    seen = follow(stairs, 7200.0)
    assert {one.way for now, one in seen if now > 4800 and now % 2400 > 1600} == {"slope"}


def test_a_slope_is_not_believed_in_noise() -> None:
    late = [one for now, one in follow(noise(3), 3600.0) if now > 1800]
    assert sum(one.way == "none" for one in late) > 0.8 * len(late)


def test_the_planned_peak_holds_in_the_share_of_cases_that_was_asked_for() -> None:
    for coverage in (0.5, 0.8, 0.95):
        rule = noise(7, 4.0)
        loads = [rule(step * TICK) for step in range(900)]
        seen = follow(lambda now, loads=loads: loads[int(now / TICK)], 9000.0, coverage)  # type: ignore[misc]
        levels = [sum(loads[max(0, step - 1) : step + 1]) / 2 for step in range(900)]
        held = [
            max(levels[step + 1 : step + 7]) <= one.peak + 1e-9
            for step, (_, one) in enumerate(seen[:-7])
            if one.errors >= 100
        ]
        assert -0.08 < sum(held) / len(held) - coverage < 0.15, coverage


def test_where_errors_are_small_nearly_all_are_covered_for_little() -> None:
    rule = noise(9, 0.2)
    late = [one for now, one in follow(rule, 3600.0, 0.5) if now > 1200.0]
    assert all(one.headroom <= 0.05 * one.level + 0.3 for one in late)
    assert min(one.headroom for one in late) > 0.0
    held = [
        max(after.level for _, after in zip(range(7), late[place:], strict=False)) <= one.peak + 1e-9
        for place, one in enumerate(late[:-7])
    ]
    assert sum(held) > 0.85 * len(held)


def test_earlier_days_tell_what_this_time_of_day_brings() -> None:
    """At nine the load triples, on two days; shortly before on the third it is expected to."""

    def day(now: float) -> float:
        return 9.0 if 9 <= now / 3600.0 % 24 < 17 else 3.0

    history = History()
    now = 0.0
    until = (48 + 8.95) * 3600.0
    while now < until:
        history = take(history, day(now), now, 600.0, 60.0)
        now += 60.0
    _, slope, daily, _ = history.open[-1].predicted
    assert slope == 3.0
    assert daily is not None
    assert math.isclose(daily, 9.0)


def test_without_a_day_of_history_no_day_is_predicted() -> None:
    history = History()
    for step in range(100):
        history = take(history, 3.0, step * 60.0, 600.0, 60.0)
    assert history.open[-1].predicted[2] is None


def remembered(rule: Callable[[float], float], seconds: float) -> History:
    history = History()
    now = 0.0
    while now < seconds:
        history = take(history, rule(now), now, HORIZON, SMOOTHING)
        now += TICK
    return history


def steps(now: float) -> float:
    """Ten minutes low, five high."""
    return 9.0 if now % 900.0 >= 600.0 else 3.0


@pytest.mark.parametrize("seconds", [600.0, 900.0, 1300.0])
def test_what_has_not_happened_twice_is_no_period(seconds: float) -> None:
    assert remembered(steps, seconds).period is None


def test_a_load_that_repeats_itself_is_known_before_it_rises() -> None:
    history = remembered(steps, 3000.0)
    assert history.period == 900.0 / BIN
    assert history.open[-1].predicted[3] == 3.0, "300 s into the low time, ten minutes before the next rise"
    history = remembered(steps, 3260.0)
    assert history.open[-1].predicted[3] == 9.0, "within the horizon"


def test_a_rhythm_is_planned_by_where_that_is_cheaper_at_the_same_coverage() -> None:
    seen = follow(steps, 5400.0, 0.98)
    late = [(now, one) for now, one in seen if now >= 3600.0]
    assert {one.way for _, one in late} == {"seasonal"}
    low = [one.peak for now, one in late if 60.0 < now % 900.0 < 480.0]
    assert max(low) < 4.0, "not all the time for the next rise"


def test_a_rhythm_on_a_level_that_has_moved_is_planned_from_there() -> None:
    history = remembered(lambda now: steps(now) + (2.0 if now > 3000.0 else 0.0), 3260.0)
    assert math.isclose(history.open[-1].predicted[3] or 0.0, 11.0)


@pytest.mark.parametrize(
    "rule",
    [
        noise(5),
        lambda now: 3.0 + now / 1000.0,
        lambda now: 9.0 if now > 3000.0 else 3.0,
        lambda now: 9.0 if 2700.0 < now < 3300.0 else 3.0,
    ],
    ids=["noise", "slope", "one step", "one peak between two quiet times"],
)
def test_no_period_is_seen_where_there_is_none(rule: Callable[[float], float]) -> None:
    history = History()
    found = set()
    now = 0.0
    while now < 7200.0:
        history = take(history, rule(now), now, HORIZON, SMOOTHING)
        found.add(history.period)
        now += TICK
    assert found == {None}


def test_a_hole_in_what_was_measured_does_not_move_the_rhythm() -> None:
    history = History()
    now = 0.0
    while now < 4160.0:
        if not 2000.0 < now < 2300.0:
            history = take(history, steps(now), now, HORIZON, SMOOTHING)
        now += TICK
    assert history.period == 900.0 / BIN
    assert history.open[-1].predicted[3] == 9.0
