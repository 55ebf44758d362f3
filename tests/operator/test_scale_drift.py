"""Looks at thousands of replicas: what has not changed is neither asked for, nor sent, nor compared again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from paceline_kube import JsonObject, Key, Store
from paceline_kube.testing import FakeApiServer
from paceline_operator.drift import keeper as keeper_module
from paceline_operator.drift.compare import World
from paceline_operator.drift.keeper import DriftKeeper
from paceline_operator.drift.replicas import Replicas
from paceline_operator.reconcile import Reconciler
from paceline_operator.settings import Settings
from paceline_operator.stores import Caches, child_indexes, service_indexes

KEY: Key = ("demo", "chat")


class Fleet:
    """Replicas behind one port, and the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.config: dict[str, Any] = {"model": "m"}
        self.pods: list[JsonObject] = []
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        etag = f'"{hash(str(self.config))}"'
        if request.headers.get("if-none-match") == etag:
            self.asked.append("same")
            return web.Response(status=304, headers={"etag": etag})
        self.asked.append("sent")
        return web.json_response(self.config, headers={"etag": etag})

    def pod(self, name: str, restarts: int = 0) -> JsonObject:
        ports = [{"name": "metrics", "containerPort": self.port}]
        return {
            "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
            "spec": {"containers": [{"name": "runtime", "ports": ports}]},
            "status": {
                "podIP": "127.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "runtime", "restartCount": restarts}],
            },
        }

    def world(self, _: Key) -> World:
        return World("chat", {}, frozenset({""}), pods=tuple(self.pods))


@pytest.fixture
async def fleet(unused_tcp_port: int) -> AsyncIterator[Fleet]:
    fleet = Fleet()
    application = web.Application()
    application.router.add_get("/v1/paceline/config", fleet.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    fleet.port = unused_tcp_port
    fleet.pods = [fleet.pod(name) for name in ("a", "b", "c")]
    yield fleet
    await runner.cleanup()


@pytest.fixture
def replicas(fleet: Fleet) -> Replicas:
    return Replicas(lambda: fleet.now)


async def test_a_young_report_of_a_pod_that_has_not_changed_still_counts(fleet: Fleet, replicas: Replicas) -> None:
    await replicas.ask(KEY, fleet.pods, fresh=15.0)
    fleet.pods[0] = fleet.pod("a", restarts=1)
    fleet.now = 10.0
    reports = await replicas.ask(KEY, fleet.pods, fresh=15.0)
    assert fleet.asked == ["sent", "sent", "sent", "same"]
    assert [reports[name].at for name in ("a", "b", "c")] == [10.0, 0.0, 0.0]
    fleet.now = 15.0
    fleet.config = {"model": "other"}
    reports = await replicas.ask(KEY, fleet.pods, fresh=15.0)
    assert fleet.asked[4:] == ["sent", "sent"]
    assert reports["b"].config == {"model": "other"}


async def test_replicas_that_say_the_same_share_one_copy(fleet: Fleet, replicas: Replicas) -> None:
    reports = await replicas.ask(KEY, fleet.pods)
    assert len({id(report.config) for report in reports.values()}) == 1


async def test_pods_and_services_that_are_gone_are_forgotten(fleet: Fleet, replicas: Replicas) -> None:
    await replicas.ask(KEY, fleet.pods)
    await replicas.ask(KEY, fleet.pods[:1])
    await replicas.ask(KEY, fleet.pods[:2])
    assert fleet.asked == ["sent", "sent", "sent", "same", "same", "sent"]
    replicas.forget(KEY)
    await replicas.ask(KEY, fleet.pods[:1])
    assert fleet.asked[6:] == ["sent"]


async def test_looks_end_with_their_service_and_one_made_anew_begins_without_what_was_found(fleet: Fleet) -> None:
    service: JsonObject = {"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": "u"}}
    services = [service]
    keeper = DriftKeeper(
        world=fleet.world, services=lambda: services, changed=lambda _: None, clock=lambda: fleet.now, interval=30.0
    )

    async def go_on(seconds: float) -> int:
        before = keeper.looks
        for _ in range(int(seconds)):
            fleet.now += 1.0
            await keeper.look_at_due()
        return keeper.looks - before

    assert await go_on(100) >= 2
    assert keeper.of(KEY) is not None
    services.clear()
    asked = len(fleet.asked)
    assert (await go_on(100), len(fleet.asked)) == (0, asked)
    assert keeper.of(KEY) is None
    services.append(service)
    assert keeper.of(KEY) is None
    assert await go_on(100) >= 2


async def test_what_has_not_changed_is_not_compared_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[World] = []
    compare = keeper_module.compare
    monkeypatch.setattr(keeper_module, "compare", lambda world: compared.append(world) or compare(world))
    changed: list[Key] = []
    keeper = DriftKeeper(
        world=fleet.world, services=lambda: [], changed=changed.append, clock=lambda: fleet.now, interval=30.0
    )
    first = await keeper.look(KEY)
    for _ in range(3):
        fleet.now += 30.0
        assert await keeper.look(KEY) is first
    assert (len(compared), keeper.looks, changed) == (1, 4, [KEY])
    fleet.config = {"model": "other"}
    fleet.now += 30.0
    await keeper.look(KEY)
    fleet.pods.append(fleet.pod("d"))
    await keeper.look(KEY)
    assert len(compared) == 3


async def test_a_world_is_put_together_once_while_its_objects_stay_as_they_are() -> None:
    service: JsonObject = {
        "metadata": {"name": "chat", "namespace": "demo", "uid": "u", "resourceVersion": "1"},
        "spec": {"model": {"source": "package://m"}},
    }
    caches = Caches(
        services=Store(service_indexes()),
        revisions=Store(child_indexes()),
        deployments=Store(child_indexes()),
        configmaps=Store(child_indexes()),
        pods=Store(child_indexes()),
        budgets=Store(child_indexes()),
        routers=Store(),
    )
    caches.services.put(service)
    told: Any = None
    settings = Settings(runtime_image="r:1", namespace="paceline-system")
    async with FakeApiServer() as server:
        reconciler = Reconciler(server.client(), caches, told, lambda: 0.0, settings)
        first = reconciler.world(KEY)
        assert first is not None
        assert reconciler.world(KEY) is first
        labels = {"paceline.io/service": "chat"}
        pod = {"metadata": {"name": "p", "namespace": "demo", "uid": "p", "resourceVersion": "2", "labels": labels}}
        caches.pods.put({**pod, "spec": {"containers": []}})
        second = reconciler.world(KEY)
        assert second is not None
        assert [p["metadata"]["name"] for p in second.pods] == ["p"]
        caches.services.remove(KEY)
        assert reconciler.world(KEY) is None
        await reconciler.close()
