from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline_crds.names import LABEL_POOL, LABEL_POOL_HASH, LABEL_SERVICE, derived_name
from paceline_kube import DEPLOYMENTS, INFERENCESERVICES, Change, JsonObject, Key, Store
from paceline_kube.testing import FakeApiServer
from paceline_operator.caches import owners, watching
from paceline_operator.stores import service_indexes

LONG = "a-service-with-a-name-that-is-far-too-long-to-be-the-value-of-a-label-in-kubernetes"


def meta(namespace: str = "demo", **labels: str) -> dict[str, Any]:
    return {"name": "child", "namespace": namespace, "labels": {LABEL_SERVICE: labels["of"]} if labels else {}}


@pytest.fixture
def services() -> Store:
    store = Store(service_indexes())
    for namespace, name in (("demo", "chat"), ("other", "chat"), ("demo", LONG)):
        store.put({"metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"}})
    return store


def test_a_child_wakes_the_service_of_its_own_namespace(services: Store) -> None:
    assert owners(meta(of="chat"), services) == [("demo", "chat")]
    assert owners(meta("other", of="chat"), services) == [("other", "chat")]


def test_a_cut_label_still_finds_its_service(services: Store) -> None:
    assert derived_name(LONG) != LONG
    assert owners(meta(of=derived_name(LONG)), services) == [("demo", LONG)]


@pytest.mark.parametrize("metadata", [meta(), meta(of="unknown"), {"name": "x"}, {"name": "x", "labels": None}])
def test_a_stranger_wakes_nobody(services: Store, metadata: dict[str, Any]) -> None:
    assert owners(metadata, services) == []


class Wakes:
    """The handlers behind a set of informers, which are told of changes by hand."""

    def __init__(self, server: FakeApiServer) -> None:
        self.woken: list[Key] = []
        self.touched: list[Key] = []
        self.watching = watching(
            server.client(),
            namespaces=["demo"],
            own_namespace="home",
            enqueue=self.woken.append,
            touched=self.touched.append,
        )
        self.caches = self.watching.caches
        self.see("services", {"metadata": {**_metadata("chat", "s"), "generation": 1}, "spec": {}})
        self.woken.clear()

    def see(self, kind: str, obj: JsonObject) -> tuple[bool, bool]:
        """A state of an object as the watch tells it. Gives whether a pass, and whether a look for drift, follows."""
        return self._after(kind, getattr(self.caches, kind).put(obj))

    def lose(self, kind: str, name: str) -> tuple[bool, bool]:
        return self._after(kind, getattr(self.caches, kind).remove(("demo", name)))

    def _after(self, kind: str, changes: list[Change]) -> tuple[bool, bool]:
        self.woken.clear()
        self.touched.clear()
        [informer] = self.watching.informers[kind]
        informer._notify(changes)
        assert {*self.woken, *self.touched} <= {("demo", "chat")}
        return bool(self.woken), bool(self.touched)


def _metadata(name: str, uid: str, version: int = 1) -> JsonObject:
    metadata = {"name": name, "namespace": "demo", "uid": uid, "resourceVersion": str(version)}
    return metadata | {"labels": {LABEL_SERVICE: "chat", LABEL_POOL: "default", LABEL_POOL_HASH: "h"}}


def deployment(version: int, generation: int = 1, replicas: int = 2, **status: Any) -> JsonObject:
    return {
        "metadata": {**_metadata("d", "d", version), "generation": generation},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {LABEL_POOL: "default", LABEL_POOL_HASH: "h"}}},
        "status": status,
    }


def pod(version: int, *conditions: str, waiting: str = "", **status: Any) -> JsonObject:
    states = [{"name": "runtime", "state": {"waiting": {"reason": waiting}} if waiting else {}}]
    status |= {"conditions": [{"type": kind, "status": "True"} for kind in conditions], "containerStatuses": states}
    return {"metadata": _metadata("p", "p", version), "spec": {}, "status": status}


@pytest.fixture
async def wakes() -> AsyncIterator[Wakes]:
    async with FakeApiServer() as server:
        yield Wakes(server)


