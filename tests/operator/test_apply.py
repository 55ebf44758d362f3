"""Applying around another manager's claims, and never for a service that is gone."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline_crds.crd import inference_revision_crd
from paceline_crds.names import ANNOTATION_CHANGE_CAUSE, ANNOTATION_ORDER_CAUSE
from paceline_crds.service import InferenceService
from paceline_kube import CONFIGMAPS, DEPLOYMENTS, INFERENCEREVISIONS, INFERENCESERVICES, Conflict
from paceline_kube.testing import FakeApiServer
from paceline_operator import children
from paceline_operator.actions import (
    ApplyBudget,
    ApplyConfigMap,
    ApplyDeployment,
    CreateRevision,
    Delete,
    MoveTraffic,
    child_name,
)
from paceline_operator.apply import Applier, NameTaken, ServiceGone, project
from paceline_operator.gather import RevisionReader, gather
from paceline_operator.observed import Observed, Traffic
from paceline_operator.render import Carried, render
from paceline_operator.written import Written

SERVICE: dict[str, Any] = {
    "apiVersion": "paceline.io/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "demo"},
    "spec": {"model": {"source": "package://m"}},
}
DESIRED = render(InferenceService.from_object(SERVICE), Carried(), "r:1")


class Told(list[str]):
    def event(self, about: Any, *, type: str, reason: str, message: str) -> None:
        self.append(reason)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


def applier(server: FakeApiServer, uid: str) -> Applier:
    written = Written(lambda: 0.0)
    observed = Observed("demo", "chat", uid, 1)
    return Applier(server.client(), Told(), written, SERVICE, observed, DESIRED)


@pytest.mark.parametrize(
    "action",
    [CreateRevision(DESIRED.revision), ApplyDeployment("chat-default-x", DESIRED.pools[0], 1, None)],
)
async def test_nothing_is_made_for_a_service_that_is_gone_or_another(server: FakeApiServer, action: Any) -> None:
    with pytest.raises(ServiceGone):
        await applier(server, "old").take(action)
    await server.client().create(INFERENCESERVICES, SERVICE, "demo")
    with pytest.raises(ServiceGone):
        await applier(server, "old").take(action)
    client = server.client()
    for kind in (INFERENCEREVISIONS, DEPLOYMENTS):
        assert (await client.list(kind, "demo")).items == []


POOL = DESIRED.pools[0]
NAME = child_name("chat", POOL)
CHILDREN = (
    CreateRevision(DESIRED.revision),
    ApplyConfigMap(NAME, POOL),
    ApplyDeployment(NAME, POOL, 1, None),
    ApplyBudget("chat-default", "default"),
)


async def served(server: FakeApiServer) -> str:
    made = await server.client().create(INFERENCESERVICES, SERVICE, "demo")
    del server.requests[:]
    return str(made["metadata"]["uid"])


async def test_a_new_service_costs_no_more_calls_than_it_has_children_and_one_look(server: FakeApiServer) -> None:
    taking = applier(server, await served(server))
    for action in CHILDREN:
        await taking.take(action)
    kinds = [(request.split()[0], request.split("?")[0].split("/")[-2:]) for request in server.requests]
    assert [method for method, _ in kinds] == ["GET", "POST", "POST", "POST", "POST"]
    assert [path for method, path in kinds if method == "GET"] == [["inferenceservices", "chat"]]


async def test_what_another_leader_made_meanwhile_is_left_as_it_is(server: FakeApiServer) -> None:
    uid = await served(server)
    kinds = (INFERENCEREVISIONS, CONFIGMAPS, DEPLOYMENTS)
    for action in CHILDREN:
        await applier(server, uid).take(action)
    await server.client().patch(DEPLOYMENTS, NAME, {"spec": {"replicas": 5}}, "demo")
    made = [(await server.client().list(kind, "demo")).items for kind in kinds]
    for action in CHILDREN:
        # As one that was stopped after its last look, when none of them was there.
        await applier(server, uid).take(action)
    assert [(await server.client().list(kind, "demo")).items for kind in kinds] == made


async def test_a_child_that_lost_its_labels_gets_them_back(server: FakeApiServer) -> None:
    uid = await served(server)
    await applier(server, uid).take(CHILDREN[1])
    made = await server.client().get(CONFIGMAPS, NAME, "demo")
    labels = dict.fromkeys(made["metadata"]["labels"])
    await server.client().patch(CONFIGMAPS, NAME, {"metadata": {"labels": labels}}, "demo")
    await applier(server, uid).take(CHILDREN[1])
    assert (await server.client().get(CONFIGMAPS, NAME, "demo"))["metadata"]["labels"] == made["metadata"]["labels"]


async def test_a_deployment_that_lost_its_labels_gets_them_back_and_its_count(server: FakeApiServer) -> None:
    uid = await served(server)
    await applier(server, uid).take(CHILDREN[2])
    made = await server.client().get(DEPLOYMENTS, NAME, "demo")
    labels = dict.fromkeys(made["metadata"]["labels"])
    await server.client().patch(DEPLOYMENTS, NAME, {"metadata": {"labels": labels}, "spec": {"replicas": 5}}, "demo")
    await applier(server, uid).take(CHILDREN[2])
    now = await server.client().get(DEPLOYMENTS, NAME, "demo")
    assert (now["metadata"]["labels"], now["spec"]) == (made["metadata"]["labels"], made["spec"])


async def test_an_object_of_somebody_else_is_no_child_whatever_its_name(server: FakeApiServer) -> None:
    theirs = await server.client().create(CONFIGMAPS, {"metadata": {"name": NAME}, "data": {"a": "b"}}, "demo")
    with pytest.raises(NameTaken):
        await applier(server, await served(server)).take(CHILDREN[1])
    assert await server.client().get(CONFIGMAPS, NAME, "demo") == theirs


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_count_is_written_only_over_the_state_that_was_judged(server: FakeApiServer, replicas: int) -> None:
    uid = await served(server)
    await applier(server, uid).take(ApplyDeployment(NAME, POOL, 2, None))
    seen = (await server.client().get(DEPLOYMENTS, NAME, "demo"))["metadata"]
    await server.client().patch(DEPLOYMENTS, NAME, {"spec": {"replicas": 5}}, "demo")
    with pytest.raises(Conflict):
        await applier(server, uid).take(ApplyDeployment(NAME, POOL, replicas, 2, seen["uid"], seen["resourceVersion"]))
    assert (await server.client().get(DEPLOYMENTS, NAME, "demo"))["spec"]["replicas"] == 5


async def test_deleting_what_is_gone_is_no_error(server: FakeApiServer) -> None:
    name = child_name("chat", DESIRED.pools[0])
    await applier(server, "u").take(Delete("deployment", name, "u", "1"))


@pytest.mark.parametrize(
    ("ours", "live", "expected"),
    [
        ({"a": 1, "b": {"c": 2}}, {"a": 9, "b": {"c": 8, "d": 7}, "e": 6}, {"a": 9, "b": {"c": 8}}),
        ({"a": 1, "gone": 2}, {"a": 9}, {"a": 9}),
        (
            {"containers": [{"name": "runtime", "image": "ours"}]},
            {"containers": [{"name": "sidecar", "image": "s"}, {"name": "runtime", "image": "theirs", "x": 1}]},
            {"containers": [{"name": "runtime", "image": "theirs"}]},
        ),
        ({"args": ["--config", "x"]}, {"args": ["--debug"]}, {"args": ["--debug"]}),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/b", "readOnly": True}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/b"}]},
        ),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
    ],
)
def test_our_fields_take_the_values_that_are_there(ours: Any, live: Any, expected: Any) -> None:
    assert project(ours, live) == expected


def test_the_selector_of_a_deployment_is_three_labels_for_ever() -> None:
    """It cannot be changed: one more label, and Deployments of the release before could not be applied any more."""
    made = children.deployment(Observed("demo", "chat", "u", 1), NAME, POOL, 1)
    assert made["spec"]["selector"] == {
        "matchLabels": {
            "paceline.io/service": "chat",
            "paceline.io/pool": "default",
            "paceline.io/pool-hash": POOL.hash,
        }
    }


async def test_a_revision_names_every_pool_where_a_column_can_show_it(server: FakeApiServer) -> None:
    spec = {**SERVICE, "spec": {"model": {"source": "package://m"}, "pools": [{"name": "long"}]}}
    desired = render(InferenceService.from_object(spec), Carried(), "r:1")
    made = children.revision(Observed("demo", "chat", "u", 1), desired)
    [column] = [
        c for c in inference_revision_crd()["spec"]["versions"][0]["additionalPrinterColumns"] if c["name"] == "Pools"
    ]
    *path, annotation = column["jsonPath"].replace("\\.", "\0").split(".")
    assert path == ["", "metadata", "annotations"]
    shown = made["metadata"]["annotations"][annotation.replace("\0", ".")]
    assert shown == ", ".join(f"{pool.name} {pool.hash}" for pool in desired.pools)
    assert [words.split()[0] for words in shown.split(", ")] == ["default", "long"]


@pytest.mark.parametrize(
    ("orderer", "pinned", "kept"),
    [("paceline-cli", True, "B is wrong"), ("argocd", True, None), ("paceline-cli", False, None)],
)
async def test_the_cause_of_an_order_is_kept_on_the_revision_it_brings_back(
    server: FakeApiServer, orderer: str, pinned: bool, kept: str | None
) -> None:
    def wrote(manager: str, **fields: Any) -> dict[str, Any]:
        return {"manager": manager, "operation": "Apply", "fieldsV1": fields}

    cause: dict[str, Any] = {"f:metadata": {"f:annotations": {f"f:{ANNOTATION_CHANGE_CAUSE}": {}}}}
    order: dict[str, Any] = {"f:spec": {"f:rollout": {"f:order": {"f:revision": {}}}}}
    fields = [wrote("paceline-cli", **cause, **order)] if orderer == "paceline-cli" else []
    fields = fields or [wrote("paceline-cli", **cause), wrote(orderer, **order)]
    metadata: dict[str, Any] = {
        **SERVICE["metadata"],
        "annotations": {ANNOTATION_CHANGE_CAUSE: "B is wrong"},
        "managedFields": fields,
    }
    client = server.client()
    service = await client.create(INFERENCESERVICES, {**SERVICE, "metadata": metadata}, "demo")
    observed = Observed("demo", "chat", service["metadata"]["uid"], 1)
    earlier = children.revision(observed, DESIRED, {ANNOTATION_ORDER_CAUSE: "of an earlier order"})
    await client.create(INFERENCEREVISIONS, earlier, "demo")
    kept_ones = (await client.list(INFERENCEREVISIONS, "demo")).items
    view = gather(service, read=RevisionReader(), revisions=kept_ones, deployments=(), config_maps=(), pods=())
    applied = Applier(client, Told(), Written(lambda: 0.0), service, view, dataclasses.replace(DESIRED, pinned=pinned))
    await applied.take(MoveTraffic(Traffic(1, DESIRED.revision, (), 1.0)))
    found = await client.get(INFERENCEREVISIONS, DESIRED.revision, "demo")
    assert found["metadata"]["annotations"].get(ANNOTATION_ORDER_CAUSE) == kept
