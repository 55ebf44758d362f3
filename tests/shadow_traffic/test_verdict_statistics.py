"""The arithmetic of the verdict: looks that cost nothing, intervals that hold at all of them, and their width."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_crds.sketch import EDGES, Sketch
from paceline_shadow_traffic.sequential import (
    Stratum,
    dispersion,
    interval,
    joint_interval,
    log_evidence,
    matched,
    mean_of,
    paired_dispersion,
    quantile_of,
)
from paceline_shadow_traffic.spread import Spread, below


@pytest.mark.parametrize("guess", [0.001, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("draws", [1, 30, 400])
@pytest.mark.parametrize("prior", [(0.5, 0.5), (99.0, 1.0)])
def test_the_evidence_against_the_truth_is_one_on_average(guess: float, draws: int, prior: tuple[float, float]) -> None:
    """So it is a martingale, and Ville's inequality holds of it: summed over all outcomes, not sampled."""
    mean = sum(
        math.exp(
            math.lgamma(draws + 1)
            - math.lgamma(hits + 1)
            - math.lgamma(draws - hits + 1)
            + hits * math.log(guess)
            + (draws - hits) * math.log1p(-guess)
            + log_evidence(hits, draws, guess, prior)
        )
        for hits in range(draws + 1)
    )
    assert mean == pytest.approx(1.0, rel=1e-6)


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.integers(1, 5000), st.integers(1, 99))
def test_the_evidence_falls_towards_what_was_seen_from_both_sides(share: float, of: int, cut: int) -> None:
    guesses = sorted({0.001, 0.999, *(step / cut for step in range(1, cut))})
    found = [log_evidence(share * of, of, guess) for guess in guesses]
    for (left, one), (right, other) in pairwise(zip(guesses, found, strict=True)):
        if right <= share:
            assert other <= one + 1e-6 * (1.0 + abs(one))
        elif left >= share:
            assert other >= one - 1e-6 * (1.0 + abs(one))


def test_looking_after_every_draw_does_not_raise_the_false_alarms() -> None:
    """600 runs of 600 looks each, at 10 %: a test that is made for one look would be wrong in half of them."""
    draw = random.Random(7)
    wrong, naive = 0, 0
    for _ in range(600):
        hits, crossed, crossed_naively = 0, False, False
        for count in range(1, 601):
            hits += draw.random() < 0.3
            crossed = crossed or log_evidence(hits, count, 0.3) >= math.log(10.0)
            deviation = abs(hits - 0.3 * count) / math.sqrt(count * 0.21)
            crossed_naively = crossed_naively or (count >= 30 and deviation > 1.645)
        wrong += crossed
        naive += crossed_naively
    assert wrong <= 60
    assert naive >= 200


def test_an_interval_narrows_as_draws_come_and_holds_the_truth() -> None:
    widths = []
    for count in (100, 1000, 10_000):
        found = interval(mean_of(0.2 * count, count), 0.05)
        assert found.low < 0.2 < found.high
        widths.append(found.high - found.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.04


def test_the_interval_of_a_quantile_is_open_until_enough_was_seen() -> None:
    """Whether 200 values hold the slowest hundredth is luck; 5,000 do."""
    few = interval(quantile_of(0.99, 200.0, Spread.of_values(range(200)).at), 0.01)
    many = interval(quantile_of(0.99, 5000.0, Spread.of_values(range(5000)).at), 0.01)
    assert math.isinf(few.high)
    assert 4900.0 < many.low < 4950.0 < many.high < 5000.0


def test_nothing_seen_bounds_nothing() -> None:
    found = interval(mean_of(0.0, 0.0), 0.05)
    assert (found.low, found.high) == (0.0, 1.0)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 60), st.integers(0, 60))
def test_the_interval_of_a_difference_covers_the_whole_joint_region(one: int, other: int) -> None:
    """Held against a fine grid of pairs: cells may count for more, never for less."""
    base, candidate = mean_of(one, 60), mean_of(other, 60)
    found = joint_interval(base, candidate, 0.05, lambda new, old: new - old)
    grid = [step / 80 for step in range(81)]
    budget = math.log(20.0)
    old = [(guess, base.against(guess)) for guess in grid]
    inside = [new - guess for new in grid for guess, against in old if against + candidate.against(new) < budget]
    assert found.low <= min(inside)
    assert found.high >= max(inside)


