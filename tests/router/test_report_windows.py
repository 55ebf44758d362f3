"""What happened lately, in slots of time, and the page that hands it to the operator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import pytest
from finished_exchange import Over
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.sketch import RELATIVE_ERROR, SCALE, Sketch
from paceline_router.report.cells import Stretch
from paceline_router.report.metrics import Metrics
from paceline_router.report.observer import Observer
from paceline_router.report.samples import samples_page
from paceline_router.report.service import ServiceMetrics
from paceline_router.report.tracing import Tracer
from paceline_router.report.windows import FOLD, OLD_SLOTS, RECENT_SLOTS, SLOT_SECONDS, Place, Windows

START = 1_000_000.0


def count(metrics: ServiceMetrics, seconds: float, revision: str = "chat-1", shape: int = 0) -> None:
    Observer(Tracer()).finished(
        Over(metrics=metrics, revision=revision, shape=shape, ended_at=100.0 + seconds, first_byte_at=100.0)
    )


def ended(rows: Mapping[Place, Stretch]) -> Counter[tuple[str, int]]:
    return Counter({(revision, shape): sum(row.outcomes) for ((_, revision), shape), row in rows.items()})


STEPS = st.lists(st.sampled_from(["close", "chat-1", "chat-2"]) | st.tuples(st.just("chat-1"), st.integers(0, 4)))


@given(STEPS, st.integers(-1, 30))
def test_nothing_is_lost_or_counted_twice_and_nothing_from_before_comes_along(
    steps: list[str | tuple[str, int]], since_slot: int
) -> None:
    metrics = ServiceMetrics(START)
    slot = 0
    expected: Counter[tuple[str, int]] = Counter()
    for step in steps:
        if step == "close":
            slot += 1
            metrics.windows.close(metrics.cells, START + slot * SLOT_SECONDS)
            continue
        revision, shape = step if isinstance(step, tuple) else (step, 0)
        count(metrics, 0.5, revision, shape)
        expected[revision, shape] += slot >= since_slot
    since = START + since_slot * SLOT_SECONDS
    now = START + (slot + 0.5) * SLOT_SECONDS
    begin, rows = metrics.windows.since(metrics.cells, since, now)
    assert ended(rows) == +expected
    assert begin >= min(since, now)
    for row in rows.values():
        assert row.times[2].count == sum(row.outcomes)


def test_a_question_in_the_middle_of_a_slot_leaves_that_slot_out() -> None:
    metrics = ServiceMetrics(START)
    count(metrics, 0.5)
    metrics.windows.close(metrics.cells, START + 10)
    count(metrics, 0.5)
    begin, rows = metrics.windows.since(metrics.cells, START + 1, START + 12)
    assert begin == START + 10
    assert sum(ended(rows).values()) == 1


def test_memory_has_a_bound_and_what_is_kept_reaches_hours_back() -> None:
    windows = Windows(START)
    metrics = ServiceMetrics(START)
    slots = RECENT_SLOTS + FOLD * (OLD_SLOTS + 10)
    for slot in range(slots):
        count(metrics, 0.5)
        windows.close(metrics.cells, START + (slot + 1) * SLOT_SECONDS)
    now = START + slots * SLOT_SECONDS
    begin, rows = windows.since(metrics.cells, 0.0, now)
    assert now - begin >= 4 * 3600
    assert sum(ended(rows).values()) == (now - begin) / SLOT_SECONDS
    state = windows._state
    assert len(state.old) == OLD_SLOTS
    assert len(state.recent) == RECENT_SLOTS
    assert {slot.parts for slot in state.old[:-1]} == {FOLD}


def test_what_was_forgotten_does_not_come_back_as_negative_counts() -> None:
    metrics = ServiceMetrics(START)
    count(metrics, 0.5)
    metrics.windows.close(metrics.cells, START + 10)
    metrics.forget_unused([])
    metrics.forget_unused([])
    assert metrics.cells == {}
    metrics.windows.close(metrics.cells, START + 20)
    count(metrics, 0.7)
    _, rows = metrics.windows.since(metrics.cells, START + 20, START + 25)
    assert sum(ended(rows).values()) == 1
    _, rows = metrics.windows.since(metrics.cells, START, START + 25)
    assert sum(ended(rows).values()) == 2


def test_a_revision_in_the_table_or_in_use_is_not_forgotten() -> None:
    metrics = ServiceMetrics(START)
    count(metrics, 0.5, "live")
    count(metrics, 0.5, "used")
    count(metrics, 0.5, "gone")
    metrics.forget_unused([("default", "live")])
    count(metrics, 0.5, "used")
    metrics.forget_unused([("default", "live")])
    assert {revision for _, revision in metrics.cells} == {"live", "used"}


def test_the_page_of_two_routers_merges_into_the_truth() -> None:
    times = [0.011 * (n + 1) for n in range(200)]
    pages = []
    for half in (times[::2], times[1::2]):
        books = Metrics()
        service = books.service("demo/chat")
        service.windows = Windows(START)
        for seconds in half:
            count(service, seconds)
        pages.append(json.loads(json.dumps(samples_page(books, START, START + 5))))
    assert {page["scale"] for page in pages} == {SCALE}
    rows = [page["services"]["demo/chat"]["rows"] for page in pages]
    assert [len(row) for row in rows] == [1, 1]
    first, second = rows[0][0], rows[1][0]
    assert (first["pool"], first["revision"], first["shape"]) == ("default", "chat-1", "ShortInputShortOutput")
    assert (first["outcomes"], first["outputTokens"], first["promptTokens"]) == ({"2xx": 100}, 1100, 5000)
    both = Sketch.decode(first["duration"]).merged(Sketch.decode(second["duration"]))
    assert both.count == 200
    for share in (0.5, 0.9, 0.99):
        true = times[int(share * 200) - 1]
        assert both.quantile(share) == pytest.approx(true, rel=RELATIVE_ERROR)


def test_a_service_may_be_asked_for_alone() -> None:
    books = Metrics()
    for key in ("a/b", "c/d"):
        books.service(key)
    assert list(samples_page(books, 0.0, START)["services"]) == ["a/b", "c/d"]
    assert list(samples_page(books, 0.0, START, "c/d")["services"]) == ["c/d"]
    assert samples_page(books, 0.0, START, "x/y")["services"] == {}