async def test_a_deployment_that_counts_its_pods_wakes_nobody(wakes: Wakes) -> None:
    assert wakes.see("deployments", deployment(1)) == (True, True)
    assert wakes.see("deployments", deployment(2, observedGeneration=1)) == (False, False)
    assert wakes.see("deployments", deployment(3, replicas=2, readyReplicas=0)) == (False, False)
    existing = deployment(4)
    existing["status"] = {"replicas": 2}
    assert wakes.see("deployments", existing) == (True, False), "how many pods exist is what a stop waits for"
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    refused = deployment(5, conditions=[failed])
    refused["status"]["replicas"] = 2
    assert wakes.see("deployments", refused) == (True, False)
    assert wakes.see("deployments", deployment(6, 2, replicas=3)) == (True, True)
    assert wakes.lose("deployments", "d") == (True, True)


async def test_a_pod_wakes_its_service_when_it_looks_different_and_while_it_is_in_doubt(wakes: Wakes) -> None:
    assert wakes.see("pods", pod(1)) == (True, True)
    assert wakes.see("pods", pod(2, startTime="2026-01-01T00:00:00Z")) == (False, False)
    assert wakes.see("pods", pod(3, waiting="ContainerCreating")) == (True, False), "its Events may have to be read"
    assert wakes.see("pods", pod(4, waiting="ContainerCreating", startTime="2026-01-01T00:00:01Z")) == (True, False)
    assert wakes.see("pods", pod(5, "Ready")) == (True, True)
    assert wakes.see("pods", pod(6, "Ready", "ContainersReady")) == (False, False)


async def test_what_a_pod_runs_is_looked_at_when_it_may_be_something_else(wakes: Wakes) -> None:
    running = pod(1, "Ready")
    wakes.see("pods", running)
    anew = pod(2, "Ready")
    anew["status"]["containerStatuses"][0]["restartCount"] = 1
    assert wakes.see("pods", anew)[1], "a container has started anew"
    relabelled = pod(3, "Ready")
    relabelled["status"] = anew["status"]
    relabelled["metadata"]["labels"] |= {LABEL_POOL_HASH: "other"}
    assert wakes.see("pods", relabelled)[1]
    edited = {**relabelled, "spec": {"containers": [{"name": "runtime", "image": "other"}]}}
    edited["metadata"] = {**relabelled["metadata"], "resourceVersion": "4"}
    assert wakes.see("pods", edited)[1], "an image can be changed in place"
    assert wakes.lose("pods", "p")[1]


async def test_a_budget_that_counts_its_pods_wakes_nobody(wakes: Wakes) -> None:
    budget = {"metadata": _metadata("b", "b"), "spec": {}, "status": {}}
    assert wakes.see("budgets", budget) == (True, False)
    counted = {"metadata": _metadata("b", "b", 2), "spec": {}, "status": {"currentHealthy": 2}}
    assert wakes.see("budgets", counted) == (False, False)
    assert wakes.lose("budgets", "b") == (True, False)


async def test_edited_data_is_looked_at_by_the_look_for_drift(wakes: Wakes) -> None:
    config: JsonObject = {"metadata": _metadata("c", "c"), "data": {"a": "b"}}
    wakes.see("configmaps", config)
    edited = {"metadata": _metadata("c", "c", 2), "data": {"a": "c"}}
    assert wakes.see("configmaps", edited) == (False, True)


async def test_what_a_pass_wrote_itself_wakes_nobody(wakes: Wakes) -> None:
    key = ("demo", "chat")
    wakes.caches.written.put(key, DEPLOYMENTS, deployment(5))
    assert wakes.see("deployments", deployment(5)) == (False, True)
    assert wakes.see("deployments", deployment(6, 2, replicas=1)) == (True, True)
    told = {"metadata": {**_metadata("chat", "s", 7), "generation": 1}, "spec": {}, "status": {"replicas": 1}}
    wakes.caches.written.put(key, INFERENCESERVICES, told)
    assert wakes.see("services", told) == (False, False)
    assert wakes.see("services", {**told, "metadata": {**told["metadata"], "resourceVersion": "8"}}) == (True, False)


async def test_an_object_deleted_right_after_it_was_written_is_missed_at_once(wakes: Wakes) -> None:
    key = ("demo", "chat")
    wakes.caches.written.put(key, DEPLOYMENTS, deployment(5))
    wakes.see("deployments", deployment(5))
    assert wakes.lose("deployments", "d") == (True, True)
    assert wakes.caches.written.view(key, DEPLOYMENTS, []) == []
