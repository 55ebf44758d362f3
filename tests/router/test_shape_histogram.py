from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_router.shape.histogram import ERROR, LARGEST, LogHistogram

LENGTHS = st.lists(st.integers(1, LARGEST), min_size=1, max_size=300)


def weighted(values: list[int], share: float, half_life: float) -> int:
    """The quantile by definition, with weights that halve every `half_life` numbers."""
    weights = [2 ** (-(len(values) - 1 - at) / half_life) for at in range(len(values))]
    wanted = share * sum(weights)
    reached = 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        reached += weight
        if reached >= wanted * (1 - 1e-9):
            return value
    return max(values)


def near(found: int, value: int) -> bool:
    """Within half a bucket, and half a token where buckets are smaller than tokens."""
    return abs(found - value) <= value * ERROR * 1.01 + 0.51


@given(LENGTHS, st.sampled_from([20.0, 200.0, 1e9]))
def test_both_quantiles_are_those_of_the_weighted_numbers_within_half_a_bucket(
    values: list[int], half_life: float
) -> None:
    histogram = LogHistogram(0.5, 0.9, half_life=half_life)
    for value in values:
        histogram.add(value)
    for found, share in ((histogram.low, 0.5), (histogram.high, 0.9)):
        # Where a quantile falls between two numbers, either is right.
        exact = {weighted(values, share + shift, half_life) for shift in (-1e-6, 0, 1e-6)}
        assert any(near(found, value) for value in exact)
        assert histogram.low <= histogram.high


@given(LENGTHS, st.floats(0.01, 0.99))
def test_any_other_quantile_is_found_by_counting(values: list[int], share: float) -> None:
    histogram = LogHistogram(half_life=1e9)
    for value in values:
        histogram.add(value)
    exact = {weighted(values, share + shift, 1e9) for shift in (-1e-6, 0, 1e-6)}
    assert any(near(histogram.quantile(share), value) for value in exact)


@given(st.integers(2, 5000), st.integers(2, 5000), st.integers(1, 5000))
def test_the_median_follows_a_change_within_one_half_life(before: int, after: int, many: int) -> None:
    histogram = LogHistogram(half_life=50)
    for _ in range(many):
        histogram.add(before)
    for _ in range(51):
        histogram.add(after)
    assert near(histogram.low, after)


@settings(max_examples=5)
@given(st.integers(1, 1000))
def test_weights_that_grow_for_ever_do_not_overflow(seed: int) -> None:
    histogram = LogHistogram(half_life=2)
    for turn in range(2000):
        histogram.add(1 + (turn * seed) % 10)
    assert math.isfinite(histogram._total)
    assert 1 <= histogram.low <= histogram.high <= 10


def test_nothing_is_known_of_no_numbers() -> None:
    histogram = LogHistogram()
    assert (histogram.count, histogram.low, histogram.high, histogram.quantile(0.5)) == (0, 0, 0, 0)
    histogram.add(0)
    assert histogram.low == 1
