"""Whether promises are kept, as a condition of the service, and the promises as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from paceline_crds.conditions import ConditionStatus, ConditionType, Reason
from paceline_crds.sketch import SCALE, Sketch
from paceline_observability.slo import Promise
from paceline_operator.failures import Problem
from paceline_operator.metrics import Thresholds
from paceline_operator.objectives import REFRESH_SECONDS, WINDOW_SECONDS, ObjectiveKeeper, has_objectives, thresholds
from paceline_operator.observed import Observed
from paceline_operator.situation import Situation
from paceline_operator.status import status_of, with_last_looks
from paceline_operator.verdict import Verdict

CHAT = ("demo", "chat")
SLO = {"ttft": {"p90": "800ms", "p99": "2s"}}
BARE = Situation(Observed("demo", "chat", "u", 1), None, Problem(Reason.INVALID_SPEC, "no"), promises=True)


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "demo", "name": name}, "spec": spec}


def page(times: list[float], service: str = "demo/chat") -> dict[str, Any]:
    row = {
        "pool": "default",
        "revision": "chat-1",
        "shape": "VeryLong",
        "outcomes": {"2xx": len(times)},
        "met": sum(value <= 0.8 for value in times),
        "missed": sum(value > 0.8 for value in times),
        "ttft": Sketch.of(times).encode(),
        "tpot": [],
    }
    return {"scale": SCALE, "to": 1600.0, "services": {service: {"from": 1000.0, "rows": [row]}}}


class World:
    def __init__(self, *services: dict[str, Any]) -> None:
        self.services, self.now, self.count = list(services), 1600.0, 1
        self.pages: list[Mapping[str, Any]] = []
        self.told: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.keeper = ObjectiveKeeper(
            routers=self.routers, services=lambda: self.services, changed=self.told.append, clock=lambda: self.now
        )

    async def routers(self, path: str) -> tuple[int, list[Mapping[str, Any]]]:
        self.asked.append(path)
        return self.count, self.pages

    async def look(self) -> Verdict | None:
        await self.keeper.look()
        return self.keeper.of(CHAT)


async def test_the_verdict_has_the_routers_numbers_over_the_window() -> None:
    world = World(service(slo=SLO))
    world.pages = [page([0.5] * 100)]
    found = await world.look()
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus.TRUE, Reason.PROMISES_KEPT)
    assert "goodput 100 % of 100 requests" in found.message
    assert world.asked == [f"/v1/paceline/samples?since={1600 - WINDOW_SECONDS:.0f}"]
    assert world.told == [CHAT]


async def test_numbers_alone_are_told_seldom_and_another_verdict_at_once() -> None:
    world = World(service(slo=SLO))
    world.pages = [page([0.5] * 100)]
    first = await world.look()
    world.pages = [page([0.5] * 101)]
    assert await world.look() == first
    world.now += REFRESH_SECONDS
    refreshed = await world.look()
    assert refreshed is not None
    assert "of 101 requests" in refreshed.message
    world.pages = [page([3.0] * 100)]
    broken = await world.look()
    assert broken is not None
    assert (broken.status, broken.reason) == (ConditionStatus.FALSE, Reason.PROMISE_MISSED)
    assert world.told == [CHAT] * 3


@pytest.mark.parametrize(
    ("count", "pages", "reason"),
    [
        (0, [], Reason.METRICS_UNAVAILABLE),
        (2, [page([0.5] * 100)], Reason.METRICS_UNAVAILABLE),
        (1, [{"scale": "other"}], Reason.METRICS_UNAVAILABLE),
        (1, [page([0.5] * 3)], Reason.NOT_ENOUGH_REQUESTS),
        (1, [page([0.5] * 100, "demo/other")], Reason.NOT_ENOUGH_REQUESTS),
    ],
)
async def test_what_is_not_known_is_called_so(count: int, pages: list[dict[str, Any]], reason: Reason) -> None:
    world = World(service(slo=SLO))
    world.count, world.pages = count, list(pages)
    found = await world.look()
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus.UNKNOWN, reason)


async def test_how_little_is_known_is_told_as_it_grows() -> None:
    world = World(service(slo=SLO))
    for number in (3, 4):
        world.pages = [page([0.5] * number)]
        found = await world.look()
        assert found is not None
        assert f"of {number} requests" in found.message
    await world.look()
    assert world.told == [CHAT, CHAT]


async def test_who_promises_nothing_is_not_judged_and_no_router_is_asked_for_it() -> None:
    world = World(service(), service("odd", slo={"ttft": "soon"}), service("empty", slo={"ttft": {}}))
    assert await world.look() is None
    assert world.asked == world.told == []


async def test_a_promise_that_is_taken_back_takes_its_verdict_along() -> None:
    world = World(service(slo=SLO))
    world.pages = [page([0.5] * 100)]
    await world.look()
    world.services = [service()]
    assert await world.look() is None
    assert world.told == [CHAT, CHAT]


def test_a_pools_own_promise_counts() -> None:
    assert has_objectives(service(pools=[{"name": "long", "slo": SLO}]))
    assert not has_objectives(service(pools=[{"name": "long"}]))


def test_promises_are_exported_in_seconds() -> None:
    found = list(thresholds([service(slo={**SLO, "tpot": {"p90": "60ms"}}), service("none")]))
    assert found == [
        (CHAT, Promise("ttft", "p90", 0.8)),
        (CHAT, Promise("ttft", "p99", 2.0)),
        (CHAT, Promise("tpot", "p90", 0.06)),
    ]
    registry = CollectorRegistry()
    registry.register(Thresholds(lambda: found))
    labels = {"namespace": "demo", "service": "chat", "signal": "tpot", "level": "p90"}
    assert registry.get_sample_value("paceline_slo_threshold_seconds", labels) == 0.06


def test_the_condition_is_there_once_it_is_known_and_an_earlier_one_holds_until_then() -> None:
    def conditions(status: dict[str, Any]) -> dict[str, str]:
        return {c["type"]: c["reason"] for c in status["conditions"]}

    kept = Verdict(ConditionStatus.TRUE, Reason.PROMISES_KEPT, "all")
    judged = status_of(replace(BARE, slo=kept), [], 0.0, "")
    assert conditions(judged)[ConditionType.SLO_MET] == Reason.PROMISES_KEPT
    unjudged = status_of(BARE, [], 0.0, "")
    assert ConditionType.SLO_MET not in conditions(unjudged)
    assert conditions(with_last_looks(unjudged, judged, BARE))[ConditionType.SLO_MET] == Reason.PROMISES_KEPT
    nothing = replace(BARE, promises=False)
    assert ConditionType.SLO_MET not in conditions(with_last_looks(unjudged, judged, nothing))
