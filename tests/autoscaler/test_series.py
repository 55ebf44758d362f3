"""Four things that are never confused: a value, no series, no number, an old value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_autoscaler.samples import Absent, NotANumber, Present, Stale, why_unknown
from paceline_autoscaler.series import Asked, Series, gauge, rate

NOW = 1000.0
ASKED = Asked(NOW, 15.0)


def one(values: str, pod: str = "a", last: float = NOW, **labels: str) -> Series:
    texts = values.split()
    return Series(
        {"pod": pod, **labels}, [(last - 15.0 * (len(texts) - 1 - number), text) for number, text in enumerate(texts)]
    )


def value(sample: object) -> float:
    assert isinstance(sample, Present), sample
    return sample.value


def test_a_real_zero_is_a_value_and_no_series_is_not() -> None:
    assert value(gauge([one("0")], ASKED)) == 0.0
    assert gauge([], ASKED) == Absent("no series")


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "-3", "1e400", "many"])
def test_what_is_no_count_is_no_value(text: str) -> None:
    assert gauge([one("1 2 " + text)], ASKED) == NotANumber(text)


def test_an_old_value_is_stale_and_says_how_old() -> None:
    sample = gauge([one("7", last=NOW - 60)], ASKED)
    assert sample == Stale(7.0, 60.0)
    assert why_unknown(sample) == "60 s old"


def test_a_value_from_the_future_is_not_trusted() -> None:
    assert gauge([one("7", last=NOW + 90)], ASKED) == Stale(7.0, -90.0)
    assert value(gauge([one("7", last=NOW + 5)], ASKED)) == 7.0


def test_a_missing_replica_leaves_bounds() -> None:
    sample = gauge([one("7"), one("3", "b")], Asked(NOW, 15.0, {"a", "b", "c"}, ceiling=64.0))
    assert sample == Present(10.0, NOW, 10.0, 74.0, missing=1)
    unbounded = gauge([one("7")], Asked(NOW, 15.0, {"a", "b"}))
    assert isinstance(unbounded, Present)
    assert math.isinf(unbounded.high)
    assert why_unknown(unbounded) == "lacking 1 replica"


def test_a_pod_that_was_replaced_is_not_counted_twice() -> None:
    series = [one("9", "old", last=NOW - 10), one("4", "new")]
    assert value(gauge(series, Asked(NOW, 15.0, {"new"}))) == 4.0
    # Without a list of pods the old series counts until it is stale.
    assert value(gauge([one("9", "old", last=NOW - 60), one("4", "new")], ASKED)) == 4.0


def test_a_second_prometheus_does_not_double_the_queue() -> None:
    series = [one("5 6 7", prometheus_replica="0"), one("5 6", last=NOW - 15, prometheus_replica="1")]
    assert value(gauge(series, ASKED)) == 7.0


def test_two_models_of_one_pod_add_up() -> None:
    assert value(gauge([one("5", model_name="m"), one("2", model_name="lora")], ASKED)) == 7.0


def test_no_replica_means_nothing_runs() -> None:
    assert value(gauge([], Asked(NOW, 15.0, set()))) == 0.0


def test_a_restarted_counter_adds_what_it_shows_since() -> None:
    # 60 in the first 30 s, then a restart and 30 in 15 s, of which the first 10 were counted by its first scrape.
    assert value(rate([one("100 130 160 10 40")], ASKED, 60.0)) == pytest.approx((60 + 10 + 30) / 60)


def test_a_gap_does_not_lower_a_rate() -> None:
    """C088: of 15 minutes 10 are missing; the load was constant."""
    points = [(NOW - 60 + 15 * step, str(1500 * step)) for step in range(5)]
    sample = rate([Series({"pod": "a"}, points)], ASKED, 900.0)
    assert sample == Absent("points span 60 s of 900 s")
    assert value(rate([Series({"pod": "a"}, points)], ASKED, 90.0)) == pytest.approx(100.0)


def test_a_rate_across_a_hole_is_not_known() -> None:
    points = [(NOW - 300, "0"), (NOW - 285, "10"), (NOW - 15, "11"), (NOW, "12")]
    assert rate([Series({"pod": "a"}, points)], ASKED, 300.0) == Absent("too few points")


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=6), st.integers(1, 5))
def test_the_sum_does_not_depend_on_the_order_of_series(values: list[float], turn: int) -> None:
    series = [one(repr(number), f"pod-{index}") for index, number in enumerate(values)]
    turned = series[turn % len(series) :] + series[: turn % len(series)]
    assert value(gauge(series, ASKED)) == pytest.approx(value(gauge(turned, ASKED)))
