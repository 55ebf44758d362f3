"""The recorded baseline of a revision: from the routers' own pages, seldom, and never from a part of them."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from finished_exchange import Over

from paceline_crds.revision import Baseline
from paceline_crds.service import InferenceService
from paceline_kube import INFERENCEREVISIONS, JsonObject
from paceline_kube.testing import FakeApiServer
from paceline_operator import children
from paceline_operator.baseline_keeper import BaselineKeeper
from paceline_operator.baselines import OddPage, due, duration_of, measured, newer
from paceline_operator.gather import RevisionReader, gather
from paceline_operator.observed import Entry, Observed, Ownership, RevisionView, Traffic
from paceline_operator.render import Carried, render
from paceline_operator.written import Written
from paceline_router.report.metrics import Metrics
from paceline_router.report.observer import Observer
from paceline_router.report.samples import samples_page
from paceline_router.report.service import ServiceMetrics
from paceline_router.report.tracing import Tracer

HOUR = 3600.0
START = 1_000_000.0
SERVICE = "demo/chat"


def page(*requests: dict[str, Any], end: float = START + 600.0) -> dict[str, Any]:
    """One router's, after these requests."""
    books = Metrics()
    books.services[SERVICE] = metrics = ServiceMetrics(START)
    for one in requests:
        Observer(Tracer()).finished(Over(metrics=metrics, **one))
    found: dict[str, Any] = json.loads(json.dumps(samples_page(books, START, end)))
    return found


@functools.cache
def baseline(requests: int = 500) -> Baseline:
    [one] = measured([page(*[{} for _ in range(requests)])], SERVICE, "chat-1").values()
    return one


def view(name: str, generation: int, moved_at: float, **more: Any) -> RevisionView:
    traffic = Traffic(generation, name, (Entry("default", name),), moved_at)
    return RevisionView(name, f"uid-{name}", "1", "2026-01-01T00:00:00Z", Ownership.OURS, None, traffic, **more)


def seen(*views: RevisionView) -> Observed:
    return Observed("demo", "chat", "u", 1, revisions=views)


def test_the_pages_of_all_routers_are_one_baseline_for_each_pool() -> None:
    failed = {"status": 503, "outcome": "5xx"}
    found = measured(
        [page({}, {"pool": "long"}, {"revision": "chat-2"}), page({"shape": 1}, failed)], SERVICE, "chat-1"
    )
    assert {pool: (one.requests, one.failed) for pool, one in found.items()} == {"default": (3, 1), "long": (1, 0)}
    one = found["default"]
    assert one.since == "1970-01-12T13:46:40Z"
    assert one.until == "1970-01-12T13:56:40Z"
    assert one.ttft is not None
    assert one.ttft.p50.endswith("ms")
    assert float(one.ttft.p50.removesuffix("ms")) == pytest.approx(100, rel=0.03)
    assert one.tpot is not None
    assert float(one.tpot.p99.removesuffix("ms")) == pytest.approx(20, rel=0.03)


def test_a_revision_without_requests_has_no_baseline_which_is_not_zero() -> None:
    assert measured([page({})], SERVICE, "chat-9") == {}
    assert measured([page({})], "demo/other", "chat-1") == {}


@pytest.mark.parametrize(
    "odd", [{}, {"scale": "other"}, {"services": {SERVICE: {"rows": [{"revision": "chat-1"}], "from": 1.0}}}]
)
def test_a_page_of_another_form_is_no_evidence(odd: dict[str, Any]) -> None:
    broken = {**page({}), **odd} if odd else {}
    with pytest.raises(OddPage):
        measured([page({}), broken], SERVICE, "chat-1")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00942, "9.42ms"), (0.8123, "812ms"), (0.9996, "1s"), (1.234, "1.23s"), (1000.0, "1000s"), (0.0001, "0.1ms")],
)
def test_durations_have_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert duration_of(seconds) == text


def test_a_revision_that_serves_is_asked_about_soon_and_then_once_an_hour() -> None:
    one = seen(view("chat-1", 1, START))
    assert due(one, {}, START + 299) == {}
    assert due(one, {}, START + 301) == {"chat-1": START}
    assert due(one, {"chat-1": START + 301}, START + HOUR) == {}
    assert due(one, {"chat-1": START + 301}, START + HOUR + 302) == {"chat-1": START}
    assert due(one, {}, START + 9 * HOUR) == {"chat-1": START + 5 * HOUR}, "routers remember four hours"


def test_what_is_written_counts_after_a_restart_too() -> None:
    one = seen(view("chat-1", 1, START, baselines={"default": baseline()}))  # until START + 600
    assert due(one, {}, START + 600 + HOUR - 1) == {}
    assert due(one, {}, START + 600 + HOUR) == {"chat-1": START}


