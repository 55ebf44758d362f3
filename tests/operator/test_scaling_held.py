"""What routers hold by pool, whose turn it is to wake, and who else scales the same."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from planned_world import World, spec

from paceline_autoscaler.samples import Absent, exactly
from paceline_crds.conditions import Reason
from paceline_kube import ApiError, JsonObject, KubeClient, ObjectList
from paceline_operator.failures import Problem
from paceline_operator.scaling.fleet import standing
from paceline_operator.scaling.held import Pages, Sleeper, device_of, has_no_place, may_rest, to_wake
from paceline_operator.scaling.keeper import ScalingKeeper, Seen
from paceline_operator.scaling.rivals import Rivals, by_target

CHAT = ("demo", "chat")
GPU = "nvidia.com/gpu"


def page(**service: Any) -> dict[str, Any]:
    return {"services": {"demo/chat": service}}


def test_what_is_held_is_added_up_over_routers_for_a_service_and_for_each_pool() -> None:
    first = page(held=3, heldByPool={"long": 2, "default": 1}, oldestWaitSeconds=1.5)
    other = page(held=1, heldByPool={"long": 1}, oldestWaitSeconds=4.0)
    pages = Pages(2, [first, other], 7.0)
    assert pages.held(CHAT) == exactly(4.0, 7.0)
    assert pages.held(CHAT, "long") == exactly(3.0, 7.0)
    assert pages.held(CHAT, "other") == exactly(0.0, 7.0)
    assert pages.waited(CHAT) == 4.0


@pytest.mark.parametrize(
    "odd", [{}, page(), page(held="many"), page(held=1, heldByPool=7), {"services": None}], ids=str
)
def test_a_router_that_does_not_say_what_it_holds_holds_something_unknown(odd: dict[str, Any]) -> None:
    pages = Pages(2, [page(held=0, heldByPool={}), odd], 7.0)
    assert pages.held(CHAT, "long") == Absent("1 of 2 routers say what they hold")
    assert pages.waited(CHAT) == 0.0
    assert Pages(0, [], 7.0).held(CHAT) is None


def test_of_those_that_need_the_same_device_the_one_wakes_that_has_waited_longest() -> None:
    a, b, c = (Sleeper(("demo", name), waited, GPU) for name, waited in (("a", 1.0), ("b", 9.0), ("c", 9.0)))
    cpu, other = Sleeper(("demo", "cpu"), 0.1, None), Sleeper(("demo", "other"), 5.0, "amd.com/gpu")
    assert to_wake([a, b, c, cpu, other], ()) == [b.key, other.key, cpu.key]
    assert to_wake([a, b, c, cpu, other], {GPU}) == [other.key, cpu.key], "who woke before them has no place yet"


@pytest.mark.parametrize(
    ("others", "may"),
    [
        ([], True),
        ([(0, None)], True),
        ([(1, 400.0)], True),
        ([(1, 401.0)], False),
        ([(1, None)], False),
        ([(2, 0.0)], False),
        ([(0, None), (1, 300.0), (1, None)], False),
    ],
    ids=["alone", "at none", "idle for long", "not for long", "at work", "of two", "one of three at work"],
)
def test_pools_of_a_service_rest_together_or_not_at_all(others: list[tuple[int, float | None]], may: bool) -> None:
    assert may_rest(others, 600.0, now=1000.0) is may


def test_a_pool_has_no_place_until_a_replica_of_it_has_a_node_and_one_that_is_refused_waits_for_none() -> None:
    world = World(spec(replicas=1, accelerator={"resource": GPU}))
    world.settle()
    where = standing(world.seen, world.desired(), "default")
    assert where is not None
    [pod] = where.pods
    assert device_of(where.pool) == GPU
    assert not has_no_place(where)
    waiting = replace(pod, ready=False, placed="", problem=Problem(Reason.UNSCHEDULABLE, "Insufficient nvidia.com/gpu"))
    assert has_no_place(replace(where, pods=(waiting,)))
    assert has_no_place(replace(where, pods=()))
    assert where.deployment is not None
    refused = replace(where.deployment, problem=Problem(Reason.QUOTA_EXCEEDED, "exceeded quota"))
    assert not has_no_place(replace(where, pods=(), deployment=refused))


def hpa(name: str, kind: str, target: str, api: str = "apps/v1") -> JsonObject:
    ref = {"apiVersion": api, "kind": kind, "name": target}
    return {"metadata": {"namespace": "demo", "name": name}, "spec": {"scaleTargetRef": ref}}


def test_an_hpa_is_known_by_what_it_scales() -> None:
    others = [
        hpa("a", "Deployment", "chat-default-1"),
        hpa("b", "InferenceService", "chat", "paceline.io/v1alpha1"),
        hpa("c", "StatefulSet", "chat-default-1"),
        hpa("d", "InferenceService", "chat", "serving.kserve.io/v1beta1"),
        {"metadata": {"namespace": "demo", "name": "e"}, "spec": {}},
    ]
    assert by_target(others) == {
        ("demo", "Deployment", "chat-default-1"): "a",
        ("demo", "InferenceService", "chat"): "b",
    }


async def test_where_not_all_may_be_seen_those_of_the_namespaces_are_and_a_refusal_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = AsyncMock(spec=KubeClient)
    allowed = ObjectList([hpa("a", "Deployment", "chat-default-1")], "1")

    async def by_namespace(resource: object, namespace: str | None = None) -> ObjectList:
        if namespace is None:
            raise ApiError(403, "Forbidden", "no")
        return allowed

    client.list = by_namespace
    rivals = Rivals(client, lambda: ["demo"])
    await rivals.look()
    assert rivals.of_deployment("demo", "chat-default-1") == "a"

    client.list = AsyncMock(side_effect=ApiError(403, "Forbidden", "no"))
    with caplog.at_level(logging.WARNING):
        await rivals.look()
        await rivals.look()
    assert caplog.text.count("is not known") == 1
    assert rivals.of_deployment("demo", "chat-default-1") == "a", "what was seen last stays"
    nobody = Rivals(AsyncMock(spec=KubeClient, side_effect=AssertionError("nobody is asked")), list)
    await nobody.look()


async def test_a_pool_whose_deployment_somebody_else_scales_is_left_to_it_and_that_is_said() -> None:
    world = World(spec(replicas=3, scaling={"maxReplicas": 8}))
    world.settle()
    observed, desired = world.seen, world.desired()
    [deployment] = observed.deployments
    service = {"metadata": {"namespace": observed.namespace, "name": observed.name, "uid": observed.uid}}
    service["spec"] = spec(scaling={"maxReplicas": 8})
    seen = Seen(service, observed, desired, ())
    client = AsyncMock(spec=KubeClient)
    told: list[tuple[str, str]] = []

    class Recorder:
        def event(self, about: JsonObject, *, type: str, reason: str, message: str) -> None:
            told.append((type, reason))

    async def routers(path: str) -> tuple[int, list[dict[str, Any]]]:
        return 0, []

    keeper = ScalingKeeper(
        services=lambda: [service],
        seen=lambda key: seen,
        pods=lambda: [],
        client=client,
        routers=routers,
        changed=lambda key: None,
        recorder=Recorder(),
        clock=lambda: 100.0,
    )
    key = observed.namespace, observed.name
    await keeper.look()
    assert keeper.counts(key, service, observed, desired).replicas == {"default": 3}
    rival = hpa("theirs", "Deployment", deployment.name)
    rival["metadata"]["namespace"] = observed.namespace
    client.list = AsyncMock(return_value=ObjectList([rival], "1"))
    await keeper._rivals.look()
    await keeper.look()
    await keeper.look()
    said = keeper.of(key)
    assert said is not None
    assert (said["default"].reason, said["default"].desired) == ("ScalerConflict", 3)
    assert "HPA theirs scales Deployment" in said["default"].message
    assert told == [("Warning", "ScalerConflict")]
    # What the other one writes into the Deployment is what a pass orders too: nothing is undone.
    written = replace(observed, deployments=(replace(deployment, replicas=5),))
    assert keeper.counts(key, service, written, desired).replicas == {"default": 5}
    client.list = AsyncMock(return_value=ObjectList([], "2"))
    await keeper._rivals.look()
    await keeper.look()
    said = keeper.of(key)
    assert said is not None
    assert said["default"].reason != "ScalerConflict"
