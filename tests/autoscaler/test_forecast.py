"""Predictions are used where they beat none, and what is planned for covers the share that was asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from paceline_autoscaler.forecast import Forecast, History, forecast, take

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
        rule = noise(7)
        loads = [rule(step * TICK) for step in range(900)]
        seen = follow(lambda now, loads=loads: loads[int(now / TICK)], 9000.0, coverage)  # type: ignore[misc]
        levels = [sum(loads[max(0, step - 1) : step + 1]) / 2 for step in range(900)]
        held = [
            max(levels[step + 1 : step + 7]) <= one.peak + 1e-9
            for step, (_, one) in enumerate(seen[:-7])
            if one.errors >= 100
        ]
        assert abs(sum(held) / len(held) - coverage) < 0.08, coverage


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
    _, slope, daily = history.open[-1].predicted
    assert slope == 3.0
    assert daily is not None
    assert math.isclose(daily, 9.0)


def test_without_a_day_of_history_no_day_is_predicted() -> None:
    history = History()
    for step in range(100):
        history = take(history, 3.0, step * 60.0, 600.0, 60.0)
    assert history.open[-1].predicted[2] is None
