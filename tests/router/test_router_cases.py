"""Faults that others have had, as small inputs, where no other test holds them: see docs/reference/router-cases.md."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_crds.routing import RoutingSpec
from paceline_crds.tenancy import TenancySpec
from paceline_router.flow.polling import poll
from paceline_router.table.policy import make_policy
from paceline_router.table.records import Replica, Service, Table
from paceline_router.tenancy.keys import Keys
from paceline_router.wire.requests import MODELS, PROXIED

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
START_SECONDS = 60


@asynccontextmanager
async def stopped_process() -> AsyncIterator[int]:
    """A port at which connections are taken and nothing is ever said, as that of a stopped process."""
    writers: list[asyncio.StreamWriter] = []

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0, backlog=1024)
    yield server.sockets[0].getsockname()[1]
    for writer in writers:
        writer.close()
    server.close()


async def test_a_hung_replica_takes_nothing_from_the_others(router: Any, peer: Any) -> None:
    """Two services: one with a hung replica alone, one with a hung and a healthy one."""
    healthy = await peer()
    services = {f"demo/{name}": Service(f"demo/{name}", name) for name in ("alone", "both")}
    async with stopped_process() as hung, contextlib.AsyncExitStack() as stack:
        replicas = {
            uid: Replica(uid, uid, service, "default", "h", "127.0.0.1", port, True, False)
            for uid, service, port in (
                ("a", "demo/alone", hung),
                ("b", "demo/both", hung),
                ("c", "demo/both", healthy.port),
            )
        }
        service = await router(table=Table(services, {}, replicas), first_byte_timeout=2.0)
        polls = asyncio.create_task(poll(service.plane))
        stack.callback(polls.cancel)
        limits = httpx.Limits(max_connections=None)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=service.url, timeout=120, limits=limits))

        async def ask(model: str) -> httpx.Response:
            return await client.post(PATH, json={**BODY, "model": model, "stream": True})

        answers = await asyncio.gather(*(ask(("alone", "both")[number % 2]) for number in range(100)))
        alone, both = answers[::2], answers[1::2]
        assert {answer.status_code for answer in alone} == {504}
        assert all("sent nothing for 2 s" in answer.json()["error"]["message"] for answer in alone)
        # What was sent to the hung one before anybody knew has ended, and all that came to the other one was served.
        assert {answer.status_code for answer in both} == {200, 504}
        assert sum(answer.status_code == 200 for answer in both) == len(healthy.received)
        assert not service.plane.exchanges
        # Once its silence is known nobody is sent there while the other one is left, not even to see how it is.
        async with asyncio.timeout(START_SECONDS):
            while not service.plane.backends["b"].stale(service.plane.now()):
                await asyncio.sleep(0.05)
        later = await asyncio.gather(*(ask("both") for _ in range(20)))
        assert {answer.status_code for answer in later} == {200}


async def guarded(router: Any, peer: Any, helpers: Any) -> tuple[Any, Any]:
    """A service with keys, and its replica."""
    tenancy = TenancySpec.model_validate_json(json.dumps({"identity": {"from": "APIKey", "secretName": "keys"}}))
    replica = await peer()
    service = await router(table=helpers.table_of(replica, policy=make_policy(RoutingSpec(), tenancy)))
    service.plane.use_keys(helpers.KEY, Keys({hashlib.sha256(b"good").digest(): "blue"}))
    return service, replica


SPELLINGS = ("{}", "/{}", "{}/", "/x/..{}", "{}?a=/health", "/%2e%2e{}", "http://h{}", "/demo/chat{}", "/demo/chat/{}")


async def test_without_a_key_no_path_by_any_spelling_or_method_reaches_a_replica(
    router: Any, peer: Any, helpers: Any
) -> None:
    service, replica = await guarded(router, peer, helpers)
    body = json.dumps(BODY).encode()
    paths = [path.decode() for path in (*PROXIED, MODELS, MODELS + b"/smollm2", b"/metrics", b"/v1/paceline/routes")]
    targets = [spelling.format(path) for path in paths for spelling in SPELLINGS]
    targets += [path.upper() for path in paths] + [path.replace("/v1/", "/v1%2f") for path in paths]
    for authorization in ("", "authorization: Bearer bad\r\n", "authorization: Bearer \r\n"):
        for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE"):
            for target in targets:
                head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{authorization}"
                sent = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
                status = int((await service.raw(sent)).split(b" ", 2)[1])
                assert status in (400, 401, 404, 405), (method, target, authorization, status)
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    said = await service.raw(f"GET {PATH} HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n".encode())
    assert said.startswith(b"HTTP/1.1 400")
    assert replica.received == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("authorization: Bearer good\r\nauthorization: Bearer good\r\n", 400),
        ("authorization: Bearer good\r\nx-paceline-priority: 1\r\nx-paceline-priority: 0\r\n", 400),
        ("authorization: Bearer good\r\nx-paceline-tenant: a\r\nX-Paceline-Tenant: b\r\n", 400),
        (f"authorization: Bearer good\r\nx-paceline-session: {'s' * 65536}\r\n", 431),
        ("authorization: Bearer good\r\nx-paceline-session: a\rx-paceline-tenant: red\r\n", 400),
        ("authorization: Bearer good\r\nx-paceline-session: a\nx-paceline-tenant: red\r\n", 400),
        ("authorization: Bearer good\r\nx-paceline-priority: 100000\r\n", 400),
    ],
)
async def test_hints_that_are_forged_twice_or_too_long_are_refused(
    router: Any, peer: Any, helpers: Any, headers: str, status: int
) -> None:
    service, replica = await guarded(router, peer, helpers)
    body = json.dumps(BODY).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {len(body)}\r\n\r\n"
    assert int((await service.raw(head.encode() + body)).split(b" ", 2)[1]) == status
    assert replica.received == []


async def test_nobody_chooses_a_replica_a_tenant_or_a_rank_before_others_by_a_header(
    router: Any, peer: Any, helpers: Any
) -> None:
    service, replica = await guarded(router, peer, helpers)
    elsewhere = await peer()
    headers = {
        "authorization": "Bearer good",
        "x-target-pod": f"127.0.0.1:{elsewhere.port}",
        "x-gateway-destination-endpoint": f"127.0.0.1:{elsewhere.port}",
        "x-paceline-pool": "other",
        "x-paceline-tenant": "red",
        "x-tenant": "red",
        "x-priority": "1000",
    }
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        assert (await client.post(PATH, json=BODY, headers=headers)).status_code == 200
    assert elsewhere.received == []
    seen = replica.received[0].headers
    assert seen["x-paceline-tenant"] == "blue"
    assert not {"x-target-pod", "x-tenant", "x-priority", "x-paceline-pool", "authorization"} & set(seen)


@pytest.mark.long
async def test_a_router_that_is_killed_under_load_knows_all_models_again(tmp_path: Path, peer: Any) -> None:
    peers = [await peer() for _ in range(3)]
    replicas = [{"url": f"http://127.0.0.1:{made.port}"} for made in peers]
    models = [f"model-{number}" for number in range(10)]
    config = tmp_path / "routes.json"
    config.write_text(json.dumps({"services": [{"name": f"demo/{name}", "replicas": replicas} for name in models]}))

    async def load(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=START_SECONDS) as client:
            while True:
                await client.post(PATH, json={**BODY, "model": models[0]})

    for _ in range(5):
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "paceline_router", "--config", str(config), "--host", "127.0.0.1"),
            *("--port", "0", "--admin-port", "0", "--log-level", "error"),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert running.stdout is not None
            line = await asyncio.wait_for(running.stdout.readline(), START_SECONDS)
            match = re.search(rb"http://127.0.0.1:\d+", line)
            assert match is not None, line
            url = match[0].decode()
            async with httpx.AsyncClient(base_url=url, timeout=START_SECONDS) as client:
                # From the first moment on: ready means that the table is there.
                assert (await client.get("/health/ready")).status_code == 200
                assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == models
                for model in models:
                    assert (await client.post(PATH, json={**BODY, "model": model})).status_code == 200
            loads = [asyncio.create_task(load(url)) for _ in range(8)]
            before = sum(len(made.received) for made in peers)
            async with asyncio.timeout(START_SECONDS):
                while sum(len(made.received) for made in peers) < before + 50:
                    await asyncio.sleep(0.01)
        finally:
            if running.returncode is None:
                os.kill(running.pid, signal.SIGKILL)
            await running.wait()
        ended = await asyncio.gather(*loads, return_exceptions=True)
        assert all(isinstance(error, httpx.TransportError) for error in ended)


def test_the_page_of_cases_names_tests_that_there_are() -> None:
    tests = Path(__file__).parents[1]
    page = (tests.parent / "docs/reference/router-cases.md").read_text()
    rows = re.findall(r"^\| (C\d+) [^|]+\| (right|otherwise|not) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| C", page, re.MULTILINE)) >= 15
    held = {path.name: path.read_text() for path in tests.glob("*/test_*.py")}
    for case, verdict, words in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", words)
        assert named or verdict != "right", case
        for file, name in named:
            assert f"def {name}(" in held[file], (case, file, name)
