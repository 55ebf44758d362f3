"""Few combinations of properties in which any two values of any two of them meet (pairwise testing)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any


def every_pair(properties: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Combinations, each a value for each property, chosen greedily (Cohen et al. 1997, AETG); always the same ones.

    Each begins with the first pair that has not been met, and goes on with the values that meet most such pairs; of
    equal ones with the one that was taken least.
    """
    places = [range(len(values)) for values in properties.values()]
    order = sorted(range(len(places)), key=lambda n: -len(places[n]))
    open_pairs = dict.fromkeys(
        ((a, i), (b, j)) for a, b in combinations(order, 2) for i in places[a] for j in places[b]
    )
    rows: list[dict[str, Any]] = []
    taken = Counter[tuple[int, int]]()
    while open_pairs:
        row = dict(next(iter(open_pairs)))
        for number in order:
            if number not in row:
                chosen = max((_met(row, (number, i), open_pairs), -taken[number, i], -i) for i in places[number])
                row[number] = -chosen[2]
        taken.update(row.items())
        for a, b in combinations(order, 2):
            open_pairs.pop(((a, row[a]), (b, row[b])), None)
        rows.append({name: values[row[n]] for n, (name, values) in enumerate(properties.items())})
    return rows


def _met(row: Mapping[int, int], one: tuple[int, int], open_pairs: Mapping[Any, Any]) -> int:
    """How many open pairs a value would meet with those that are chosen already."""
    return sum((other, one) in open_pairs or (one, other) in open_pairs for other in row.items())
