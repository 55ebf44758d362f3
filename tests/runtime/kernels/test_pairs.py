"""Of any two properties any two values meet, in far fewer combinations than there are."""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import pytest

from paceline_runtime.kernels.check import attention_cases, variants
from paceline_runtime.kernels.check.pairs import every_pair

PROPERTIES = {
    "parity": attention_cases.PROPERTIES,
    "compile": variants.PROPERTIES,
    "two": {"a": (1, 2), "b": "xyz"},
    "one that never varies": {"a": (1,), "b": (1, 2), "c": (1, 2)},
}


@pytest.mark.parametrize("properties", PROPERTIES.values(), ids=PROPERTIES)
def test_every_pair_of_values_meets_in_some_row(properties: dict[str, list[object]]) -> None:
    rows = every_pair(properties)
    for a, b in combinations(properties, 2):
        assert {(row[a], row[b]) for row in rows} == set(product(properties[a], properties[b]))


def test_rows_are_few_and_always_the_same() -> None:
    for properties in (attention_cases.PROPERTIES, variants.PROPERTIES):
        rows, sizes = every_pair(properties), sorted(map(len, properties.values()))
        # The two longest properties alone need as many as their product.
        assert sizes[-1] * sizes[-2] <= len(rows) < 2 * sizes[-1] * sizes[-2] < prod(sizes) / 100
        assert rows == every_pair(properties)
