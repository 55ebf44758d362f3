"""Ways a replica fails, on a real API server with its real controllers: which one, why, and what to do."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline_kube import EVENTS, INFERENCEREVISIONS, INFERENCESERVICES, PODS, RESOURCEQUOTAS, JsonObject

pytestmark = pytest.mark.cluster

STARTED = "2026-01-01T00:00:00Z"


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def runtime(state: JsonObject, last: JsonObject | None = None, **more: Any) -> JsonObject:
    """The status of a pod whose runtime container is in this state."""
    container = {"name": "runtime", "ready": False, "restartCount": 1, "image": "i", "imageID": "", "state": state}
    return {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "ContainersReady", "status": "False", "lastTransitionTime": "2026-01-01T01:00:00Z"},
            {"type": "Ready", "status": "False"},
        ],
        "containerStatuses": [container | ({"lastState": last} if last else {}) | more],
    }


def waits(reason: str, message: str = "") -> JsonObject:
    return {"waiting": {"reason": reason, "message": message}}


def over(code: int, message: str = "", reason: str = "Error") -> JsonObject:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


BACK_OFF = waits("CrashLoopBackOff", "back-off 10s")
RUNS = {"running": {"startedAt": STARTED}}

FAILURES: dict[str, tuple[JsonObject, str, str, str]] = {
    "image": (runtime(waits("ErrImagePull", "manifest unknown")), "ImagePull", "manifest unknown", "runtime.image"),
    "config": (runtime(BACK_OFF, over(78, "kvCache.memory 90Gi is more")), "ConfigError", "is more", "kvCache.memory"),
    "secret": (
        runtime(waits("CreateContainerConfigError", 'secret "s" not found')),
        "ConfigError",
        'secret "s" not found',
        "secret",
    ),
    "memory": (runtime(BACK_OFF, over(137, reason="OOMKilled")), "OutOfMemory", "more memory", "limits.memory"),
    "no model": (runtime(BACK_OFF, over(66, "nothing at x")), "ModelNotFound", "nothing at x", "spec.model.source"),
    "NaN": (runtime(BACK_OFF, over(65, "the weights give NaN")), "ModelInvalid", "NaN", "whole files"),
    "crash": (runtime(BACK_OFF, over(139)), "CrashLoop", "signal 11", "kubectl logs --previous"),
    "readiness": (runtime(RUNS, started=True), "ProbeFailing", "not ready any more", "kubectl logs"),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_which_replica_fails_why_and_what_to_do_is_told_while_the_others_serve(
    world: Any, make_service: Any, kind: str
) -> None:
    status, reason, words, advice = FAILURES[kind]
    bad: set[str] = set()

    def kubelet(pod: JsonObject) -> JsonObject | None:
        return status if pod["metadata"]["name"] in bad else None

    async with world.node() as there, world.operator() as operator, world.kubelet(kubelet):
        await world.apply(make_service(replicas=2, pod=there))
        await world.until_ready()
        [one, _] = sorted(pod["metadata"]["name"] for pod in await world.all(PODS))
        bad.add(one)
        before = len(operator.told.events)
        degraded = await world.until_ready(reason="Degraded", seconds=10)
        message = (await world.condition())["message"]
        assert one in message
        assert words in message
        assert advice in message
        assert (await world.condition(type="RevisionReady"))["reason"] == reason
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        assert degraded["status"]["readyReplicas"] == 1
        assert [event[1] for event in operator.told.events[before:]] == ["Degraded"]
        bad.clear()
        await world.until_ready()
        assert operator.errors == []


async def reason_is(world: Any, reason: str, seconds: float = 20.0) -> JsonObject:
    """Wait until the asked-for revision is not ready for this reason."""

    async def told() -> Any:
        revision = await world.condition(type="RevisionReady")
        return revision.get("reason") == reason and revision

    return dict(await world.until(told, f"the reason is {reason}", seconds))


async def test_an_evicted_replica_is_told_until_its_successor_is_ready(world: Any, make_service: Any) -> None:
    evicted: set[str] = set()
    ready: set[str] = set()

    def kubelet(pod: JsonObject) -> JsonObject | None:
        if pod["metadata"]["name"] in evicted:
            return {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        return None if pod["metadata"]["name"] in ready or not evicted else {"phase": "Pending"}

    async with world.node() as there, world.operator(), world.kubelet(kubelet):
        await world.apply(make_service(replicas=2, pod=there))
        await world.until_ready()
        names = sorted(pod["metadata"]["name"] for pod in await world.all(PODS))
        ready.update(names)
        evicted.add(names[0])
        revision = await reason_is(world, "Evicted")
        assert f"pod {names[0]}: Evicted: The node was low on resource: memory; ask for" in revision["message"]
        ready.update(pod["metadata"]["name"] for pod in await world.all(PODS))
        await world.until_ready()


async def test_a_volume_that_is_attached_elsewhere_is_told_by_the_events(world: Any, make_service: Any) -> None:
    creating = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    container = {"name": "runtime", "ready": False, "restartCount": 0, "image": "i", "imageID": ""}
    creating["containerStatuses"] = [container | {"state": waits("ContainerCreating")}]
    async with world.node() as there, world.operator(), world.kubelet(lambda _: creating):
        await world.apply(make_service(pod=there))

        async def made() -> Any:
            return await world.all(PODS)

        [pod] = await world.until(made, "there is a pod")
        about = {"kind": "Pod", "namespace": world.namespace}
        about |= {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        message = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) other'
        event = {"metadata": {"name": "e", "namespace": world.namespace}, "involvedObject": about, "type": "Warning"}
        event |= {"reason": "FailedAttachVolume", "message": message, "lastTimestamp": stamp(), "count": 1}
        await world.client.create(EVENTS, event, world.namespace)
        revision = await reason_is(world, "VolumeUnavailable")
        assert message in revision["message"]
        assert pod["metadata"]["name"] in revision["message"]


async def test_a_node_that_is_lost_is_told_with_the_replica_that_was_on_it(world: Any, make_service: Any) -> None:
    node = f"node-{world.namespace}"
    async with world.node() as there, world.operator() as operator:
        await world.apply(make_service(pod=there))

        async def scheduled() -> Any:
            return [p for p in await world.all(PODS) if p["spec"].get("nodeName") == node]

        [pod] = await world.until(scheduled, "the pod is on the node")
        running = {"name": "runtime", "ready": True, "started": True, "restartCount": 0, "image": "i"}
        running |= {"imageID": "", "state": {"running": {"startedAt": stamp()}}}
        status = {"phase": "Running", "containerStatuses": [running]}
        kinds = ("PodScheduled", "ContainersReady", "Ready")
        status["conditions"] = [{"type": kind, "status": "True"} for kind in kinds]
        await world.set_pod(pod, status)
        await world.until_ready()
        # Nobody reports for the node, and after its grace period the controller of nodes gives it up.
        revision = await reason_is(world, "NodeLost", 90)
        assert f"pod {pod['metadata']['name']}: node {node} does not report any more" in revision["message"]
        assert (await world.condition(type="TrafficReady"))["status"] == "False"
        assert operator.errors == []


async def test_more_replicas_are_told_as_starting_and_not_as_a_fault(world: Any, make_service: Any) -> None:
    first: set[str] = set()

    def kubelet(pod: JsonObject) -> JsonObject | None:
        return {"phase": "Pending"} if first and pod["metadata"]["name"] not in first else None

    async with world.node() as there, world.operator() as operator, world.kubelet(kubelet), Sampler(world) as sampler:
        await world.apply(make_service(pod=there))
        await world.until_ready()
        first.update(pod["metadata"]["name"] for pod in await world.all(PODS))
        before = len(operator.told.events)
        await world.apply(make_service(pod=there, replicas=3))
        await world.until_ready(reason="Starting")
        assert "pool default has 1 of 3 replicas ready" in (await world.condition())["message"]
        first.clear()
        await world.until_ready()
        assert [e for e in operator.told.events[before:] if e[0] == "Warning"] == []
    reasons = {c["reason"] for s in sampler.samples for c in (s.get("status") or {}).get("conditions") or []}
    assert "Degraded" not in reasons


class Sampler:
    """Every version of the services of a world, in order, as a watch shows them."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.samples: list[JsonObject] = []

    async def __aenter__(self) -> Sampler:
        listed = await self.world.client.list(INFERENCESERVICES, self.world.namespace)
        self._task = asyncio.create_task(self._watch(listed.resource_version))
        return self

    async def _watch(self, version: str) -> None:
        events = self.world.client.watch(
            INFERENCESERVICES, self.world.namespace, resource_version=version, timeout_seconds=300
        )
        async for event in events:
            if event.type in ("ADDED", "MODIFIED"):
                self.samples.append(event.object)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.5)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def ready_for(sample: JsonObject) -> bool:
    """Whether `kubectl wait --for=condition=Ready` ends here: it wants the condition of this very generation."""
    conditions = (sample.get("status") or {}).get("conditions") or []
    ready = next((c for c in conditions if c["type"] == "Ready"), None)
    return bool(ready and ready["status"] == "True" and ready["observedGeneration"] >= sample["metadata"]["generation"])


