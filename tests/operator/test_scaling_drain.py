"""The replica with the least to lose goes first, no sooner than it is empty, and comes back when load does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.observed import PodView
from paceline_operator.scaling.drain import Step, mark, marked, routers_left, said_empty, step

NOW, LONGEST = 1_800_000_000.0, 600.0


def pod(name: str, ready: bool = True, since: str = "2026-01-01T00:00:00Z") -> PodView:
    return PodView(name, "default", "h", ready, False, False, None, uid=name, ready_since=since)


def due(target: int, pods: list[PodView], **given: Any) -> Step:
    draining = given.get("draining", {})
    busy = given.get("busy", {})
    return step(target, pods, draining, given.get("empty", ()), busy.get, given.get("now", NOW), LONGEST)


def names(pods: tuple[PodView, ...]) -> list[str]:
    return [one.name for one in pods]


def test_while_the_count_is_right_or_too_low_nothing_is_marked() -> None:
    pods = [pod("a"), pod("b")]
    assert due(2, pods) == Step((), (), 2)
    assert due(5, pods) == Step((), (), 5)


def test_the_replica_with_the_fewest_requests_is_marked_and_the_count_stays_until_it_is_empty() -> None:
    pods = [pod("a"), pod("b"), pod("c")]
    first = due(2, pods, busy={"a": 3.0, "b": 1.0, "c": 2.0})
    assert (names(first.begin), first.count) == (["b"], 3)
    waits = due(2, pods, draining={"b": NOW - 5})
    assert waits == Step((), (), 3)
    assert due(2, pods, draining={"b": NOW - 5}, empty={"b"}).count == 2


def test_a_replica_whose_load_is_not_known_goes_last_and_of_equal_ones_the_youngest() -> None:
    pods = [pod("a"), pod("b", since="2026-01-02T00:00:00Z"), pod("silent")]
    assert names(due(1, pods, busy={"a": 0.0, "b": 0.0}).begin) == ["b", "a"]


def test_a_drain_that_takes_longer_than_any_request_may_is_over() -> None:
    pods = [pod("a"), pod("b")]
    assert due(1, pods, draining={"b": NOW - LONGEST + 1}).count == 2
    assert due(1, pods, draining={"b": NOW - LONGEST}).count == 1


def test_when_load_returns_the_last_mark_is_taken_back_first() -> None:
    pods = [pod("a"), pod("b"), pod("c")]
    back = due(2, pods, draining={"a": NOW - 20, "b": NOW - 10}, empty={"a", "b"})
    assert (names(back.cancel), back.count) == (["b"], 2)
    assert due(3, pods, draining={"a": NOW - 20, "b": NOW - 10}) == Step((), (pods[0], pods[1]), 3)


def test_replicas_that_are_not_ready_go_without_a_drain() -> None:
    """The ReplicaSet controller deletes them before any ready one."""
    pods = [pod("a"), pod("b"), pod("loads", ready=False)]
    assert due(2, pods) == Step((), (), 2)
    assert names(due(1, pods, busy={"a": 1.0, "b": 0.0}).begin) == ["b"]
    assert due(1, pods, busy={"a": 1.0, "b": 0.0}).count == 2
    # One that fails while another drains takes its place: nobody has to be drained any more.
    taken = due(2, [pod("a"), pod("b", ready=False), pod("c")], draining={"c": NOW}, empty={"c"})
    assert (names(taken.cancel), taken.count) == (["c"], 2)


@given(
    st.integers(0, 6),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3)), max_size=6),
)
def test_the_count_never_falls_by_more_than_replicas_that_serve_nobody(
    target: int, kinds: list[tuple[bool, bool, bool, int]]
) -> None:
    pods = [pod(f"p{n}", ready=ready) for n, (ready, *_) in enumerate(kinds)]
    draining = {f"p{n}": NOW - 1 for n, (_, drains, _, _) in enumerate(kinds) if drains}
    empty = {f"p{n}" for n, (_, drains, done, _) in enumerate(kinds) if drains and done}
    found = due(target, pods, draining=draining, empty=empty, busy={f"p{n}": float(k[3]) for n, k in enumerate(kinds)})
    serving = [one for one in pods if one.ready and one.uid not in draining]
    busy = [one for one in pods if one.uid in draining and one.uid not in empty]
    kept = [one for one in busy if one not in found.cancel]
    assert found.count >= target
    assert found.count >= min(len(serving) + len(kept), target + len(kept))
    # What the ReplicaSet controller deletes: not ready first, then marked ones; never one that serves or still works.
    deleted = max(0, len(pods) - found.count)
    free = [one for one in pods if not one.ready or one.uid in empty]
    if not found.cancel:
        assert deleted <= len(free) or target >= len(pods)
    assert not set(found.begin) & set(found.cancel)


def test_a_mark_is_read_as_it_is_written_and_others_marks_are_not_ours() -> None:
    obj = {"metadata": {"annotations": mark(NOW)}}
    assert marked(obj) == NOW
    assert marked({"metadata": {}}) is None
    assert marked({"metadata": {"annotations": {"paceline.io/draining": "2026-01-01T00:00:00Z"}}}) is None
    assert set(mark(None).values()) == {None}
    assert marked({"metadata": {"annotations": {**mark(NOW), "paceline.io/draining": "soon"}}}) == 0.0


def page(uid: str, **replica: Any) -> dict[str, Any]:
    one = {"uid": uid, "draining": True, "inFlight": 0, **replica}
    return {"synced": True, "services": {"demo/chat": {"replicas": [one]}}}


@pytest.mark.parametrize(
    ("pages", "left"),
    [
        ([page("a"), page("b", draining=False, inFlight=9)], True),
        ([page("a", inFlight=1), page("a")], False),
        ([page("a", draining=False), page("a")], False),
        ([page("a")], False),
        ([page("a"), {"synced": False, "services": {}}], False),
    ],
    ids=["left", "waits for an answer", "has not seen the mark", "one says nothing", "one has not read the cluster"],
)
def test_a_replica_is_left_once_every_router_says_so(pages: list[dict[str, Any]], left: bool) -> None:
    assert routers_left("a", 2, pages) is left


def test_a_replica_is_empty_where_it_says_so_and_never_where_it_says_nothing() -> None:
    assert said_empty({"running": 0, "waiting": 0})
    assert not said_empty({"running": 1, "waiting": 0})
    assert not said_empty({})
