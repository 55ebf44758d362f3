"""When the benchmark of shadow traffic says that those who are served notice nothing."""

from __future__ import annotations

import pytest

from paceline_bench.shadow.figures import Said, paired

BASE = [10.0] * 8


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ([10.1, 10.2, 10.0, 10.1, 10.3, 10.2, 10.1, 10.0], Said.NO_WORSE),
        ([10.9] * 8, Said.NO_WORSE),
        ([12.9, 13.0, 13.1, 13.0, 12.8, 13.0, 13.2, 13.0], Said.WORSE),
        ([10.0, 13.0, 9.0, 12.0, 10.0, 13.0, 9.0, 12.0], Said.NOT_KNOWN),
        ([8.0] * 8, Said.NO_WORSE),
    ],
)
def test_a_small_baseline_has_a_millisecond(beside: list[float], said: Said) -> None:
    assert paired(BASE, beside).said is said


def test_a_large_baseline_has_two_percent() -> None:
    base = [300.0, 301.0, 299.0, 300.0, 302.0, 298.0]
    assert paired(base, [one + 5.0 for one in base]).said is Said.NO_WORSE
    assert paired(base, [one + 7.0 for one in base]).said is Said.WORSE


def test_what_the_machine_does_to_both_is_no_difference() -> None:
    base = [10.0, 30.0, 20.0, 50.0, 15.0, 90.0]
    assert paired(base, [one + 0.1 for one in base]).said is Said.NO_WORSE


def test_five_rounds_say_nothing() -> None:
    with pytest.raises(ValueError, match="6 rounds"):
        paired([1.0] * 5, [1.0] * 5)


@pytest.mark.parametrize(("rounds", "low", "high"), [(6, 0, 5), (8, 0, 7), (9, 1, 7), (10, 1, 8), (12, 2, 9)])
def test_the_interval_is_that_of_the_tables_of_the_sign_test(rounds: int, low: int, high: int) -> None:
    found = paired([0.0] * rounds, [float(number) for number in range(rounds)])
    assert (found.low, found.high) == (low, high)
