"""When the benchmark of shadow traffic says that those who are served notice nothing."""

from __future__ import annotations

import pytest

from paceline_bench.shadow.figures import Said, paired, t_quantile


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ([10.1, 10.2, 10.0, 10.1], Said.NO_WORSE),
        ([10.9, 10.8, 10.9, 10.9], Said.NO_WORSE),
        ([12.9, 13.0, 13.1, 13.0], Said.WORSE),
        ([10.0, 13.0, 9.0, 12.0], Said.NOT_KNOWN),
        ([8.0, 8.1, 7.9, 8.0], Said.NO_WORSE),
    ],
)
def test_a_small_baseline_has_a_millisecond(beside: list[float], said: Said) -> None:
    assert paired([10.0, 10.0, 10.0, 10.0], beside).said is said


def test_a_large_baseline_has_two_percent() -> None:
    base = [300.0, 301.0, 299.0, 300.0]
    assert paired(base, [one + 5.0 for one in base]).said is Said.NO_WORSE
    assert paired(base, [one + 7.0 for one in base]).said is Said.WORSE


def test_what_the_machine_does_to_both_is_no_difference() -> None:
    base = [10.0, 30.0, 20.0, 50.0]
    assert paired(base, [one + 0.1 for one in base]).said is Said.NO_WORSE


def test_two_rounds_say_nothing() -> None:
    with pytest.raises(ValueError, match="three rounds"):
        paired([1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize(("freedom", "exact"), [(2, 4.3027), (4, 2.7764), (7, 2.3646), (15, 2.1314), (100, 1.984)])
def test_the_quantile_is_that_of_the_tables(freedom: int, exact: float) -> None:
    assert t_quantile(freedom) == pytest.approx(exact, rel=0.015)
