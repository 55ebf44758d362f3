"""Keys that the routers cannot check are told in the status: nobody is served then, though every replica is ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.conditions import ConditionType, Reason
from paceline_crds.revision import InferenceRevision, InferenceRevisionSpec
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_operator.keys import KeysKeeper, told_before, unreadable
from paceline_operator.observed import Entry, Observed, Ownership, PodView, RevisionView, Traffic
from paceline_operator.render import Carried, render
from paceline_operator.situation import Situation
from paceline_operator.status import judge
from paceline_router.flow.dataplane import DataPlane
from paceline_router.report.admin import routes_page
from paceline_router.settings import Settings
from paceline_router.table.policy import policy_from_spec
from paceline_router.table.records import Service, Table
from paceline_router.tenancy.keys import Keys

CHAT = ("demo", "chat")
FORBIDDEN = "the router may not read the Secret demo/chat-keys: give it get, list and watch on it"
IDENTITY = {"tenancy": {"identity": {"from": "APIKey", "secretName": "chat-keys"}}}
SERVICE = {"metadata": {"namespace": "demo", "name": "chat"}, "spec": IDENTITY}


def page(trouble: str, *, synced: bool = True) -> dict[str, Any]:
    why = {"demo/chat": trouble} if trouble else {}
    return {"synced": synced, "keys_unreadable": why, "services": {"demo/chat": {"problems": ["spec.slo is odd"]}}}


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return 0.0


def test_what_the_router_says_is_understood() -> None:
    plane = DataPlane(Settings())
    plane.use(
        Table(services={"demo/chat": Service("demo/chat", "chat", policy=policy_from_spec(IDENTITY))}, replicas={})
    )
    plane.use_keys("demo/chat", Keys(trouble=FORBIDDEN))
    said = {**routes_page(plane, Source()), "synced": True}
    words = (unreadable([said]) or {})[CHAT]
    assert FORBIDDEN in words
    assert "router.keySecrets" in words
    plane.use_keys("demo/chat", Keys())
    assert unreadable([{**routes_page(plane, Source()), "synced": True}]) == {}


def test_while_one_router_can_check_keys_or_has_not_read_the_cluster_nothing_is_said_of_them() -> None:
    assert set(unreadable([page(FORBIDDEN), page(FORBIDDEN)]) or ()) == {CHAT}
    assert unreadable([page(FORBIDDEN), page("")]) == {}
    assert unreadable([page(FORBIDDEN, synced=False)]) is None
    assert set(unreadable([page(FORBIDDEN), page("", synced=False)]) or ()) == {CHAT}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"services": [], "keys_unreadable": {}},
        {"services": {"demo/chat": {}}, "keys_unreadable": "x"},
        {"services": {"demo/chat": {"problems": [f"API keys cannot be checked: {FORBIDDEN}"]}}},
    ],
)
def test_an_answer_of_another_form_says_nothing(odd: dict[str, Any]) -> None:
    assert unreadable([{"synced": True, **odd}]) is None
    assert unreadable([{"synced": True, **odd}, page("")]) == {}


async def test_a_service_is_looked_at_when_its_keys_become_unreadable_and_when_they_are_read_again() -> None:
    said: list[dict[str, Any]] = []
    services: list[dict[str, Any]] = [SERVICE]
    told: list[Any] = []
    asked: list[int] = []

    async def pages() -> list[dict[str, Any]]:
        asked.append(1)
        return said

    keeper = KeysKeeper(pages=pages, services=lambda: services, changed=told.append)
    await keeper.look()
    assert keeper.of(CHAT) is None, "no router has answered"
    said[:] = [page("")]
    await keeper.look()
    assert (keeper.of(CHAT), told) == ("", [CHAT]), "what an earlier operator said may be over"
    said[:] = [page(FORBIDDEN)]
    for _ in range(2):
        await keeper.look()
    assert FORBIDDEN in str(keeper.of(CHAT))
    assert told == [CHAT] * 2
    for silent in ([], [page("", synced=False)]):
        said[:] = silent
        await keeper.look()
        assert FORBIDDEN in str(keeper.of(CHAT)), "while no router says anything of keys, what was known stays"
    services[:] = [{**SERVICE, "spec": {}}]
    before = len(asked)
    await keeper.look()
    assert (keeper.of(CHAT), told, len(asked)) == ("", [CHAT] * 3, before), "without keys nobody is asked"


def test_traffic_is_not_ready_while_keys_cannot_be_checked_and_replicas_are() -> None:
    obj = {"metadata": SERVICE["metadata"], "spec": {"model": {"source": "package://m"}}}
    desired = render(InferenceService.from_object(obj), Carried(), "r:1")
    [pool], name = desired.pools, desired.revision
    parsed = InferenceRevision(metadata=ObjectMeta(name=name), spec=InferenceRevisionSpec(service="chat", pools=[pool]))
    kept = RevisionView(name, "u", "1", "", Ownership.OURS, parsed, Traffic(1, name, (Entry("default", name),), 1.0))
    pod = PodView("p", "default", pool.hash, True, False, False, None)
    serving = Situation(Observed("demo", "chat", "u", 1, (kept,), (), (), (pod,)), desired)
    fine = judge(serving)
    assert fine[ConditionType.TRAFFIC_READY].reason is Reason.SERVING
    refused = judge(replace(serving, keys=FORBIDDEN))
    traffic = refused.pop(ConditionType.TRAFFIC_READY)
    assert (traffic.status, traffic.reason) == ("False", Reason.KEYS_UNREADABLE)
    assert FORBIDDEN in traffic.message
    del fine[ConditionType.TRAFFIC_READY]
    assert refused == fine, "replicas and revision are as they were"


def test_before_the_routers_were_asked_what_the_status_says_holds() -> None:
    condition = {"type": "TrafficReady", "status": "False", "reason": "KeysUnreadable", "message": "why"}
    assert told_before([{"type": "Ready", "reason": "AsAsked"}, condition]) == "why"
    assert told_before([{"type": "TrafficReady", "reason": "Serving", "message": "fine"}]) == ""


@pytest.mark.parametrize("spec", [None, "chat", [], {"tenancy": "none"}, {"tenancy": {"identity": ["APIKey"]}}])
async def test_a_service_that_cannot_be_read_keeps_no_other_from_being_asked_about(spec: Any) -> None:
    told: list[Any] = []

    async def pages() -> list[dict[str, Any]]:
        return [page(FORBIDDEN)]

    odd = {"metadata": {"namespace": "demo", "name": "odd"}, "spec": spec}
    keeper = KeysKeeper(pages=pages, services=lambda: [odd, SERVICE], changed=told.append)
    await keeper.look()
    assert FORBIDDEN in str(keeper.of(CHAT))
    assert told == [CHAT]