@pytest.mark.parametrize("seed", range(3))
async def test_ready_is_never_true_for_a_generation_that_is_not_served(
    world: Any, make_service: Any, seed: int
) -> None:
    """Each version of the status while specs follow each other, slowly and at once, back and forth."""
    edits = [8, 16, 8, 8, 24, 16, 32]
    async with world.operator() as operator, world.kubelet(), Sampler(world) as sampler:
        await world.apply(make_service(runtime={"maxNumSeqs": 4}))
        await world.until_ready()
        for number, seqs in enumerate(edits):
            await world.apply(make_service(runtime={"maxNumSeqs": seqs}, replicas=1 + number % 3))
            if (number + seed) % 3 == 0:
                await world.until_ready()
            else:
                await asyncio.sleep(0.15 * seed)
        await world.until_ready()
        assert operator.errors == []
        served = {
            revision["metadata"]["name"]: revision["spec"]["pools"][0]["config"]["parameters"]["maxNumSeqs"]
            for revision in await world.all(INFERENCEREVISIONS)
        }
    true = [sample for sample in sampler.samples if ready_for(sample)]
    assert len(true) >= 3
    for sample in true:
        status, spec = sample["status"], sample["spec"]
        assert served[status["currentRevision"]] == spec["runtime"]["maxNumSeqs"]
        assert status["observedGeneration"] == sample["metadata"]["generation"]
        assert status["readyReplicas"] >= spec["replicas"]
    for sample in sampler.samples:
        for condition in (sample.get("status") or {}).get("conditions") or []:
            # One write, one generation: no condition speaks of another spec than the rest.
            assert condition["observedGeneration"] == sample["status"]["observedGeneration"]


