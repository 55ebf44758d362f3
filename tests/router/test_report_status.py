"""A router stays ready while its services are dead, and says of each service how it fares."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from paceline_router.flow.dataplane import DataPlane
from paceline_router.flow.health import CONNECT_FAILURES, FAILURES, Event
from paceline_router.flow.polling import poll
from paceline_router.processes.merging import Exposition, merge_expositions
from paceline_router.report.admin import make_app, metrics_page
from paceline_router.report.status import State, merge_status, state_of, status_page
from paceline_router.report.tokens import AdminToken
from paceline_router.settings import Settings
from paceline_router.table.records import Table

LINE = 'paceline_router_service_available{namespace="demo",service="chat"}'
BODY = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return None


def available(plane: DataPlane) -> str:
    (line,) = [line for line in metrics_page(plane, Source()).splitlines() if line.startswith(LINE)]
    return line.rpartition(" ")[2]


@pytest.mark.parametrize(
    ("replicas", "ready", "answer", "state"),
    [
        (2, 2, 2, State.SERVING),
        (3, 2, 1, State.DEGRADED),
        (2, 2, 0, State.UNREACHABLE),
        (2, 0, 0, State.NOT_READY),
        (0, 0, 0, State.NO_REPLICAS),
    ],
)
def test_a_services_state_is_that_of_its_replicas(replicas: int, ready: int, answer: int, state: State) -> None:
    assert state_of(replicas, ready, answer) is state


@pytest.mark.parametrize(("event", "times"), [(Event.CONNECT_FAILED, CONNECT_FAILURES), (Event.SILENT, FAILURES)])
def test_with_every_replica_dead_the_router_is_ready_and_the_service_is_not_available(
    helpers: Any, event: Event, times: int
) -> None:
    plane = DataPlane(Settings())
    plane.use(helpers.table_of(1, 2))
    living = plane.living[helpers.KEY]
    client = TestClient(make_app(plane, Source(), AdminToken(value="secret")))
    assert available(plane) == "1"
    first, last = living.backends
    for _ in range(times):
        living.judge(first, event, plane.now())
    assert (available(plane), status_page(plane)["services"][helpers.KEY]["state"]) == ("1", "Degraded")
    for _ in range(times):
        living.judge(last, event, plane.now())
    assert not last.health.ejected  # the last one never is
    assert available(plane) == "0"
    assert client.get("/health/ready").status_code == 200
    assert client.get("/health/live").status_code == 200
    page = client.get("/v1/paceline/status", headers={"authorization": "Bearer secret"}).json()
    assert page["ready"] is True
    assert page["services"][helpers.KEY] == {
        "state": "Unreachable",
        "available": False,
        "replicas": 2,
        "ready": 2,
        "answering": 0,
        "held": 0,
        "heldByPool": {},
        "oldestWaitSeconds": 0.0,
        "message": "replicas are ready in the table, and none answers this router: see what is between them",
    }
    living.judge(last, Event.ANSWERED, plane.now())
    assert available(plane) == "1"


async def test_dead_replicas_are_found_without_a_request_and_so_is_their_return(
    router: Any, peer: Any, helpers: Any, closed_port: int
) -> None:
    service = await router(closed_port)
    polls = asyncio.create_task(poll(service.plane))
    try:
        async with asyncio.timeout(60):
            while available(service.plane) != "0":
                await asyncio.sleep(0.05)
            assert service.plane.ready
            service.plane.use(helpers.table_of(await peer(serves_get=True)))
            while available(service.plane) != "1":
                await asyncio.sleep(0.05)
    finally:
        polls.cancel()
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200


def test_services_without_replicas_are_told_apart(helpers: Any) -> None:
    plane = DataPlane(Settings())
    assert status_page(plane) == {"ready": False, "services": {}}
    plane.use(helpers.table_of())
    assert status_page(plane)["services"][helpers.KEY]["state"] == "NoReplicas"
    assert available(plane) == "0"
    plane.use(Table())
    assert status_page(plane) == {"ready": True, "services": {}}


def test_of_several_processes_the_one_that_sees_least_counts(helpers: Any) -> None:
    plane = DataPlane(Settings())
    plane.use(helpers.table_of(1, 2))
    well = status_page(plane)
    for _ in range(CONNECT_FAILURES):
        for backend in plane.living[helpers.KEY].backends:
            plane.living[helpers.KEY].judge(backend, Event.CONNECT_FAILED, plane.now())
    dead = metrics_page(plane, Source())
    alive = dead.replace(f"{LINE} 0", f"{LINE} 1")
    assert f"{LINE} 0\n" in merge_expositions([Exposition.parse(alive), Exposition.parse(dead)]).text()
    assert f"{LINE} 1\n" in merge_expositions([Exposition.parse(alive), Exposition.parse(alive)]).text()
    ill = status_page(plane)
    well["services"][helpers.KEY] |= {"held": 1, "heldByPool": {"long": 1}, "oldestWaitSeconds": 2.0}
    ill["services"][helpers.KEY] |= {"held": 3, "heldByPool": {"long": 2, "default": 1}, "oldestWaitSeconds": 1.0}
    merged = merge_status([well, ill])
    waits = {name: merged["services"][helpers.KEY][name] for name in ("held", "heldByPool", "oldestWaitSeconds")}
    assert waits == {"held": 4, "heldByPool": {"long": 3, "default": 1}, "oldestWaitSeconds": 2.0}
    assert merged["services"][helpers.KEY]["state"] == "Unreachable"
    assert merged["ready"]
    assert merge_status([well, {"ready": False, "services": {}}]) == {"ready": False, "services": {}}
