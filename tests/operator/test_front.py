import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf
import pytest

from paceline_kube import INFERENCESERVICES, NAMESPACES, Credentials, Key, connect
from paceline_kube.testing import FakeApiServer
from paceline_operator.front import Door, Front, connection, kopf_settings

SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"


def service(name: str, namespace: str = "demo", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


class House:
    """The rest of the operator, as the front sees it."""

    def __init__(self, server: FakeApiServer) -> None:
        self.client = server.client()
        self.keys: list[Key] = []
        self.threads: set[str] = set()
        self.broken = False
        self.restarts = 0

    def door(self) -> Door:
        return Door(self.knock, self.client.credentials, self.health)

    def knock(self, key: Key, version: str) -> None:
        assert version.isdigit()
        self.threads.add(threading.current_thread().name)
        self.keys.append(key)

    async def health(self) -> dict[str, Any]:
        if self.broken:
            raise RuntimeError("a part is broken")
        return {"leading": True}

    def restarted(self) -> None:
        self.restarts += 1


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(bookmark_seconds=0.2) as server:
        yield server


@pytest.fixture
def house(server: FakeApiServer) -> House:
    return House(server)


@pytest.fixture
async def front(house: House, unused_tcp_port: int) -> AsyncIterator[str]:
    """A running front; gives the address of its probe."""
    endpoint = f"http://127.0.0.1:{unused_tcp_port}/healthz"
    front = Front(house.door(), liveness_endpoint=endpoint, on_restart=house.restarted)
    task = asyncio.create_task(front.run())
    yield endpoint
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not [thread for thread in threading.enumerate() if thread.name == "kopf"]


async def wait_for(condition: Any, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def test_every_event_only_puts_its_key_into_the_queue_of_the_main_thread(
    server: FakeApiServer, house: House, front: str
) -> None:
    await server.put(SERVICES, service("old"))
    await wait_for(lambda: ("demo", "old") in house.keys)
    await server.put(SERVICES, service("new", "team"))
    await wait_for(lambda: ("team", "new") in house.keys)
    house.keys.clear()
    await server.put(SERVICES, service("new", "team", replicas=2))
    await server.remove(SERVICES, "demo", "old")
    await wait_for(lambda: {("team", "new"), ("demo", "old")} <= set(house.keys))
    assert house.threads == {"MainThread"}
    stored = server.objects[(SERVICES, "team", "new")]
    assert set(stored["metadata"]) == {"name", "namespace", "uid", "generation", "resourceVersion"}
    assert not [request for request in server.requests if not request.startswith("GET ")]


async def test_neither_custom_resource_definitions_nor_namespaces_nor_peerings_are_watched(
    server: FakeApiServer, house: House, front: str
) -> None:
    await wait_for(lambda: any("watch=true" in request for request in server.requests))
    watched = {request.split("?")[0] for request in server.requests if "watch=true" in request}
    assert watched == {f"GET {SERVICES}"}
    assert not [r for r in server.requests if "customresourcedefinitions" in r or "peering" in r]
    assert all("timeoutSeconds=300&" in r + "&" for r in server.requests if "watch=true" in r)


async def test_kopf_ending_on_a_watch_error_is_started_again_and_misses_nothing(
    server: FakeApiServer, house: House, front: str
) -> None:
    await wait_for(lambda: len(server._watches) == 1)
    await server.fail_watches(500, "InternalError")
    await wait_for(lambda: house.restarts == 1)
    await server.put(SERVICES, service("meanwhile"))
    await wait_for(lambda: ("demo", "meanwhile") in house.keys)


async def test_the_probe_answers_what_the_main_loop_says(house: House, front: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def probe() -> tuple[int, str]:
            try:
                async with session.get(front) as response:
                    return response.status, await response.text()
            except aiohttp.ClientError:
                return 0, ""

        async with asyncio.timeout(20):
            while (answer := await probe())[0] != 200:
                await asyncio.sleep(0.05)
        assert "leading" in answer[1]


async def test_a_broken_part_makes_the_probe_fail(house: House, front: str) -> None:
    house.broken = True
    async with aiohttp.ClientSession() as session:

        async def status() -> int:
            try:
                async with session.get(front) as response:
                    return response.status
            except aiohttp.ClientError:
                return 0

        async with asyncio.timeout(20):
            while (answered := await status()) == 0:
                await asyncio.sleep(0.05)
    assert answered == 500


async def test_a_missing_api_server_does_not_end_the_front(unused_tcp_port: int) -> None:
    async def credentials() -> Credentials:
        return Credentials(f"http://127.0.0.1:{unused_tcp_port}", None, None, None, None, None, True)

    async def health() -> dict[str, Any]:
        return {}

    front = Front(Door(lambda key, version: None, credentials, health))
    task = asyncio.create_task(front.run())
    await asyncio.sleep(1)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not [thread for thread in threading.enumerate() if thread.name == "kopf"]


def test_kopf_gets_the_same_credentials() -> None:
    info = connection(Credentials("https://api:6443", "/ca.crt", None, "Bearer abc", "/c.pem", "/k.pem", True))
    assert info == kopf.ConnectionInfo(
        server="https://api:6443",
        ca_path="/ca.crt",
        insecure=False,
        scheme="Bearer",
        token="abc",
        certificate_path="/c.pem",
        private_key_path="/k.pem",
    )
    assert info.as_http_headers() == {"Authorization": "Bearer abc"}
    assert connection(Credentials("http://api", None, None, None, None, None, True)).as_http_headers() == {}


def test_the_watch_timeout_is_an_integer() -> None:
    # The API server answers 300.0 with a 400, on which Kopf ends.
    assert str(kopf_settings().watching.server_timeout) == "300"


def test_tokens_do_not_show_in_logs() -> None:
    assert "abc" not in repr(Credentials("http://api", None, None, "Bearer abc", None, None, True))


@pytest.mark.cluster
async def test_on_a_real_api_server_an_event_reaches_the_queue(cluster: Any, make_service: Any) -> None:
    keys: list[Key] = []

    async def health() -> dict[str, Any]:
        return {}

    async with connect(cluster.kubeconfig) as client:
        await client.create(NAMESPACES, {"metadata": {"name": "front"}})
        front = Front(Door(lambda key, version: keys.append(key), client.credentials, health), namespaces=["front"])
        task = asyncio.create_task(front.run())
        body = make_service()
        body["metadata"]["namespace"] = "front"
        await client.apply(INFERENCESERVICES, body, field_manager="user")
        await wait_for(lambda: ("front", "chat") in keys)
        keys.clear()
        await client.delete(INFERENCESERVICES, "chat", "front")
        await wait_for(lambda: ("front", "chat") in keys)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.delete(NAMESPACES, "front")
