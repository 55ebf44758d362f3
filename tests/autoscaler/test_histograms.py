"""Quantiles of what was counted between two looks."""

from __future__ import annotations

import math

import pytest

from paceline_autoscaler.histograms import count, increase, quantile, together

INF = math.inf


def test_a_quantile_is_that_of_prometheus() -> None:
    buckets = {0.1: 10.0, 0.2: 30.0, 0.5: 40.0, INF: 40.0}
    assert quantile(buckets, 0.5) == pytest.approx(0.15)
    assert quantile(buckets, 0.25) == pytest.approx(0.1)
    assert quantile(buckets, 1.0) == pytest.approx(0.5)
    assert quantile({0.1: 0.0, INF: 5.0}, 0.9) == 0.1, "beyond the last bound nobody knows how far"
    assert quantile({0.1: 0.0, INF: 0.0}, 0.9) is None
    assert quantile({}, 0.9) is None


def test_what_grew_between_two_looks_is_what_was_observed() -> None:
    before, after = {0.1: 2.0, INF: 5.0}, {0.1: 3.0, INF: 9.0}
    grown = increase(before, after)
    assert grown == {0.1: 1.0, INF: 4.0}
    assert count(grown) == 4.0
    assert increase(after, before) == before, "it began anew"
    assert increase(before, {0.2: 3.0, INF: 9.0}) is None


def test_replicas_add_up_where_they_count_alike() -> None:
    assert together([{0.1: 1.0, INF: 2.0}, {0.1: 3.0, INF: 3.0}]) == {0.1: 4.0, INF: 5.0}
    assert together([{0.1: 1.0, INF: 2.0}, {0.2: 3.0, INF: 3.0}]) is None
    assert together([]) == {}
