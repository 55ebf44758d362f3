"""The routes file, the admin API and its token, metrics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from paceline_router.flow.dataplane import DataPlane
from paceline_router.flow.health import CONNECT_FAILURES, Event
from paceline_router.report.admin import make_app
from paceline_router.report.guard import OPEN_PATHS
from paceline_router.report.tokens import AdminToken
from paceline_router.settings import Settings
from paceline_router.table.file import RoutesFileError, read_table
from paceline_router.table.file_source import FileSource
from paceline_router.table.records import Table

GOOD = """
services:
- name: demo/chat
  servedName: smollm2
  replicas:
  - url: http://127.0.0.1:8001
    name: a
    revision: chat-1
  - url: http://[::1]:8002/
    pool: long
    draining: true
  pools: [{name: long, shapes: [VeryLong]}]
  traffic:
    generation: 7
    entries: [{revision: chat-1, weight: 100}]
- name: demo/code
"""


def test_a_routes_file_becomes_a_table(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(GOOD)
    table = read_table(path)
    assert {key: service.served_name for key, service in table.services.items()} == {
        "demo/chat": "smollm2",
        "demo/code": "code",
    }
    first, second = table.replicas.values()
    assert (first.name, first.address, first.ready, first.revision) == ("a", "127.0.0.1:8001", True, "chat-1")
    assert (second.pool, second.address, second.ready, second.draining) == ("long", "[::1]:8002", False, True)
    assert table.services["demo/chat"].generation == 7


def test_a_routes_file_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    path.write_text(json.dumps({"services": [{"name": "a/b", "replicas": [{"url": "http://h:1"}]}]}))
    assert next(iter(read_table(path).replicas.values())).address == "h:1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("services: [", "not YAML"),
        ("[]", "write `services:` and under it a list"),
        ("services: [{name: chat}]", "chat: name: write NAMESPACE/NAME"),
        ("services: [{name: a/b, replica: []}]", "a/b: replica: there is no such field"),
        ("services: [{name: a/b}, {name: a/b}]", "twice"),
        ("services: [{name: a/b, replicas: [{url: 'http://h:1'}, {url: 'http://h:1'}]}]", "twice"),
        ("services: [{name: a/b, replicas: [{url: 'https://h:1'}]}]", "url"),
        ("services: [{name: a/b, replicas: [{url: 'http://h:99999'}]}]", "65535"),
        ("services: [{name: a/b, traffic: {entries: [{revision: r, weight: 101}]}}]", "weight"),
    ],
)
def test_a_bad_routes_file_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    with pytest.raises(RoutesFileError, match=re.escape(words)):
        read_table(path)


def test_a_missing_routes_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RoutesFileError, match=r"none\.yaml"):
        read_table(tmp_path / "none.yaml")


async def test_a_changed_file_is_read_again_and_a_bad_one_keeps_the_last_table(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(GOOD)
    used: list[Table] = []
    source = FileSource(path, lambda table, changed: used.append(table))
    await source.load()
    assert used == [read_table(path)]
    await source.look()
    assert len(used) == 1
    path.write_text("services: [")
    await source.look()
    assert "not YAML" in (source.error or "")
    assert len(used) == 1
    path.write_text("services: []")
    await source.look()
    assert source.error is None
    assert used[-1] == Table()


async def test_a_file_that_cannot_be_used_at_the_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text("services: [")
    with pytest.raises(RoutesFileError):
        await FileSource(path, lambda table, changed: None).load()


def test_the_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = AdminToken(path)
    assert not token.matches("Bearer ")
    path.write_text("first\n")
    assert token.matches("Bearer first")
    assert token.matches("bearer first")
    # As kubelets do it: a new file takes the place of the old one.
    (tmp_path / "new").write_text("second")
    os.replace(tmp_path / "new", path)
    assert token.matches("Bearer second")
    assert not token.matches("Bearer first")
    path.unlink()
    assert not token.matches("Bearer second")


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_a_token_nobody_is_let_in(value: str | None) -> None:
    token = AdminToken(value=value)
    assert not any(token.matches(given) for given in (None, "", "Bearer", "Bearer ", "Bearer   ", "Basic x"))


class Source:
    error: str | None = "the API server is away"

    def age(self) -> float | None:
        return 12.5


@pytest.fixture
def admin(helpers: Any) -> Iterator[TestClient]:
    plane = DataPlane(Settings())
    plane.use(helpers.table_of(1, 2, generation=4))
    with TestClient(make_app(plane, Source(), AdminToken(value="secret"))) as client:
        yield client


ROUTES = [
    "/v1/paceline/routes",
    "/v1/paceline/samples",
    "/v1/paceline/demand",
    "/v1/paceline/split",
    "/v1/paceline/status",
    "/v1/paceline/none",
    "/",
    "//metrics",
    "/metrics/",
    "/METRICS",
    "/health/../v1/x",
    "/docs",
]


WRONG = [{}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}, {"authorization": "secret"}]


def test_everything_but_health_and_metrics_needs_the_token(admin: TestClient) -> None:
    for path in ROUTES:
        for headers in WRONG:
            for method in ("GET", "HEAD", "OPTIONS", "POST"):
                answer = admin.request(method, f"http://testserver{path}", headers=headers)
                assert answer.status_code == 401, (method, path, headers)


def test_two_authorization_headers_are_refused(admin: TestClient) -> None:
    headers = [("authorization", "Bearer secret"), ("authorization", "Bearer secret")]
    assert admin.get("/v1/paceline/routes", headers=headers).status_code == 401


def test_every_route_of_the_application_is_open_by_decision_or_guarded(admin: TestClient) -> None:
    paths = {route.path for route in admin.app.routes}  # type: ignore[attr-defined]
    assert paths >= OPEN_PATHS
    for path in paths:
        assert (admin.get(path).status_code == 401) == (path not in OPEN_PATHS)


def test_the_routes_page_acknowledges_the_generation(admin: TestClient) -> None:
    page = admin.get("/v1/paceline/routes", headers={"authorization": "Bearer secret"}).json()
    assert page["synced"] is True
    assert page["error"] == "the API server is away"
    assert page["ageSeconds"] == 12.5
    service = page["services"]["demo/chat"]
    assert service["generation"] == 4
    assert [replica["name"] for replica in service["replicas"]] == ["pod-0", "pod-1"]
    assert {"name", "uid", "pool", "revision", "ready", "draining"} <= service["replicas"][0].keys()
    assert service["replicas"][0]["revision"] is None


def test_a_data_path_that_does_not_move_makes_liveness_red(helpers: Any) -> None:
    plane = DataPlane(Settings())
    with TestClient(make_app(plane, Source(), AdminToken())) as client:
        assert client.get("/health/live").status_code == 200
        plane.swept_at = time.monotonic() - 60
        assert client.get("/health/live").status_code == 503
        assert client.get("/health/ready").status_code == 503
        plane.use(Table())
        assert client.get("/health/ready").status_code == 200


async def test_a_replica_that_does_not_know_its_load_yet_sends_no_unreadable_report(router: Any, peer: Any) -> None:
    from paceline_router.flow.polling import poll

    async def not_yet(request: Any) -> None:
        error = {"error": {"message": "The engine has not reported its load yet; try again soon."}}
        await request.answer(error, "503 Service Unavailable", headers="retry-after: 1\r\n")

    async def nonsense(request: Any) -> None:
        await request.answer({"running": "many"})

    starting = await peer(not_yet, serves_get=True)
    service = await router(starting)
    task = asyncio.create_task(poll(service.plane))
    async with asyncio.timeout(10):
        while len(starting.received) < 2:  # the first poll is over once there is a second
            await asyncio.sleep(0.005)
        backend = service.plane.backends["r0"]
        assert not backend.reported
        assert service.plane.metrics.unusual_reports == 0
        starting.handler = nonsense
        while service.plane.metrics.unusual_reports == 0:
            await asyncio.sleep(0.005)
    task.cancel()
    assert not backend.reported


async def test_load_is_polled_and_an_ejected_replica_is_found_again(router: Any, peer: Any, helpers: Any) -> None:
    from paceline_router.flow.polling import poll

    async def load(request: Any) -> None:
        assert request.path == "/v1/paceline/load"
        report = {"running": 3, "waiting": 1, "kv_percent": 5, "prefill_tokens": 0, "decode_tokens": 9, "sequence": 8}
        await request.answer(report)

    service = await router(await peer(load, serves_get=True), await peer(), await peer())
    reporting, silent = (service.plane.backends[uid] for uid in ("r0", "r1"))
    for backend in (reporting, silent):
        backend.fresh_until = 0.0
        for _ in range(CONNECT_FAILURES):
            service.plane.polled(backend, Event.CONNECT_FAILED)
        assert backend.health.ejected
    task = asyncio.create_task(poll(service.plane))
    async with asyncio.timeout(10):
        while reporting.health.ejected or silent.health.ejected:
            await asyncio.sleep(0.005)
    task.cancel()
    assert (reporting.reported, reporting.others) == (True, 4)
    assert (silent.reported, silent.others) == (False, 0)
