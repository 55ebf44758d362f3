"""What a router process follows, and the limits it sets itself."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import resource
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline_crds.tenancy import TenancySpec
from paceline_kube.testing import FakeApiServer
from paceline_router.flow.dataplane import DataPlane
from paceline_router.server import SPARE_FILES, within_files
from paceline_router.settings import Settings
from paceline_router.sources import secrets_of, sources
from paceline_router.table.file import read_table
from paceline_router.tenancy.keys import Keys

BODY = {"model": "smollm2", "messages": []}


def entry(key: bytes) -> str:
    return f'"{hashlib.sha256(key).hexdigest()}"'


def routes_file(folder: Path, port: int, keys: str = "keys.yaml") -> Path:
    path = folder / "routes.yaml"
    path.write_text(
        f"services:\n- name: demo/chat\n  servedName: smollm2\n  replicas: [{{url: 'http://127.0.0.1:{port}'}}]\n"
        f"  tenancy: {{identity: {{from: APIKey}}}}\n  keysFile: {folder / keys}\n"
    )
    return path


async def test_a_file_brings_table_and_keys_and_limits_are_shared_by_the_processes(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(f"blue: {entry(b'one')}\n")
    plane = DataPlane(Settings(processes=4))
    async with sources(plane, routes_file(tmp_path, 1)) as followed:
        assert plane.synced
        assert plane.living["demo/chat"].tenants.keys.entries, "before the first request comes"
        assert plane._share == 0.25
        assert followed.table.error is None
        tasks = [asyncio.create_task(follow()) for follow in followed.followers]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_only_services_that_go_by_keys_have_their_secret_read(tmp_path: Path) -> None:
    (service,) = read_table(routes_file(tmp_path, 1)).services.values()
    assert secrets_of([service]) == {}

    tenancy = TenancySpec.model_validate_json('{"identity":{"from":"APIKey","secretName":"chat-keys"}}')
    by_secret = replace(service, policy=replace(service.policy, tenancy=tenancy))
    assert secrets_of([by_secret]) == {"demo/chat": ("demo", "chat-keys")}


@pytest.mark.parametrize(
    ("files", "clients"),
    [(resource.RLIM_INFINITY, 1000), (100_000, 1000), (1024, (1024 - SPARE_FILES) // 2), (10, 1)],
)
def test_no_more_clients_are_taken_than_there_are_files_for(files: int, clients: int) -> None:
    assert within_files(Settings(max_client_connections=1000), files).max_client_connections == clients


async def test_in_a_cluster_secrets_and_other_routers_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    tenancy = {"identity": {"from": "APIKey", "secretName": "chat-keys"}}
    service = {
        "apiVersion": "paceline.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "demo", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"model": {"source": "package://m", "servedName": "smollm2"}, "tenancy": tenancy},
    }

    def secret(key: bytes) -> dict[str, Any]:
        value = base64.b64encode(hashlib.sha256(key).hexdigest().encode()).decode()
        metadata = {"name": "chat-keys", "namespace": "demo"}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"blue": value}}

    def router_pod(name: str) -> dict[str, Any]:
        labels = {"app.kubernetes.io/component": "router"}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": name, "namespace": "paceline", "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": ready}

    told: asyncio.Queue[tuple[str, Keys]] = asyncio.Queue()
    shares: asyncio.Queue[int] = asyncio.Queue()
    plane = DataPlane(Settings(processes=2))
    heard: Any = SimpleNamespace(
        settings=plane.settings,
        use=plane.use,
        use_keys=lambda key, keys: told.put_nowait((key, keys)),
        use_peers=shares.put_nowait,
    )
    monkeypatch.setenv("POD_NAMESPACE", "paceline")

    async def key_is(key: bytes) -> None:
        async with asyncio.timeout(20):
            while True:
                who, keys = await told.get()
                assert who == "demo/chat"
                if hashlib.sha256(key).digest() in keys.entries:
                    return

    async with FakeApiServer() as server:

        @contextlib.asynccontextmanager
        async def connect() -> AsyncIterator[Any]:
            yield server.client()

        monkeypatch.setattr("paceline_kube.connect", connect)
        await server.put("/api/v1/secrets", secret(b"one"))
        await server.put("/apis/paceline.io/v1alpha1/inferenceservices", service)
        await server.put("/api/v1/pods", router_pod("a"))
        await server.put("/api/v1/pods", router_pod("b"))
        async with sources(heard, None) as followed:
            tasks = [asyncio.create_task(follow()) for follow in followed.followers]
            try:
                await key_is(b"one")
                await server.put("/api/v1/secrets", secret(b"two"))
                await key_is(b"two")
                async with asyncio.timeout(20):
                    assert await shares.get() == 2  # this router's own processes
                    while await shares.get() != 4:
                        pass
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
