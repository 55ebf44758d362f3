"""A router as a process: start, signals, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_router.choice import native

START_SECONDS = 60


class Process:
    def __init__(self, running: asyncio.subprocess.Process, port: int, admin_port: int) -> None:
        self.running = running
        self.url = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin_port}"

    def signal(self, number: int) -> None:
        self.running.send_signal(number)


@contextlib.asynccontextmanager
async def router_process(config: Path, *options: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "paceline_router", "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", "0", "--admin-port", "0", "--log-level", "warning", *options]
    environment = {**os.environ, "PACELINE_ADMIN_TOKEN": "secret"}
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        assert running.stdout is not None
        line = await asyncio.wait_for(running.stdout.readline(), START_SECONDS)
        match = re.search(rb"http://127.0.0.1:(\d+) \(admin port (\d+)\)", line)
        assert match is not None, line
        yield Process(running, int(match[1]), int(match[2]))
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


@contextlib.asynccontextmanager
async def client_of(url: str, body: Any) -> AsyncIterator[httpx.Response]:
    async with httpx.AsyncClient(timeout=30) as client, client.stream("POST", url, json=body) as answer:
        yield answer


async def stops_accepting(router: Process) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                async with httpx.AsyncClient() as fresh:
                    await fresh.get(router.url + "/health/live")
            except httpx.TransportError:
                return
            await asyncio.sleep(0.02)


def routes_file(tmp_path: Path, *ports: int) -> Path:
    path = tmp_path / "routes.yaml"
    replicas = "".join(f"\n  - url: http://127.0.0.1:{port}" for port in ports)
    path.write_text(f"services:\n- name: demo/chat\n  servedName: smollm2\n  replicas:{replicas or ' []'}\n")
    return path


async def test_what_a_request_needs_is_compiled_before_the_ports_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    config = tmp_path / "routes.yaml"
    config.write_text("services: []\n")
    async with router_process(config, "--shutdown-delay", "0"):
        assert [made.name for made in (tmp_path / "cache").glob("native/*/*.so")] == [native.NAME]


async def test_sigterm_finishes_streams_takes_new_requests_for_a_while_and_exits_0(
    tmp_path: Path, peer: Any, helpers: Any
) -> None:
    gate = asyncio.Event()

    async def hold(request: Any) -> None:
        if not request.json.get("stream"):
            await request.answer(helpers.completion())
            return
        request.begin_stream()
        request.event("before")
        await gate.wait()
        request.event("after")
        request.end_stream()

    replica = await peer(hold)
    body = {"model": "smollm2", "messages": []}
    async with router_process(routes_file(tmp_path, replica.port), "--shutdown-delay", "4") as router:
        url = router.url + "/v1/chat/completions"
        async with httpx.AsyncClient() as other, client_of(url, {**body, "stream": True}) as answer:
            parts = answer.aiter_text()
            text = await anext(parts)
            router.signal(signal.SIGTERM)
            while (await other.get(router.url + "/health/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            assert (await other.get(router.admin + "/health/ready")).status_code == 503
            assert (await other.get(router.admin + "/health/live")).status_code == 200
            assert (await other.post(url, json=body)).status_code == 200
            await stops_accepting(router)
            # The running stream still goes on.
            gate.set()
            async for part in parts:
                text += part
        assert "after" in text
        assert text.endswith("data: [DONE]\n\n")
        assert await asyncio.wait_for(router.running.wait(), 30) == 0


async def test_what_does_not_finish_in_time_is_told_so(tmp_path: Path, peer: Any) -> None:
    async def endless(request: Any) -> None:
        request.begin_stream()
        request.event("x")
        await request.gone.wait()

    replica = await peer(endless)
    options = ("--shutdown-delay", "0", "--drain-timeout", "0.1")
    async with router_process(routes_file(tmp_path, replica.port), *options) as router:
        async with client_of(router.url + "/v1/chat/completions", {"model": "smollm2", "stream": True}) as answer:
            parts = answer.aiter_text()
            text = await anext(parts)
            router.signal(signal.SIGTERM)
            async for part in parts:
                text += part
        assert '"error"' in text
        assert "stopping" in text
        assert await asyncio.wait_for(router.running.wait(), 30) == 0


async def test_what_was_not_begun_when_the_time_is_over_may_be_sent_again(tmp_path: Path, peer: Any) -> None:
    asked = asyncio.Event()

    async def silent(request: Any) -> None:
        asked.set()
        await request.gone.wait()

    replica = await peer(silent)
    options = ("--shutdown-delay", "0", "--drain-timeout", "0.1")
    async with router_process(routes_file(tmp_path, replica.port), *options) as router:
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "smollm2", "messages": []}
            asking = asyncio.create_task(client.post(router.url + "/v1/chat/completions", json=body))
            await asyncio.wait_for(asked.wait(), 60)
            router.signal(signal.SIGTERM)
            answer = await asking
        assert await asyncio.wait_for(router.running.wait(), 60) == 0
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "Send the request again." in answer.json()["error"]["message"]


async def test_a_changed_routes_file_is_followed(tmp_path: Path, peer: Any) -> None:
    replica = await peer()
    path = routes_file(tmp_path)
    body = {"model": "smollm2", "messages": []}
    async with router_process(path, "--shutdown-delay", "0") as router, httpx.AsyncClient() as client:
        assert (await client.post(router.url + "/v1/chat/completions", json=body)).status_code == 503
        routes_file(tmp_path, replica.port)
        async with asyncio.timeout(20):
            while (await client.post(router.url + "/v1/chat/completions", json=body)).status_code != 200:
                await asyncio.sleep(0.05)
        headers = {"authorization": "Bearer secret"}
        page = (await client.get(router.admin + "/v1/paceline/routes", headers=headers)).json()
        assert len(page["services"]["demo/chat"]["replicas"]) == 1


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--config", "/nonexistent.yaml"], 2, "/nonexistent.yaml"),
        ([], 4, "--config"),
        (["--log-level", "loud"], 2, "log-level"),
    ],
)
async def test_a_start_that_cannot_work_says_why(tmp_path: Path, options: list[str], code: int, words: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KUBE")} | {"HOME": str(tmp_path)}
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline_router", "--port", "0", "--admin-port", "0", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    _, errors = await asyncio.wait_for(running.communicate(), START_SECONDS)
    assert running.returncode == code
    assert words in errors.decode()
    assert "Traceback" not in errors.decode()