def test_a_revision_that_has_left_is_asked_about_once_more() -> None:
    old = view("chat-1", 1, START, baselines={"default": baseline()})
    new = view("chat-2", 2, START + HOUR)
    assert due(seen(old, new), {}, START + HOUR + 10) == {"chat-1": START}
    assert due(seen(old, new), {"chat-1": START + HOUR + 10}, START + HOUR + 60) == {}
    assert due(seen(old, new), {}, START + 6 * HOUR).keys() == {"chat-2"}, "routers have forgotten it"


def test_somebody_elses_revision_and_one_that_never_served_are_not_asked_about() -> None:
    foreign = replace(view("chat-1", 1, START), owner=Ownership.FOREIGN)
    assert due(seen(foreign), {}, START + HOUR) == {}
    unused = replace(view("chat-3", 1, START), traffic=None)
    assert due(seen(view("chat-1", 1, START), unused), {}, START + HOUR).keys() == {"chat-1"}


def test_a_stretch_with_few_requests_takes_no_place_of_one_with_many() -> None:
    day, night = baseline(500), baseline(20)
    assert newer({"default": day}, {"default": night}) is None
    assert newer({}, {"default": night}) == {"default": night}
    assert newer({"default": night}, {"default": day}) == {"default": day}


def test_what_has_not_moved_is_not_written_again_before_a_day_is_over() -> None:
    old = baseline()
    assert newer({"default": old}, {"default": old.model_copy(update={"requests": 600})}) is None
    tomorrow = old.model_copy(update={"until": "1970-01-13T14:00:00Z"})
    assert newer({"default": old}, {"default": tomorrow}) == {"default": tomorrow}


@pytest.mark.parametrize("change", ["ttft", "failed", "untimed"])
def test_what_has_moved_is_written(change: str) -> None:
    old = baseline()
    assert old.ttft is not None
    changes: dict[str, dict[str, Any]] = {
        "ttft": {"ttft": old.ttft.model_copy(update={"p99": "180ms"})},
        "failed": {"failed": 80},
        "untimed": {"tpot": None},
    }
    new = old.model_copy(update=changes[change])
    assert newer({"default": old, "long": old}, {"default": new}) == {"default": new, "long": old}


class Desk:
    """A keeper over an API server in this process, and the routers' answers."""

    def __init__(self, server: FakeApiServer, stored: JsonObject) -> None:
        self.client = server.client()
        self.stored = stored
        self.now = START + 400.0
        self.answers: tuple[int, list[dict[str, Any]]] = (1, [])
        self.asked: list[str] = []
        self.keeper = BaselineKeeper(
            client=self.client,
            services=lambda: [{"metadata": {"namespace": "demo", "name": "chat"}}],
            observed=lambda _: self.observe(),
            written=Written(lambda: self.now),
            routers=self.ask,
            clock=lambda: self.now,
        )

    @property
    def revision(self) -> str:
        return str(self.stored["metadata"]["name"])

    def observe(self) -> Observed:
        service: JsonObject = {"metadata": {"namespace": "demo", "name": "chat", "uid": "u"}}
        return gather(service, read=RevisionReader(), revisions=[self.stored], deployments=(), config_maps=(), pods=())

    async def ask(self, path: str) -> Any:
        self.asked.append(path)
        return self.answers

    async def look(self) -> Any:
        await self.keeper.look()
        self.stored = await self.client.get(INFERENCEREVISIONS, self.revision, "demo")
        return self.stored.get("status")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def desk(server: FakeApiServer) -> Desk:
    body = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": {"model": {"source": "package://m"}}}
    desired = render(InferenceService.from_object(body), Carried(), "r:1")
    made = children.revision(Observed("demo", "chat", "u", 1), desired)
    traffic = Traffic(1, desired.revision, (Entry("default", desired.revision),), START)
    made["metadata"]["annotations"] |= {"paceline.io/rollout": traffic.to_json()}
    return Desk(server, await server.client().create(INFERENCEREVISIONS, made, "demo"))


async def test_a_baseline_is_written_once_and_an_hour_later_only_if_it_moved(server: FakeApiServer, desk: Desk) -> None:
    desk.answers = (1, [page({"revision": desk.revision})])
    [pool] = (await desk.look())["pools"]
    assert pool["baseline"]["requests"] == 1
    assert desk.asked == [f"/v1/paceline/samples?since={START:.3f}&service=demo/chat"]
    writes = [request for request in server.requests if request.startswith("PATCH")]
    await desk.look()
    assert len(desk.asked) == 1, "asked an hour later at the soonest"
    desk.now += 2 * HOUR
    await desk.look()
    assert len(desk.asked) == 2
    assert [request for request in server.requests if request.startswith("PATCH")] == writes, "nothing has moved"


async def test_while_a_router_is_silent_nothing_is_written(desk: Desk) -> None:
    desk.answers = (2, [page({"revision": desk.revision})])
    assert not await desk.look()
    desk.answers = (0, [])
    assert not await desk.look()
    desk.answers = (1, [page({"revision": desk.revision})])
    assert await desk.look(), "it is asked again at the next look"
