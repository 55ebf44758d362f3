"""The parts wired together, against an API server that can be told to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline_crds import metrics as catalogue
from paceline_crds.status import ScalingStatus
from paceline_crds.tuning import TuningStatus
from paceline_kube import LEASES, Timing
from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator.app import Operator, Options
from paceline_operator.drift.compare import Drift
from paceline_operator.election import LeaseTiming
from paceline_operator.settings import Settings
from paceline_operator.tuning.told import Told

SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"
PODS = "/api/v1/pods"
SETTINGS = Settings(runtime_image="paceline.io/runtime:1", namespace="home")
LEASE = LeaseTiming(duration=6.0, renew_deadline=3.0, retry=0.2)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


Ports = Callable[[], int]


def build(server: FakeApiServer, ports: Ports, name: str = "one", **options: Any) -> Operator:
    return Operator(
        server.client(),
        server.client(timeout=3.0),
        SETTINGS,
        Options(
            identity=name,
            instance=name,
            bind_host="127.0.0.1",
            health_port=ports(),
            metrics_port=ports(),
            lease=LEASE,
            informers=Timing(backoff_first=0.01, backoff_most=0.1),
            **options,
        ),
    )


@asynccontextmanager
async def running(operator: Operator, passes: list[tuple[str, str]] | None = None) -> AsyncIterator[asyncio.Event]:
    """The operator at work; with `passes`, reconciling only notes the key there."""
    if passes is not None:

        async def note(namespace: str, name: str) -> None:
            passes.append((namespace, name))

        operator.reconciler.reconcile = note  # type: ignore[method-assign]
    stop = asyncio.Event()
    task = asyncio.create_task(operator.run(stop))
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)


async def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def all_told(server: FakeApiServer, passes: list[tuple[str, str]]) -> None:
    """Wait until six informers and Kopf watch and have told what there is; then forget the passes so far."""
    await until(lambda: len(server._watches) == 7)
    quiet = -1
    while quiet != len(passes):
        quiet = len(passes)
        await asyncio.sleep(0.5)
    passes.clear()


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "demo"}, "spec": spec}


def pod(name: str, label: str = "chat") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "demo", "labels": {"paceline.io/service": label}}}


async def test_a_leader_looks_at_everything_and_then_at_what_changes(
    server: FakeApiServer, unused_tcp_port_factory: Ports
) -> None:
    await server.put(SERVICES, service("old"))
    passes: list[tuple[str, str]] = []
    async with running(build(server, unused_tcp_port_factory), passes):
        await until(lambda: ("demo", "old") in passes)
        await server.put(SERVICES, service("chat"))
        await until(lambda: ("demo", "chat") in passes)
        await all_told(server, passes)
        await server.put(PODS, pod("chat-1"))
        await until(lambda: passes)
        await server.put(PODS, pod("stranger", "nobody"))
        await asyncio.sleep(0.2)
        assert set(passes) == {("demo", "chat")}


async def test_a_deletion_missed_while_history_expired_is_reconciled(
    server: FakeApiServer, unused_tcp_port_factory: Ports
) -> None:
    await server.put(SERVICES, service())
    await server.put(PODS, pod("p"))
    passes: list[tuple[str, str]] = []
    operator = build(server, unused_tcp_port_factory)
    async with running(operator, passes):
        await until(lambda: ("demo", "chat") in passes and len(operator.watching.caches.pods) == 1)
        await all_told(server, passes)
        server.silence()
        await server.remove(PODS, "demo", "p")
        await server.forget_history()
        await server.cut()
        await server.resume()
        await until(lambda: passes == [("demo", "chat")])


async def test_without_the_lease_nothing_is_reconciled_until_it_comes_back(
    server: FakeApiServer, unused_tcp_port_factory: Ports
) -> None:
    passes: list[tuple[str, str]] = []
    operator = build(server, unused_tcp_port_factory)
    async with running(operator, passes):
        await until(operator.election.leading.is_set)
        server.refuse(Refusal(500, "InternalError", times=10_000), path="leases")
        await until(operator.election.stopped_leading.is_set)
        await server.put(SERVICES, service())
        await until(lambda: operator.queue.depth() == 1)
        await asyncio.sleep(0.2)
        assert passes == []
        server._refusals.clear()
        await until(lambda: passes)


async def test_a_standby_is_warm_and_takes_over_when_the_leader_stops(
    server: FakeApiServer, unused_tcp_port_factory: Ports
) -> None:
    await server.put(SERVICES, service())
    first_passes: list[tuple[str, str]] = []
    second_passes: list[tuple[str, str]] = []
    first, second = (build(server, unused_tcp_port_factory, name) for name in ("first", "second"))
    async with running(first, first_passes) as stop_first:
        await until(lambda: first_passes)
        async with running(second, second_passes):
            await until(lambda: len(second.watching.caches.services) == 1)
            assert second_passes == []
            stop_first.set()
            await until(lambda: second_passes)
            lease = await server.client().get(LEASES, "paceline-operator", "home")
            assert lease["spec"]["holderIdentity"] == "second"


async def test_a_stop_waits_for_the_pass_under_way_and_then_frees_the_lease(
    server: FakeApiServer, unused_tcp_port_factory: Ports
) -> None:
    await server.put(SERVICES, service())
    operator = build(server, unused_tcp_port_factory)
    begun, finish = asyncio.Event(), asyncio.Event()
    held: list[float] = []

    async def slow(namespace: str, name: str) -> None:
        begun.set()
        await finish.wait()
        held.append(operator.election.remaining())

    operator.reconciler.reconcile = slow  # type: ignore[method-assign]
    async with running(operator) as stop:
        await asyncio.wait_for(begun.wait(), 20)
        stop.set()
        await asyncio.sleep(1)
        assert operator.election.leading.is_set()
        finish.set()
    assert held
    assert held[0] > LEASE.duration - LEASE.renew_deadline
    lease = await server.client().get(LEASES, "paceline-operator", "home")
    assert lease["spec"]["holderIdentity"] == ""


async def test_a_part_that_ends_by_itself_ends_the_process(
    server: FakeApiServer, unused_tcp_port_factory: Ports
) -> None:
    operator = build(server, unused_tcp_port_factory)

    async def broken() -> None:
        raise ZeroDivisionError

    operator.recorder.run = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="events ended by itself"):
        await asyncio.wait_for(operator.run(asyncio.Event()), 30)


async def test_kinds_that_come_late_are_still_watched_by_kopf(
    server: FakeApiServer, unused_tcp_port_factory: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_operator.app.FRONT_WAIT", 0.1)
    resources = server.documents.pop("/apis/paceline.io/v1alpha1")
    server.refuse(Refusal(404, "NotFound", "no such kind", times=10_000), path="/inferenceservices")
    passes: list[tuple[str, str]] = []
    operator = build(server, unused_tcp_port_factory)
    url = f"http://127.0.0.1:{operator._options.health_port}/healthz"
    async with running(operator, passes), aiohttp.ClientSession() as session:

        async def probe() -> int:
            try:
                async with session.get(url) as response:
                    return response.status
            except aiohttp.ClientError:
                return 0

        async with asyncio.timeout(20):
            while await probe() != 200:
                await asyncio.sleep(0.05)
        server.documents["/apis/paceline.io/v1alpha1"] = resources
        server._refusals.clear()
        # Each informer, and Kopf.
        await until(lambda: len(server._watches) == len(operator.watching.all()) + 1)


async def test_probe_and_metrics_show_the_state(server: FakeApiServer, unused_tcp_port_factory: Ports) -> None:
    await server.put(SERVICES, service())
    passes: list[tuple[str, str]] = []
    operator = build(server, unused_tcp_port_factory)
    options = operator._options
    async with running(operator, passes), aiohttp.ClientSession() as session:
        await until(lambda: passes)
        async with session.get(f"http://127.0.0.1:{options.metrics_port}/metrics") as response:
            metrics = await response.text()
        health = await operator.health()
    assert health["leading"] is True
    assert health["synced"] is True
    assert set(health["informerAgeSeconds"]) == {
        "services",
        "revisions",
        "deployments",
        "configmaps",
        "pods",
        "budgets",
        "routers",
    }
    for line in (
        "paceline_operator_leader 1.0",
        "paceline_operator_queue_depth 0.0",
        'paceline_operator_informer_objects{resource="services"} 1.0',
        'paceline_operator_informer_synced{resource="pods"} 1.0',
        'paceline_operator_reconcile_total{result="error"} 0.0',
        "paceline_operator_front_restarts_total 0.0",
    ):
        assert line in metrics
    assert "_created" not in metrics


async def test_metrics_are_exactly_those_of_the_catalogue(
    server: FakeApiServer, unused_tcp_port_factory: Ports
) -> None:
    rolled = {"phase": "Judging", "step": 1, "weight": 5, "verdict": "NotKnown"}
    await server.put(SERVICES, {**service(slo={"ttft": {"p90": "800ms"}}), "status": {"rollout": rolled}})
    operator = build(server, unused_tcp_port_factory)
    reconcile = AsyncMock(side_effect=RuntimeError("a bug"))  # the errors' counter has series once there is an error
    operator.reconciler.reconcile = reconcile  # type: ignore[method-assign]
    errors = catalogue.OPERATOR_RECONCILE_ERRORS.name
    operator.drift._found["demo", "chat"] = Drift()  # nor has a service that was never looked at
    operator.drift._due["demo", "chat"] = float("inf")
    operator.schemas.lacks = ()  # nor is there anything to say before the CRDs were compared
    decided = ScalingStatus(pool="default", desired=2, reason="Steady", since="2026-01-01T00:00:00Z")
    operator.scaling.all = lambda: {("demo", "chat"): {"default": decided}}  # type: ignore[method-assign]
    knobs = TuningStatus(pool="default", knobs={"maxNumSeqs": 8}, started={}, reason="Steady", since=decided.since)
    operator.tuning.all = lambda: {("demo", "chat"): {"default": Told(knobs)}}  # type: ignore[method-assign]
    operator.canary.all = lambda: {("demo", "chat"): {}}  # type: ignore[method-assign]
    for name in ("chat", "gone"):
        operator.recorder.event(service(name), type="Normal", reason="Ready", message="words")
    url = f"http://127.0.0.1:{operator._options.metrics_port}/metrics"
    async with running(operator), aiohttp.ClientSession() as session:
        await until(lambda: operator.metrics.registry.get_sample_value(errors, {"reason": "RuntimeError"}))
        async with session.get(url) as response:
            text = await response.text()
    assert 'service="gone"' not in text
    shown = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            family.documentation,
            {frozenset(sample.labels) - {"le"} for sample in family.samples},
        )
        for family in text_string_to_metric_families(text)
    }
    assert shown == {m.name: (m.kind, m.help, {frozenset(m.labels)}) for m in catalogue.OPERATOR}


async def test_an_age_that_is_not_known_is_absent(server: FakeApiServer, unused_tcp_port_factory: Ports) -> None:
    operator = build(server, unused_tcp_port_factory)
    get = operator.metrics.registry.get_sample_value
    assert get("paceline_operator_informer_age_seconds", {"resource": "pods"}) is None
    assert get("paceline_operator_informer_synced", {"resource": "pods"}) == 0
    assert (await operator.health())["informerAgeSeconds"]["pods"] is None


async def test_several_namespaces_share_one_cache(server: FakeApiServer, unused_tcp_port_factory: Ports) -> None:
    for namespace in ("a", "b", "c"):
        await server.put(SERVICES, {"metadata": {"name": "chat", "namespace": namespace}, "spec": {}})
    passes: list[tuple[str, str]] = []
    operator = build(server, unused_tcp_port_factory, namespaces=("a", "b"))
    async with running(operator, passes):
        await until(lambda: set(passes) == {("a", "chat"), ("b", "chat")})
        # A new list of one namespace must not drop the other's objects.
        await server.forget_history()
        await server.put(SERVICES, {"metadata": {"name": "more", "namespace": "a"}, "spec": {}})
        await until(lambda: ("a", "more") in passes)
        assert len(operator.watching.caches.services) == 3


def test_a_write_that_may_outlast_a_lost_lease_is_refused(unused_tcp_port_factory: Ports) -> None:
    async def make() -> None:
        async with FakeApiServer() as server:
            client = server.client(timeout=4.0)
            options = Options(identity="x", instance="x", lease=LEASE)
            Operator(server.client(), client, SETTINGS, options)

    with pytest.raises(ValueError, match="a write may take 4 s, but a lease that is lost only leaves 3 s"):
        asyncio.run(make())


async def test_what_kopf_tells_counts_where_our_own_informer_has_not_shown_it(
    server: FakeApiServer, unused_tcp_port_factory: Ports
) -> None:
    operator = build(server, unused_tcp_port_factory)
    operator.watching.caches.services.put({"metadata": {"name": "chat", "namespace": "demo", "resourceVersion": "7"}})
    for version, depth in (("6", 0), ("7", 0), ("8", 1)):
        operator._knock(("demo", "chat"), version)
        assert operator.queue.depth() == depth
    operator._knock(("demo", "unknown"), "5")
    assert operator.queue.depth() == 2