def test_the_joint_interval_is_narrower_than_two_with_half_the_share_each() -> None:
    base, candidate = mean_of(500, 1000), mean_of(500, 1000)
    joint = joint_interval(base, candidate, 0.05, lambda new, old: new - old)
    each = interval(base, 0.025)
    assert joint.high - joint.low < 0.93 * 2.0 * (each.high - each.low)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(EDGES)), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_a_sketchs_quantile_lies_in_the_bucket_of_the_value(buckets: list[int], share: float) -> None:
    sketch = Sketch()
    sketch.add((bucket, 1) for bucket in buckets)
    spread = Spread.of_sketch(sketch)
    value = spread.at(share)
    bucket = sorted(buckets)[math.ceil(share * len(buckets) - 1e-9) - 1]
    assert bucket == len(EDGES) or value <= EDGES[bucket] * (1.0 + 1e-9)
    assert bucket == 0 or value >= EDGES[bucket - 1] * (1.0 - 1e-9)
    if math.isfinite(value) and value < EDGES[-1]:
        assert below(sketch, value) == pytest.approx(share * len(buckets), abs=1e-6 * len(buckets) + 1e-6)


def test_what_lies_above_the_scale_has_no_bound() -> None:
    assert math.isinf(Spread.of_sketch(Sketch.of([2000.0])).at(0.5))


def test_independent_draws_are_worth_what_they_are_and_clustered_ones_less() -> None:
    draw = random.Random(3)
    free = [(float(sum(draw.random() < 0.1 for _ in range(50))), 50.0) for _ in range(200)]
    assert dispersion(free) < 1.6
    clustered = [(50.0 * (draw.random() < 0.1), 50.0) for _ in range(200)]
    assert dispersion(clustered) > 25.0
    slow = [(float(sum(draw.random() < (0.05, 0.15)[at // 20 % 2] for _ in range(50))), 50.0) for at in range(200)]
    assert dispersion(slow) > dispersion(slow[:20])


def test_weighed_alike_both_versions_have_as_much_of_every_stretch_and_are_worth_no_more_than_they_are() -> None:
    even = [Stratum(30.0, 10.0)] * 6
    assert matched(even) == pytest.approx((180.0, 60.0))
    uneven = [Stratum(30.0, 10.0), Stratum(30.0, 1.0), Stratum(30.0, 0.0)]
    base, candidate = matched(uneven)
    assert 30.0 < base < 60.0
    assert 10.0 < candidate < 11.0
    assert matched([]) == matched([Stratum(0.0, 5.0), Stratum(5.0, 0.0)]) == (0.0, 0.0)


def test_only_what_is_in_the_difference_makes_samples_worth_less() -> None:
    draw = random.Random(5)
    free = [(draw.gauss(0.0, 2.0), 4.0) for _ in range(200)]
    assert 1.0 <= paired_dispersion(free) < 1.6
    wild = [(draw.gauss(0.0, 6.0), 4.0) for _ in range(200)]
    assert 7.0 < paired_dispersion(wild) < 14.0
    slow = [(draw.gauss(0.0, 2.0) + (1.5 if at // 20 % 2 else -1.5), 4.0) for at in range(200)]
    assert paired_dispersion(slow) > 2.0 * paired_dispersion(free)
    assert paired_dispersion([]) == paired_dispersion([(3.0, 4.0)]) == paired_dispersion([(0.0, 0.0)] * 40) == 1.0


@pytest.mark.parametrize("blocks", [[], [(0.0, 0.0)], [(0.0, 5.0), (0.0, 5.0)], [(5.0, 5.0)]])
def test_blocks_that_say_nothing_of_their_variance_change_nothing(blocks: list[tuple[float, float]]) -> None:
    assert dispersion(blocks) == 1.0
