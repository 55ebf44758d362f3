"""`paceline route --endpoint-picker-port` as a process, and what it answers without its certificate."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the endpoint picker needs the extra `epp` (grpcio)")
pytest.importorskip("google.protobuf", reason="the endpoint picker needs the extra `epp` (protobuf)")

import grpc
import grpc.aio

from paceline_router.epp import ext_proc_pb2 as pb
from paceline_router.epp.server import HEALTH

START_SECONDS = 60
ROUTES = {"services": [{"name": "demo/chat", "replicas": [{"url": "http://127.0.0.1:1"}]}]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.asynccontextmanager
async def router(folder: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    config = folder / "routes.json"
    config.write_text(json.dumps(ROUTES))
    command = [sys.executable, "-m", "paceline_router", "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", "0", "--admin-port", "0", "--log-level", "warning", "--shutdown-delay", "0", *options]
    running = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ}
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def ready(running: asyncio.subprocess.Process) -> None:
    assert running.stdout is not None
    line = await asyncio.wait_for(running.stdout.readline(), START_SECONDS)
    assert b"ready" in line


async def health(port: int) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(
            f"/{HEALTH}/Check",
            request_serializer=pb.HealthCheckRequest.SerializeToString,
            response_deserializer=pb.HealthCheckResponse.FromString,
        )
        return int((await check(pb.HealthCheckRequest(service="readiness"), wait_for_ready=True, timeout=30)).status)


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_gateways_find_it_ready_and_it_ends_in_order(tmp_path: Path, processes: str) -> None:
    port = free_port()
    async with router(tmp_path, "--endpoint-picker-port", str(port), "--processes", processes) as running:
        await ready(running)
        assert await health(port) == pb.HealthCheckResponse.SERVING
        running.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.wait(), START_SECONDS) == 0


async def test_a_port_that_is_taken_and_a_certificate_that_is_not_there_are_wrong_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with router(tmp_path, "--endpoint-picker-port", str(port)) as running:
            _, said = await asyncio.wait_for(running.communicate(), START_SECONDS)
    assert running.returncode == 2
    assert f", {port}".encode() in said
    options = ("--endpoint-picker-port", "0", "--endpoint-picker-certificate", "none", "--endpoint-picker-key", "none")
    async with router(tmp_path, *options) as running:
        _, said = await asyncio.wait_for(running.communicate(), START_SECONDS)
    assert running.returncode == 2
    assert b"certificate cannot be read" in said
