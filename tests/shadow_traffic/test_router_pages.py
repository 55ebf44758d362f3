"""What routers hand out becomes evidence: the page here is the router's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from finished_exchange import Over

from paceline_router.report.metrics import Metrics
from paceline_router.report.observer import Observer
from paceline_router.report.samples import samples_page
from paceline_router.report.service import SHAPE_LABELS, ServiceMetrics
from paceline_router.report.tracing import Tracer
from paceline_shadow_traffic.evidence import Signal
from paceline_shadow_traffic.pages import PageError, window
from paceline_shadow_traffic.share import Share

START = 1_000_000.0
PLACE = f"default/{SHAPE_LABELS[0]}"


def page(*requests: dict[str, Any]) -> dict[str, Any]:
    """One router's, after these requests."""
    books = Metrics()
    books.services["demo/chat"] = metrics = ServiceMetrics(START)
    for one in requests:
        Observer(Tracer()).finished(Over(metrics=metrics, **one))
    found: dict[str, Any] = json.loads(json.dumps(samples_page(books, START, START + 60.0)))
    return found


def failed(revision: str, status: int) -> dict[str, Any]:
    return {"revision": revision, "status": status, "outcome": f"{status // 100}xx"}


def test_routers_pages_are_added_by_version_pool_and_shape() -> None:
    one = page({"revision": "chat-1"}, failed("chat-1", 503), {"revision": "chat-2", "shape": 1})
    other = page({"revision": "chat-1"}, {"revision": "chat-2"}, {"revision": "chat-9"}, failed("chat-2", 400))
    found = window([one, other], "demo/chat", "chat-1", "chat-2")
    assert set(found) == {PLACE, f"default/{SHAPE_LABELS[1]}"}
    seen = found[PLACE]
    assert (seen.start, seen.end) == (START, START + 60.0)
    assert seen.base.shares[Signal.ERROR_RATE] == Share(1, 3)
    assert seen.candidate.shares[Signal.ERROR_RATE] == Share(1, 2)
    assert seen.base.ttft is not None
    assert seen.base.ttft.quantile(0.5) == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 0.5, "3", None])
@pytest.mark.parametrize("field", ["outcomes", "met", "missed"])
def test_what_is_no_count_is_no_evidence(field: str, value: Any) -> None:
    wrong = page({"revision": "chat-1"})
    row = wrong["services"]["demo/chat"]["rows"][0]
    row[field] = {"2xx": value} if field == "outcomes" else value
    with pytest.raises(PageError):
        window([page({"revision": "chat-1"}), wrong], "demo/chat", "chat-1", "chat-2")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "now"])
def test_a_page_of_no_moment_is_no_evidence(value: Any) -> None:
    """Of NaN nothing would ever be too old."""
    wrong = {**page({"revision": "chat-1"}), "to": value}
    with pytest.raises(PageError):
        window([wrong], "demo/chat", "chat-1", "chat-2")


def test_a_request_whose_client_left_is_no_failure_and_counted_as_that() -> None:
    found = window(
        [page({"revision": "chat-1", "outcome": "cancelled", "status": 499})], "demo/chat", "chat-1", "chat-2"
    )
    assert found[PLACE].base.shares[Signal.ERROR_RATE] == Share(0, 0)
    assert found[PLACE].base.shares[Signal.CANCELLED] == Share(1, 1)


def test_a_version_without_requests_has_none_which_is_not_unknown() -> None:
    candidate = window([page({"revision": "chat-1"})], "demo/chat", "chat-1", "chat-2")[PLACE].candidate
    assert candidate.shares[Signal.ERROR_RATE] == Share(0, 0)
    assert candidate.ttft is not None
    assert candidate.ttft.count == 0


def test_what_is_not_measured_is_absent() -> None:
    """No objectives, so no goodput; replicas' own figures are on no router's page."""
    seen = window([page({"revision": "chat-1"})], "demo/chat", "chat-1", "chat-2")[PLACE].base
    assert Signal.GOODPUT not in seen.shares
    assert seen.throughput is None


def test_a_router_that_does_not_answer_leaves_the_stretch_unmeasured() -> None:
    seen = window([page({"revision": "chat-1"}), None], "demo/chat", "chat-1", "chat-2")[PLACE]
    assert seen.base.ttft is None
    assert not seen.base.shares
    assert window([None], "demo/chat", "chat-1", "chat-2") == {}


def test_a_service_that_no_router_knows_has_no_evidence() -> None:
    assert window([page()], "demo/other", "chat-1", "chat-2") == {}


@pytest.mark.parametrize("change", [{"scale": "decimal-71"}, {"services": {"demo/chat": {}}}, {"services": None}])
def test_a_page_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PageError):
        window([{**page({"revision": "chat-1"}), **change}], "demo/chat", "chat-1", "chat-2")