async def test_kubectl_wait_ends_when_the_spec_of_that_moment_serves(world: Any, make_service: Any) -> None:
    async with world.operator(), world.kubelet():
        for seqs in (4, 8, 16, 8):
            await world.apply(make_service(runtime={"maxNumSeqs": seqs}))
            await asyncio.to_thread(
                world.cluster.kubectl,
                *("wait", "-n", world.namespace, "--for=condition=Ready", "psvc/chat", "--timeout=60s"),
            )
            status = (await world.get(INFERENCESERVICES, "chat"))["status"]
            revision = await world.get(INFERENCEREVISIONS, status["currentRevision"])
            assert revision["spec"]["pools"][0]["config"]["parameters"]["maxNumSeqs"] == seqs


async def test_a_quota_for_one_of_two_replicas_is_told_with_its_figures(world: Any, make_service: Any) -> None:
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    await world.client.create(RESOURCEQUOTAS, quota, world.namespace)

    async def counted() -> bool:
        return bool((await world.get(RESOURCEQUOTAS, "gpus")).get("status", {}).get("used"))

    await world.until(counted, "the quota is counted")
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service(replicas=2, accelerator={"resource": "nvidia.com/gpu"}))
        revision = await reason_is(world, "QuotaExceeded", 30)
        figures = (
            "requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1"
        )
        assert figures in revision["message"]
        await world.until_ready(reason="Degraded", seconds=10)
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        written = len(operator.told.events)
        more = {"spec": {"hard": {"requests.nvidia.com/gpu": "2"}}}
        await world.client.patch(RESOURCEQUOTAS, "gpus", more, world.namespace)
        # Without an edit; the controller of replica sets tries again after ever longer pauses.
        await world.until_ready()
        assert [reason for _, reason, _ in operator.told.events[written:]] == ["Ready"]


async def unchanging(world: Any, seconds: float = 4.0) -> JsonObject:
    """The status once it has stayed the same for longer than the first look at the configuration takes to come."""
    last: JsonObject = {}
    since = time.monotonic()

    async def stays() -> bool:
        nonlocal last, since
        now = (await world.get(INFERENCESERVICES, "chat")).get("status") or {}
        looked = any(c["type"] == "ConfigInSync" for c in now.get("conditions") or ())
        if now != last or not looked:
            last, since = now, time.monotonic()
        return time.monotonic() - since > seconds

    await world.until(stays, "the status stays as it is")
    return last


async def test_a_status_that_is_lost_comes_back_as_it_was(world: Any, make_service: Any) -> None:
    def timeless(status: JsonObject) -> str:
        conditions = [{**c, "lastTransitionTime": ""} for c in status["conditions"]]
        return json.dumps({**status, "conditions": conditions}, sort_keys=True)

    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service(pools=[{"name": "long"}]))
        await world.until_ready()
        await world.apply(make_service(pools=[{"name": "long"}], runtime={"maxNumSeqs": 8}))
        await world.until_ready()
        before = await unchanging(world)
        pods = {pod["metadata"]["uid"] for pod in await world.all(PODS)}

        async def dropped() -> bool:
            lost = [{"op": "remove", "path": "/status"}]
            await world.client.patch(
                INFERENCESERVICES, "chat", lost, world.namespace, kind="json", subresource="status"
            )
            return True

        await world.until(dropped, "the status is gone")

        async def back() -> bool:
            status = (await world.get(INFERENCESERVICES, "chat")).get("status") or {}
            return bool(status.get("conditions")) and timeless(status) == timeless(before)

        await world.until(back, "the status is back as it was", 20)
        assert before["traffic"]["generation"] == 2
        assert pods >= {p["metadata"]["uid"] for p in await world.all(PODS)}
        assert operator.errors == []
