from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_router.shape.calibration import Calibration
from paceline_router.shape.output_length import ENOUGH, MATURE, MAX_ROUTES, Basis, OutputLength, Recent

PATH = b"/v1/chat/completions"


def found(lengths: OutputLength, alike: int = 0, tenant: str = "1", path: bytes = PATH) -> tuple[int, int, int]:
    histogram = lengths.of(alike, tenant, path)
    return (0, 0, 0) if histogram is None else (histogram.low, histogram.high, histogram.basis)


def test_nothing_is_known_before_enough_answers() -> None:
    lengths = OutputLength()
    for _ in range(ENOUGH - 1):
        lengths.learn(0, "1", PATH, 100, None)
    assert found(lengths) == (0, 0, 0)
    lengths.learn(0, "1", PATH, 100, None)
    assert found(lengths, 7, "2")[2] == Basis.ROUTE


def test_requests_alike_have_their_own_length_and_strangers_have_everybodys() -> None:
    lengths = OutputLength()
    for _ in range(3 * ENOUGH):
        lengths.learn(11, "1", PATH, 20, None)
        lengths.learn(12, "1", PATH, 800, None)
        lengths.learn(0, "2", PATH, 300, None)
    assert found(lengths, 11) == pytest.approx((20, 20, Basis.ALIKE), rel=0.05)
    assert found(lengths, 12) == pytest.approx((800, 800, Basis.ALIKE), rel=0.05)
    assert found(lengths, 99, "1")[2] == Basis.TENANT
    assert found(lengths, 98, "2") == pytest.approx((300, 300, Basis.TENANT), rel=0.05)
    stranger = found(lengths, 98, "3")
    assert stranger[2] == Basis.ROUTE
    assert stranger[0] == pytest.approx(300, rel=0.05)


def test_a_change_is_followed() -> None:
    lengths = OutputLength()
    for _ in range(1000):
        lengths.learn(0, "1", PATH, 50, None)
    for _ in range(250):
        lengths.learn(0, "1", PATH, 500, None)
    assert found(lengths)[0] == pytest.approx(500, rel=0.05)


def test_one_client_with_a_tight_bound_does_not_shorten_everybodys_estimate() -> None:
    lengths = OutputLength()
    for _ in range(200):
        lengths.learn(0, "1", PATH, 400, None)
    for _ in range(400):
        lengths.learn(0, "1", PATH, 16, 16)
    assert found(lengths)[0] == pytest.approx(400, rel=0.05)


def test_when_everybody_takes_a_tight_bound_it_is_followed_in_the_end() -> None:
    lengths = OutputLength()
    for _ in range(200):
        lengths.learn(0, "1", PATH, 400, None)
    for _ in range(8 * 300):
        lengths.learn(0, "1", PATH, 5, 16)
    assert found(lengths)[0] == 5


def test_coarse_levels_stay_right_though_they_count_only_some() -> None:
    rng = random.Random(5)
    lengths = OutputLength()
    for _ in range(20 * MATURE):
        lengths.learn(7, "1", PATH, rng.choice((10, 1000)), None)
    low, high, _ = found(lengths, 98, "99")
    assert low in range(9, 1100)
    assert high == pytest.approx(1000, rel=0.05)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.booleans())
def test_memory_is_bounded_whatever_keys_clients_choose(seed: int, again: bool) -> None:
    rng = random.Random(seed)
    lengths = OutputLength(max_keys=8)
    for turn in range(600):
        key = rng.getrandbits(60) if not again else turn // 5 + 1
        lengths.learn(key, f"{key}", b"/%d" % rng.getrandbits(30), 100, None)
    assert len(lengths) <= 2 * 8 + 2 * 8 + MAX_ROUTES
    assert len(lengths._seen) <= 2 * 64


def test_keys_seen_once_push_nobody_out() -> None:
    lengths = OutputLength(max_keys=8)
    for _ in range(2 * ENOUGH):
        lengths.learn(5, "1", PATH, 70, None)
    for key in range(1000, 3000):
        lengths.learn(key, "1", PATH, 900, None)
    assert found(lengths, 5)[2] == Basis.ALIKE


@given(st.lists(st.integers(0, 30), max_size=300), st.integers(1, 6))
def test_what_was_used_last_is_kept(keys: list[int], limit: int) -> None:
    recent: Recent[int] = Recent(limit)
    for key in keys:
        if recent.get(key) is None:
            recent.put(key, key)
        assert len(recent) <= 2 * limit
    latest = list(dict.fromkeys(reversed(keys)))[:limit]
    assert all(recent.get(key) == key for key in latest)


@given(st.integers(0, 4), st.floats(0, 1), st.integers(0, 2**32))
@settings(max_examples=25)
def test_calibration_reports_the_share_below_and_widens_a_p90_that_does_not_hold(
    shape: int, share: float, seed: int
) -> None:
    rng = random.Random(seed)
    calibration = Calibration()
    for _ in range(800):
        calibration.learn(shape, Basis.TENANT, True, rng.random() < share)
    (line,) = calibration.samples()
    assert line.below_median == pytest.approx(1)
    assert line.below_high == pytest.approx(share, abs=0.1)
    if share > 0.9:
        assert calibration.widen[shape] == 1
    if share < 0.5:
        assert calibration.widen[shape] == 4


def test_assumptions_are_reported_and_widen_nothing() -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.learn(0, Basis.PRIOR, False, False)
    (line,) = calibration.samples()
    assert (line.basis, line.below_high) == (Basis.PRIOR, 0)
    assert calibration.widen == [1] * 5
