"""Pods as the real API server, its admission and its scheduler take them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_kube import (
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    NAMESPACES,
    PERSISTENTVOLUMECLAIMS,
    PODDISRUPTIONBUDGETS,
    PODS,
    ApiError,
)

pytestmark = pytest.mark.cluster


async def restrict(world: Any) -> None:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    await world.client.patch(NAMESPACES, world.namespace, {"metadata": {"labels": labels}})


async def test_pods_pass_the_restricted_pod_security_admission(world: Any, make_service: Any) -> None:
    await restrict(world)
    async with world.operator() as operator, world.kubelet():
        await world.apply(
            make_service(replicas=2, accelerator={"resource": "nvidia.com/gpu"}, pools=[{"name": "long"}])
        )
        await world.until_ready()
        assert len(await world.all(PODS)) == 3
        # What a user adds is still looked at by the admission.
        host = {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}
        await world.apply(make_service(pod=host))
        await world.until_ready(reason="PodRefused")
        assert "restricted volume types" in (await world.condition())["message"]
        assert operator.errors == []


@pytest.mark.parametrize("source", ["pvc://models/llama", "oci://registry.local/acme/llama:8b", "hf://acme/tiny@v1"])
async def test_pods_with_models_from_elsewhere_pass_it_as_well(world: Any, make_service: Any, source: str) -> None:
    await restrict(world)
    if source.startswith("pvc"):
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await world.client.create(
            PERSISTENTVOLUMECLAIMS, {"metadata": {"name": "models"}, "spec": claim}, world.namespace
        )
    async with world.operator() as operator, world.kubelet():
        service = make_service()
        service["spec"]["model"] = {"source": source}
        await world.apply(service)
        await world.until_ready()
        assert operator.errors == []
        drift = operator.drift.of((world.namespace, "chat"))
        assert drift is None or drift.items == ()
        assert operator.told.reasons().count("VolumeForOneNode") == source.startswith("pvc")


async def test_what_the_api_server_fills_in_is_no_drift(world: Any, make_service: Any) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service(replicas=2))
        await world.until_ready()
        [deployment] = await world.all(DEPLOYMENTS)
        spec = deployment["spec"]["template"]["spec"]
        assert len(spec["topologySpreadConstraints"]) == 2
        assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 2}}}

        async def looked() -> Any:
            drift = operator.drift.of((world.namespace, "chat"))
            return drift is not None and len(drift.unknown) == 2 and drift

        drift = await world.until(looked, "the configuration was looked at")
        assert drift.items == ()


async def test_a_budget_lets_one_replica_go_at_a_time_and_lives_and_ends_with_its_pool(
    world: Any, make_service: Any
) -> None:
    def disruptions_allowed(budget: Any) -> Any:
        return (budget.get("status") or {}).get("disruptionsAllowed")

    started: set[str] = set()

    def kubelet(pod: Any) -> Any:
        """Successors do not get ready while the test looks."""
        return {"phase": "Pending"} if started and pod["metadata"]["name"] not in started else None

    async with world.operator() as operator, world.kubelet(kubelet):
        await world.apply(make_service(replicas=3, pools=[{"name": "long"}]))
        await world.until_ready()

        async def counted() -> Any:
            found = {b["metadata"]["labels"]["paceline.io/pool"]: b for b in await world.all(PODDISRUPTIONBUDGETS)}
            return set(map(disruptions_allowed, found.values())) == {1} and found

        # A fleet of one can be drained as well.
        budgets = await world.until(counted, "one replica of each pool may go")
        assert set(budgets) == {"default", "long"}
        pods = [p for p in await world.all(PODS) if p["metadata"]["labels"]["paceline.io/pool"] == "default"]
        first, second = (
            {"metadata": {"name": pod["metadata"]["name"], "namespace": world.namespace}} for pod in pods[:2]
        )
        started.update(pod["metadata"]["name"] for pod in await world.all(PODS))
        evict = {"namespace": world.namespace, "subresource": "eviction"}
        await world.client.create(PODS, first, name=first["metadata"]["name"], **evict)
        with pytest.raises(ApiError, match="disruption budget"):
            await world.client.create(PODS, second, name=second["metadata"]["name"], **evict)
        started.clear()
        # What is deleted comes back; a pool that is gone takes its budget along.
        name = budgets["default"]["metadata"]["name"]
        await world.client.delete(PODDISRUPTIONBUDGETS, name, world.namespace)

        async def back() -> bool:
            return name in {b["metadata"]["name"] for b in await world.all(PODDISRUPTIONBUDGETS)}

        await world.until(back, "the budget is back")
        await world.apply(make_service(replicas=3))

        async def one() -> bool:
            return {b["metadata"]["name"] for b in await world.all(PODDISRUPTIONBUDGETS)} == {name}

        await world.until(one, "the budget of the pool long is gone")
        await world.client.delete(INFERENCESERVICES, "chat", world.namespace)

        async def none() -> bool:
            return await world.all(PODDISRUPTIONBUDGETS) == []

        await world.until(none, "the budget goes with its service", 120)
        assert operator.errors == []


async def test_a_roll_for_which_there_are_no_devices_left_goes_one_by_one(world: Any, make_service: Any) -> None:
    gpu = {"resource": "nvidia.com/gpu"}

    def kubelet(pod: Any) -> Any:
        """Readiness for pods that the scheduler has placed."""
        return None if pod["spec"].get("nodeName") else {"phase": "Pending"}

    async def end_pods() -> None:
        """Pods on a node end when its kubelet says so."""
        for pod in await world.all(PODS):
            if pod["metadata"].get("deletionTimestamp"):
                await world.client.delete(PODS, pod["metadata"]["name"], world.namespace, grace_period_seconds=0)

    async def serving() -> int:
        # The record of the traffic, of which the status tells a moment later.
        revisions = await world.all(INFERENCEREVISIONS)
        records = [
            (json.loads(record)["generation"], revision)
            for revision in revisions
            if (record := (revision["metadata"].get("annotations") or {}).get("paceline.io/rollout"))
        ]
        pools = max(records, key=lambda item: item[0])[1]["spec"]["pools"]
        hashes = {pool["hash"] for pool in pools}
        count = sum(
            1
            for pod in await world.all(PODS)
            if pod["metadata"]["labels"]["paceline.io/pool-hash"] in hashes
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())
            and not pod["metadata"].get("deletionTimestamp")
        )
        # Traffic that moved between the two looks would count the wrong pods.
        after = await world.all(INFERENCEREVISIONS)
        stood = [r["metadata"].get("annotations") for r in revisions] == [
            r["metadata"].get("annotations") for r in after
        ]
        return count if stood else await serving()

    async with (
        world.node(**{"nvidia.com/gpu": "2"}) as there,
        world.operator(no_room_seconds=4.0) as operator,
        world.kubelet(kubelet),
    ):
        await world.apply(make_service(replicas=2, accelerator=gpu, pod=there))
        await world.until_ready()
        await world.apply(make_service(replicas=2, accelerator=gpu, pod=there, runtime={"maxNumSeqs": 8}))
        await world.until_ready(reason="Unschedulable")
        assert "replicas are soon replaced one by one" in (await world.condition())["message"]
        least = 2

        async def done() -> bool:
            nonlocal least
            least = min(least, await serving())
            await end_pods()
            ready = await world.condition()
            return bool(ready["status"] == "True" and ready["observedGeneration"] == 2)

        await world.until(done, "the new revision serves", 60)
        assert least == 1
        assert operator.errors == []
        assert len([d for d in await world.all(DEPLOYMENTS) if d["spec"]["replicas"]]) == 1
