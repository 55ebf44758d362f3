from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline_kube import CONFIGMAPS, KubeError
from paceline_kube.testing import FakeApiServer
from paceline_operator.guard import LeaderGuard, NotLeader

BODY = {"metadata": {"name": "a", "namespace": "demo"}}
WRITES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("create", (CONFIGMAPS, BODY), {}),
    ("apply", (CONFIGMAPS, BODY), {"field_manager": "tests"}),
    ("patch", (CONFIGMAPS, "a", {"data": {}}, "demo"), {}),
    ("replace", (CONFIGMAPS, BODY), {}),
    ("delete", (CONFIGMAPS, "a", "demo"), {}),
    ("request", ("POST", "/api/v1/namespaces/demo/configmaps"), {"body": BODY}),
]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.mark.parametrize(("method", "args", "kwargs"), WRITES, ids=[write[0] for write in WRITES])
@pytest.mark.parametrize("remaining", [-3.0, 0.0, 4.9])
async def test_no_write_starts_with_less_lease_left_than_its_timeout(
    server: FakeApiServer, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], remaining: float
) -> None:
    guard = LeaderGuard(server.client(timeout=5), lambda: remaining)
    with pytest.raises(NotLeader):
        await getattr(guard, method)(*args, **kwargs)
    assert server.requests == []


@pytest.mark.parametrize(("method", "args", "kwargs"), WRITES, ids=[write[0] for write in WRITES])
async def test_with_enough_lease_left_writes_pass(
    server: FakeApiServer, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if method in ("patch", "replace", "delete"):
        await server.put("/api/v1/configmaps", dict(BODY))
    guard = LeaderGuard(server.client(timeout=5), lambda: 5.0)
    await getattr(guard, method)(*args, **kwargs)
    assert len(server.requests) == 1


async def test_reads_need_no_lease(server: FakeApiServer) -> None:
    await server.put("/api/v1/configmaps", dict(BODY))
    guard = LeaderGuard(server.client(), lambda: 0.0)
    assert (await guard.get(CONFIGMAPS, "a", "demo"))["metadata"]["name"] == "a"
    listed = await guard.list(CONFIGMAPS, "demo")
    assert len(listed.items) == 1
    async for event in guard.watch(CONFIGMAPS, resource_version="1000", timeout_seconds=1):
        assert event.type == "ADDED"
        break
    assert await guard.request("GET", "/api/v1/namespaces/demo/configmaps/a")


async def test_a_longer_call_needs_a_longer_lease(server: FakeApiServer) -> None:
    guard = LeaderGuard(server.client(timeout=5), lambda: 8.0)
    with pytest.raises(NotLeader, match="a write may take 10 s"):
        await guard.request("POST", "/api/v1/namespaces/demo/configmaps", body=BODY, timeout=10)


def test_it_is_an_error_that_workers_try_again_after() -> None:
    assert issubclass(NotLeader, KubeError)
