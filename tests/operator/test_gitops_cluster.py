"""GitOps tools beside the operator on a real API server: what they compare stays equal; deleting works in any order.

The comparisons are those of the tools themselves: Argo CD's server-side diff and its older three-way diff, and Flux's.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from paceline_cli.orders import pin, unpin
from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    NAMESPACES,
    PODS,
    JsonObject,
    NotFound,
    Propagation,
)

pytestmark = pytest.mark.cluster

ARGO, FLUX = "argocd-controller", "kustomize-controller"
CHILDREN = (INFERENCEREVISIONS, DEPLOYMENTS, CONFIGMAPS, PODS)

SPELLED: dict[str, Any] = {
    # Values that servers like to rewrite, and zero values that clients like to drop.
    "pod": {
        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {}},
        "nodeSelector": {},
        "tolerations": [],
    },
    "routing": {"maxRequestDuration": "600s", "retryBudgetPercent": 0},
    "runtime": {"kvCache": {"memory": "1024Mi"}, "prefixCaching": {"enabled": False}},
    "suspend": False,
    "revisionHistoryLimit": 2,
    "pools": [{"name": "long", "shapes": ["VeryLong"], "replicas": 1, "runtime": {"prefillChunkTokens": 128}}],
}


class Git:
    """A manifest in Git, and the tools that compare it with what is live."""

    def __init__(self, world: Any, make_service: Any) -> None:
        self.world = world
        self._make = make_service
        self.manifest: JsonObject = {}

    def commit(self, **changed: Any) -> None:
        """A new state of the manifest."""
        self.manifest = self._make(**{**SPELLED, **changed})
        self.manifest["metadata"] |= {"namespace": self.world.namespace, "labels": {"team": "a"}, "annotations": {}}

    async def sync(self, manager: str = ARGO) -> None:
        """As the tool applies it: by force, which Argo CD and Flux both do."""
        await self.world.client.apply(INFERENCESERVICES, self.manifest, field_manager=manager, force=True)

    async def live(self) -> JsonObject:
        found: JsonObject = await self.world.get(INFERENCESERVICES, "chat")
        return found

    async def differences(self) -> dict[str, Any]:
        """What each tool would show as out of sync; empty when all are content."""
        live = await self.live()
        found = {
            "argo server-side": await self._server_side(live, ARGO),
            "argo three-way": self._three_way(live),
            "flux": await self._flux(live),
        }
        if (await self.live())["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            return await self.differences()  # something else was written in between
        return {tool: difference for tool, difference in found.items() if difference}

    async def _dry_run(self, manager: str) -> JsonObject:
        result: JsonObject = await self.world.client.apply(
            INFERENCESERVICES, self.manifest, field_manager=manager, force=True, dry_run=True
        )
        return result

    async def _server_side(self, live: JsonObject, manager: str) -> Any:
        """Argo CD: what a dry run of the apply predicts against what is live, all of it."""
        predicted = await self._dry_run(manager)
        return differing(_without_bookkeeping(predicted), _without_bookkeeping(live))

    async def _flux(self, live: JsonObject) -> Any:
        """Flux: labels, annotations and all but metadata and status of a dry run against what is live."""
        predicted = await self._dry_run(FLUX)

        def compared(obj: JsonObject) -> JsonObject:
            rest = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
            kept = {key: obj["metadata"].get(key) for key in ("labels", "annotations")}
            return {**rest, "metadata": kept}

        return differing(compared(predicted), compared(live))

    def _three_way(self, live: JsonObject) -> Any:
        """Argo CD without server-side diff: a merge patch of the manifest must change nothing. Lists are wholes."""
        return differing(_merged(live, self.manifest), live)


def _without_bookkeeping(obj: JsonObject) -> JsonObject:
    obj = copy.deepcopy(obj)
    for field in ("managedFields", "resourceVersion"):
        obj["metadata"].pop(field, None)
    return obj


def _merged(live: Any, manifest: Any) -> Any:
    if not isinstance(manifest, Mapping) or not isinstance(live, Mapping):
        # An empty map or list and none are one for Argo CD.
        return live if not manifest and not live else manifest
    return {**live, **{k: _merged(live.get(k), v) for k, v in manifest.items() if v or k in live}}


def differing(one: Any, other: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found: dict[str, tuple[Any, Any]] = {}
        for key in {*one, *other}:
            found |= differing(one.get(key), other.get(key), f"{path}.{key}")
        return found
    return {} if one == other else {path: (one, other)}


def assert_untouched(obj: JsonObject, manifest: JsonObject) -> None:
    """The operator has written the status and nothing else."""
    ours = [f for f in obj["metadata"]["managedFields"] if f["manager"].startswith("paceline-operator")]
    assert {f.get("subresource") for f in ours} <= {"status"}
    assert all(set(f["fieldsV1"]) == {"f:status"} for f in ours)
    assert "finalizers" not in obj["metadata"]
    assert "ownerReferences" not in obj["metadata"]
    assert (obj["metadata"].get("annotations") or {}) == manifest["metadata"]["annotations"]
    assert obj["metadata"]["labels"] == manifest["metadata"]["labels"]
    assert differing(_merged(obj["spec"], manifest["spec"]), obj["spec"]) == {}


@pytest.fixture
def git(world: Any, make_service: Any) -> Git:
    return Git(world, make_service)


@pytest.mark.parametrize("manager", [ARGO, FLUX])
async def test_what_tools_compare_stays_equal_through_syncs_rolls_scaling_and_repair(
    world, git: Git, manager: str
) -> None:
    async with world.operator(drift_seconds=0.5) as operator, world.kubelet():
        git.commit()
        await git.sync(manager)
        assert await git.differences() == {}, "before the operator has finished"
        await world.until_ready()
        assert await git.differences() == {}
        for _ in range(10):
            await git.sync(manager)
        await operator.reconciler.reconcile(world.namespace, "chat")
        assert await git.differences() == {}
        assert (await git.live())["metadata"]["generation"] == 1, "ten syncs changed nothing"

        git.commit(replicas=3)
        await git.sync(manager)
        await world.until_ready()
        assert await git.differences() == {}

        git.commit(replicas=3, runtime={"maxNumSeqs": 8}, driftPolicy="Repair")
        await git.sync(manager)
        for _ in range(5):
            assert await git.differences() == {}, "in the middle of a roll"
            await asyncio.sleep(0.1)
        await world.until_ready()
        assert await git.differences() == {}

        deployment = next(d for d in await world.all(DEPLOYMENTS) if "-default-" in d["metadata"]["name"])
        name = deployment["metadata"]["name"]
        env = {"containers": [{"name": "runtime", "env": [{"name": "PACELINE_MAX_NUM_SEQS", "value": "4"}]}]}
        patch = {"spec": {"template": {"spec": env}}}
        await world.client.patch(DEPLOYMENTS, name, patch, world.namespace, kind="strategic", field_manager="night")

        async def repaired() -> bool:
            return "DriftRepaired" in operator.told.reasons()

        await world.until(repaired, "the drift is repaired", 120)
        assert await git.differences() == {}
        assert_untouched(await git.live(), git.manifest)
        assert operator.errors == []


async def test_a_count_that_is_not_in_git_is_left_to_whoever_scales(world, git: Git) -> None:
    async with world.operator() as operator, world.kubelet():
        git.commit()
        await git.sync()
        await world.until_ready()
        scale = {"spec": {"replicas": 3}}
        await world.client.patch(
            INFERENCESERVICES, "chat", scale, world.namespace, subresource="scale", field_manager="hpa"
        )
        await world.until_ready()
        assert await git.differences() == {}
        await git.sync()
        assert (await git.live())["spec"]["replicas"] == 3
        assert operator.errors == []


async def test_orders_of_the_command_line_are_no_difference_and_survive_a_sync(world, git: Git) -> None:
    """`paceline rollback` owns its fields alone. The empty maps of the manifest belong to the tool."""
    async with world.operator() as operator, world.kubelet():
        git.commit()
        await git.sync()
        first = (await world.until_ready())["status"]["currentRevision"]
        git.commit(runtime={"maxNumSeqs": 8}, rollout={})
        await git.sync()
        await world.until_ready()
        await pin(world.client, await git.live(), first, "too slow")
        await world.until_ready(reason="Pinned")
        assert await git.differences() == {}
        await git.sync()
        live = await git.live()
        assert live["spec"]["rollout"]["order"]["revision"] == first
        assert live["metadata"]["annotations"] == {"kubernetes.io/change-cause": "too slow"}
        assert await git.differences() == {}
        await unpin(world.client, live)
        await world.until_ready()
        assert await git.differences() == {}
        assert_untouched(await git.live(), git.manifest)
        assert operator.errors == []


async def test_a_status_that_was_deleted_comes_back_right(world, git: Git) -> None:
    """As after a restore from a backup, which leaves the status out."""
    async with world.operator() as operator, world.kubelet():
        git.commit()
        await git.sync()
        before = await world.until_ready()
        await world.client.patch(INFERENCESERVICES, "chat", {"status": None}, world.namespace, subresource="status")
        after = await world.until_ready()
        assert after["status"]["currentRevision"] == before["status"]["currentRevision"]
        assert after["status"]["traffic"] == before["status"]["traffic"]
        assert await git.differences() == {}
        assert operator.errors == []


async def left(world: Any) -> list[str]:
    """Names of everything of ours that is still there."""
    kinds = (INFERENCESERVICES, *CHILDREN)
    return [f"{kind.kind}/{o['metadata']['name']}" for kind in kinds for o in await world.all(kind)]


async def nothing_is_left(world: Any) -> None:
    async def empty() -> bool:
        return await left(world) == []

    # Garbage collection looks for new kinds every 30 s, and the CRDs may be that new.
    await world.until(empty, "nothing is left", 120)


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
@pytest.mark.parametrize("operator_is", ["up", "down", "back in the middle"])
async def test_deleting_leaves_nothing_in_any_order(
    world, make_service, propagation: Propagation, operator_is: str
) -> None:
    async with world.kubelet():
        async with world.operator() as operator:
            await world.apply(make_service(pools=[{"name": "long"}]))
            await world.until_ready()
            if operator_is == "up":
                await world.client.delete(INFERENCESERVICES, "chat", world.namespace, propagation=propagation)
                await nothing_is_left(world)
                assert operator.errors == []
        if operator_is != "up":
            await world.client.delete(INFERENCESERVICES, "chat", world.namespace, propagation=propagation)
        if operator_is == "back in the middle":
            async with world.operator() as again:
                await nothing_is_left(world)
                await asyncio.sleep(1)
                assert again.errors == []
        await nothing_is_left(world)


async def test_children_that_were_orphaned_while_the_operator_was_down_are_taken_over(world, make_service) -> None:
    async with world.kubelet():
        async with world.operator():
            await world.apply(make_service())
            before = await world.until_ready()
            pods = {p["metadata"]["uid"] for p in await world.all(PODS)}
        await world.client.delete(INFERENCESERVICES, "chat", world.namespace, propagation="Orphan")

        async def gone() -> bool:
            return await world.all(INFERENCESERVICES) == []

        await world.until(gone, "the service is gone")
        assert {p["metadata"]["uid"] for p in await world.all(PODS)} == pods, "what ran goes on"
        async with world.operator() as operator:
            await world.apply(make_service())
            after = await world.until_ready()
            assert after["status"]["currentRevision"] == before["status"]["currentRevision"]
            assert {p["metadata"]["uid"] for p in await world.all(PODS)} == pods
            owners = {
                o["metadata"]["ownerReferences"][0]["uid"]
                for kind in (INFERENCEREVISIONS, DEPLOYMENTS, CONFIGMAPS)
                for o in await world.all(kind)
            }
            assert owners == {after["metadata"]["uid"]}
            assert operator.errors == []


@asynccontextmanager
async def another_namespace(world: Any) -> AsyncIterator[Any]:
    """A world that the test itself deletes."""
    name = f"gone-{uuid.uuid4().hex[:8]}"
    await world.client.create(NAMESPACES, {"metadata": {"name": name}})
    yield type(world)(world.client, name, world.cluster)


async def namespace_is_gone(world: Any) -> None:
    async def gone() -> bool:
        try:
            await world.client.get(NAMESPACES, world.namespace)
        except NotFound:
            return True
        return False

    await world.until(gone, "the namespace is gone", 120)


@pytest.mark.parametrize("operator_is", ["up", "gone"])
async def test_a_namespace_goes_with_all_that_is_in_it(world, make_service, operator_is: str) -> None:
    async with another_namespace(world) as doomed, doomed.kubelet():
        async with doomed.operator() as operator:
            await doomed.apply(make_service(replicas=2))
            await doomed.until_ready()
            if operator_is == "up":
                await world.client.delete(NAMESPACES, doomed.namespace)
                await namespace_is_gone(doomed)
                assert operator.errors == []
        if operator_is == "gone":
            await world.client.delete(NAMESPACES, doomed.namespace)
            await namespace_is_gone(doomed)


def owned_by_somebody(kind: Any, obj: JsonObject) -> JsonObject:
    """An object of the name that a child needs, made by somebody else before."""
    metadata = {"name": obj["metadata"]["name"], "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    if kind is CONFIGMAPS:
        return {"metadata": metadata, "data": {"theirs": "1"}}
    labels = {"app": "theirs"}
    container = {"name": "main", "image": "example.test/app:1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "metadata": metadata,
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


@pytest.mark.parametrize("kind", [DEPLOYMENTS, CONFIGMAPS], ids=lambda kind: kind.kind)
async def test_an_object_of_somebody_else_is_not_adopted_and_the_status_says_which(
    world, make_service, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_operator.reconcile.REFUSED_RETRY_SECONDS", 1.0)
    async with world.kubelet():
        async with world.operator():
            await world.apply(make_service())
            await world.until_ready()
            [child] = await world.all(kind)
        await world.client.delete(INFERENCESERVICES, "chat", world.namespace)
        await nothing_is_left(world)
        theirs = await world.client.create(kind, owned_by_somebody(kind, child), world.namespace)
        name = theirs["metadata"]["name"]
        async with world.operator() as operator:
            await world.apply(make_service())
            await world.until_ready(reason="ResourceConflict")
            condition = await world.condition()
            assert condition["status"] == "False"
            assert f"{kind.kind} {name} is there already and does not belong to this service" in condition["message"]
            after = await world.get(kind, name)
            for field in ("uid", "generation", "labels", "ownerReferences"):
                assert after["metadata"].get(field) == theirs["metadata"].get(field)
            assert (after.get("spec"), after.get("data")) == (theirs.get("spec"), theirs.get("data"))
            writers = {entry["manager"] for entry in after["metadata"]["managedFields"]}
            assert "paceline-operator" not in writers
            await world.client.delete(kind, name, world.namespace)
            # Without an edit: a refused child is tried again.
            await world.until_ready()
            assert operator.errors == []


async def test_while_suspended_nothing_is_made_scaled_repaired_or_deleted(world, make_service) -> None:
    async with world.operator(drift_seconds=0.5) as operator, world.kubelet():
        await world.apply(make_service(driftPolicy="Repair"))
        await world.until_ready()
        await world.apply(make_service(driftPolicy="Repair", suspend=True, replicas=3, runtime={"maxNumSeqs": 8}))
        await world.until_ready(reason="Suspended")
        [deployment] = await world.all(DEPLOYMENTS)
        patch = {"spec": {"replicas": 2, "template": {"metadata": {"annotations": {"by": "hand"}}}}}
        name = deployment["metadata"]["name"]
        edited = await world.client.patch(DEPLOYMENTS, name, patch, world.namespace, field_manager="admin")
        [config] = await world.all(CONFIGMAPS)
        await world.client.delete(CONFIGMAPS, config["metadata"]["name"], world.namespace)
        told = len(operator.told.events)
        for _ in range(5):
            await operator.reconciler.reconcile(world.namespace, "chat")
            await asyncio.sleep(0.3)
        [now] = await world.all(DEPLOYMENTS)
        assert now["metadata"]["generation"] == edited["metadata"]["generation"]
        assert await world.all(CONFIGMAPS) == []
        assert len(await world.all(INFERENCEREVISIONS)) == 1
        new = {reason for _, reason, _ in operator.told.events[told:]}
        assert not new & {"Scaled", "DriftRepaired", "RevisionCreated", "DeploymentCreated"}, json.dumps([*new])
        assert operator.errors == []
