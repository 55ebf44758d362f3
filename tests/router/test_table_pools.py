"""Which pool takes a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.table.pools import Spill, full, pool_for, words
from paceline_router.table.routes import Group, Lane


@dataclass
class Load:
    in_flight: int
    others: int = 0


def group(pool: str, *loads: int, length: int | None = None, bound: int | None = 10) -> Group:
    members: Any = tuple(Load(load) for load in loads)
    return Group(pool, members, length, bound)


def lane(*groups: Group) -> Lane:
    order = tuple(sorted(groups, key=lambda g: (g.pool != "default", g.pool)))
    return Lane(1.0, (), {}, groups={g.pool: g for g in order}, order=order)


def chosen(made: Lane, wanted: str, tokens: int = 0, above: int | None = None) -> tuple[str | None, Spill]:
    found, why = pool_for(made, wanted, tokens, above)
    return (found.pool if found else None), why


def test_a_request_goes_to_the_pool_of_its_shape() -> None:
    assert chosen(lane(group("default", 0), group("long", 9)), "long") == ("long", Spill.NONE)


def test_it_spills_to_default_first_while_its_pool_is_down_and_comes_back() -> None:
    others = (group("default", 5), group("a", 0))
    assert chosen(lane(*others, group("long")), "long") == ("default", Spill.DOWN)
    assert chosen(lane(*others, group("long", 0)), "long") == ("long", Spill.NONE)


def test_it_spills_while_every_replica_is_over_the_bound() -> None:
    assert chosen(lane(group("default", 0), group("long", 10, 11)), "long") == ("default", Spill.FULL)
    assert chosen(lane(group("default", 0), group("long", 10, 9)), "long") == ("long", Spill.NONE)
    assert chosen(lane(group("default", 0), group("long", 4, 5)), "long", above=4) == ("default", Spill.FULL)


def test_where_all_are_full_it_waits_at_home() -> None:
    assert chosen(lane(group("default", 10), group("long", 20)), "long") == ("long", Spill.NONE)


def test_it_spills_only_to_a_pool_that_takes_its_length() -> None:
    short, long = group("default", 0, length=4096), group("long", 50, length=32768)
    assert chosen(lane(short, long), "long", tokens=8000) == ("long", Spill.NONE)
    assert chosen(lane(short, long), "default", tokens=8000) == ("long", Spill.TOO_LONG)
    assert chosen(lane(short, long), "default", tokens=4000) == ("default", Spill.NONE)


def test_a_pool_that_does_not_exist_is_said() -> None:
    assert chosen(lane(group("default", 0)), "gone") == ("default", Spill.ABSENT)
    assert chosen(lane(), "gone") == (None, Spill.ABSENT)


def test_an_unknown_bound_never_counts_as_full() -> None:
    assert not full((Load(10**6),), None)
    assert chosen(lane(group("default", 0), group("long", 10**6, bound=None)), "long") == ("long", Spill.NONE)


def test_the_words_name_pool_and_bound() -> None:
    assert words(Spill.FULL, "long", 16) == "every replica of pool long has 16 requests or more"
    assert words(Spill.NONE, "long", 16) == ""


@given(
    st.dictionaries(st.sampled_from(["default", "a", "b", "c"]), st.lists(st.integers(0, 20), max_size=3)),
    st.sampled_from(["default", "a", "b", "c"]),
    st.integers(0, 5000),
)
def test_somebody_takes_it_whenever_a_replica_is_ready(pools: dict[str, list[int]], wanted: str, tokens: int) -> None:
    made = lane(*(group(pool, *loads, length=10_000) for pool, loads in pools.items()))
    found, why = pool_for(made, wanted, tokens)
    assert (found is not None) == any(pools.values())
    if found is not None:
        assert found.backends
        assert (found.pool == wanted) == (why is Spill.NONE)
        if why is Spill.FULL and not full(found.backends, found.bound):
            assert full(made.groups[wanted].backends, 10)


@pytest.mark.parametrize("wanted", ["default", "long"])
def test_one_pool_takes_everything_where_no_other_is_known(wanted: str) -> None:
    found, _ = pool_for(lane(group("default", 3)), wanted, 0)
    assert found is not None
    assert found.pool == "default"
