from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.sketch import BUCKETS, EDGES, RELATIVE_ERROR, Sketch

TIMES = st.floats(EDGES[0], EDGES[-1])
MANY = st.lists(TIMES, min_size=1, max_size=60)
SKETCHES = st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 10**9), max_size=20).map(Sketch)


def test_the_scale_rises_by_no_more_than_the_error_allows() -> None:
    for low, high in itertools.pairwise(EDGES):
        assert 0 < (high - low) / (high + low) <= RELATIVE_ERROR


@pytest.mark.parametrize("limit", [0.001, 0.02, 0.05, 0.15, 0.2, 0.25, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 30.0, 120.0])
def test_round_limits_are_on_the_scale(limit: float) -> None:
    assert limit in EDGES


@given(MANY, st.floats(0.0, 1.0))
def test_a_quantile_is_as_near_as_it_says(values: list[float], share: float) -> None:
    true = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    found = Sketch.of(values).quantile(share)
    assert found is not None
    assert abs(found - true) <= RELATIVE_ERROR * true


@given(MANY, MANY)
def test_merging_is_the_same_as_seeing_all_the_values(first: list[float], second: list[float]) -> None:
    assert Sketch.of(first).merged(Sketch.of(second)) == Sketch.of(first + second)


@given(SKETCHES, SKETCHES, SKETCHES)
def test_the_order_of_merging_does_not_matter(a: Sketch, b: Sketch, c: Sketch) -> None:
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert a.merged(b) == b.merged(a)
    assert a.merged(Sketch()) == a
    assert a.merged(b).count == a.count + b.count


@given(SKETCHES)
def test_a_sketch_survives_json(sketch: Sketch) -> None:
    assert Sketch.decode(json.loads(json.dumps(sketch.encode()))) == sketch


def test_nothing_seen_has_no_quantile() -> None:
    assert Sketch().quantile(0.5) is None


def test_values_beyond_the_scale_count_as_its_ends() -> None:
    assert Sketch.of([0.0, 1e-9]).quantile(0.5) == EDGES[0]
    assert Sketch.of([1e9]).quantile(0.5) == EDGES[-1]


@pytest.mark.parametrize("value", [None, {}, [1], [[1]], [[0, "1"]], [[BUCKETS, 1]], [[-1, 1]], [[0, 0]], [[True, 1]]])
def test_what_is_no_sketch_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="a sketch"):
        Sketch.decode(value)
