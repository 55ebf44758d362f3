"""Whether promises are kept, by what routers say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.routing import ObjectiveSpec, SLOSpec
from paceline_crds.sketch import SCALE, Sketch
from paceline_observability.slo import PageError, Promise, Tally, Window, Word, judge, promises, window

SLO = SLOSpec(ttft=ObjectiveSpec(p90="800ms", p99="2s"))
LIMITS = promises(SLO)
KEY = "demo/chat"


def row(times: list[float], *, failed: int = 0, left: int = 0, met: int | None = None, **more: Any) -> dict[str, Any]:
    """Requests of which some failed, and some were left by their clients because the first token did not come."""
    met = sum(time <= 0.8 for time in times) if met is None else met
    outcomes = {"2xx": len(times), **({"5xx": failed} if failed else {}), **({"cancelled": left} if left else {})}
    made = {"pool": "default", "revision": "chat-1", "shape": "VeryLong", "outcomes": outcomes}
    made |= {"met": met, "missed": len(times) + failed + left - met, "ttft": Sketch.of(times).encode(), "tpot": []}
    return {**made, **more}


def page(*rows: dict[str, Any], begin: float = 1000.0, end: float = 1600.0) -> dict[str, Any]:
    return {"scale": SCALE, "to": end, "services": {KEY: {"from": begin, "rows": list(rows)}}}


def test_kept_promises_are_told_with_the_window_and_the_numbers() -> None:
    seen = window([page(row([0.5] * 95 + [1.0] * 5, met=95)), page(row([0.5] * 100, met=100))], KEY, SLO)
    found = judge(seen, LIMITS)
    assert (found.kept, found.word) == (True, Word.KEPT)
    assert found.message == (
        "in the last 10 min; goodput 97.5 % of 200 requests; TTFT P90 (at most 800ms): kept by 97.5 % of 200; "
        "TTFT P99 (at most 2s): kept by 100 % of 200"
    )


def test_a_p99_that_is_missed_is_a_warning_and_a_p90_a_broken_promise() -> None:
    warned = judge(window([page(row([0.5] * 190 + [3.0] * 10))], KEY, SLO), LIMITS)
    assert (warned.kept, warned.word) == (True, Word.INNER_LINE)
    broken = judge(window([page(row([0.5] * 170 + [1.0] * 30))], KEY, SLO), LIMITS)
    assert (broken.kept, broken.word) == (False, Word.MISSED)


def test_a_p99_without_a_p90_is_the_promise() -> None:
    spec = SLOSpec(ttft=ObjectiveSpec(p99="2s"))
    found = judge(window([page(row([0.5] * 190 + [3.0] * 10))], KEY, spec), promises(spec))
    assert (found.kept, found.word) == (False, Word.MISSED)


def test_requests_that_failed_kept_nothing() -> None:
    found = judge(window([page(row([0.5] * 80, failed=20))], KEY, SLO), LIMITS)
    assert found.kept is False
    assert "kept by 80 % of 100" in found.message


def test_clients_that_left_in_vain_break_a_promise_though_all_answers_were_in_time() -> None:
    found = judge(window([page(row([0.5] * 60, left=60))], KEY, SLO), LIMITS)
    assert (found.kept, found.word) == (False, Word.MISSED)
    assert "goodput 50 % of 120 requests" in found.message
    assert judge(window([page(row([0.5] * 95, left=5))], KEY, SLO), LIMITS).kept is True
    # Two promises may each be missed by another tenth.
    both = SLOSpec(ttft=ObjectiveSpec(p90="800ms"), tpot=ObjectiveSpec(p90="60ms"))
    assert judge(window([page(row([0.5] * 85, left=15))], KEY, both), promises(both)).kept is True
    assert judge(window([page(row([0.5] * 70, left=30))], KEY, both), promises(both)).kept is False


@pytest.mark.parametrize("pages", [[], [page()], [page(row([0.5] * 19, met=19))]])
def test_thin_traffic_is_not_known(pages: list[dict[str, Any]]) -> None:
    found = judge(window(pages, KEY, SLO), LIMITS)
    assert (found.kept, found.word) == (None, Word.THIN)


def test_ten_of_ten_requests_that_broke_the_promise_are_enough() -> None:
    assert judge(window([page(row([1.0] * 10))], KEY, SLO), LIMITS).kept is False
    # One of ten may well be the tenth that is allowed.
    assert judge(window([page(row([0.5] * 9 + [1.0]))], KEY, SLO), LIMITS).kept is None


def test_what_nobody_sends_hides_nothing() -> None:
    spec = SLOSpec(ttft=ObjectiveSpec(p90="800ms"), tpot=ObjectiveSpec(p90="60ms"))
    found = judge(window([page(row([0.5] * 100))], KEY, spec), promises(spec))
    assert found.kept is True
    assert "TPOT P90 (at most 60ms): not known, no request" in found.message


def test_refused_requests_without_a_shape_broke_no_promise() -> None:
    refused = row([], failed=50, shape="_none")
    assert judge(window([page(row([0.5] * 100), refused)], KEY, SLO), LIMITS).kept is True


def test_a_pool_is_judged_by_its_own_promise() -> None:
    # The routers count by the pool's own promise too.
    rows = (row([0.5] * 50), row([5.0] * 50, pool="long", met=50))
    own = {"long": SLOSpec(ttft=ObjectiveSpec(p90="10s"))}
    assert judge(window([page(*rows)], KEY, SLO), LIMITS).kept is False
    assert judge(window([page(*rows)], KEY, SLO, own), LIMITS).kept is True


def test_no_percentage_is_rounded_up_to_the_promise() -> None:
    seen = Window(60.0, {("ttft", "p90"): Tally(8999, 10000)})
    found = judge(seen, [Promise("ttft", "p90", 0.8)])
    assert found.kept is False
    assert "kept by 89.9 % of 10000" in found.message


@pytest.mark.parametrize(
    "broken",
    [{}, {"scale": "other", "services": {}}, {"scale": SCALE, "services": {KEY: {}}}, page({"shape": "VeryLong"})],
)
def test_a_page_of_another_form_is_told(broken: dict[str, Any]) -> None:
    with pytest.raises(PageError):
        window([broken], KEY, SLO)


@given(kept=st.integers(0, 400), missed=st.integers(0, 400))
def test_more_misses_never_turn_a_broken_promise_into_a_kept_one(kept: int, missed: int) -> None:
    def verdict(number: int) -> bool | None:
        return judge(Window(60.0, {("ttft", "p90"): Tally(kept, kept + number)}), LIMITS[:1]).kept

    now, worse = verdict(missed), verdict(missed + 1)
    assert not (now is False and worse is not False)
    if kept + missed >= 20:
        assert now is (10 * missed <= kept + missed)
