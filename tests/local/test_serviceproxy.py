"""The Service proxy: which backends serve a port, and how connections are carried to them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_local.serviceproxy.relay import Relay
from paceline_local.serviceproxy.table import PortEntry, is_serving, service_entry, target_port


def pod(name: str, ip: str | None = "127.1.1.2", ready: bool = True, **metadata: object) -> dict:
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": {"app": "a", "extra": "e"}, **metadata},
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def service(**spec: object) -> dict:
    ports = [{"name": "web", "port": 80, "targetPort": "http"}]
    return {
        "metadata": {"name": "s", "namespace": "ns"},
        "spec": {"selector": {"app": "a"}, "ports": ports, **spec},
    }


def test_only_ready_pods_that_stay_are_backends() -> None:
    pods = [
        pod("good"),
        pod("unready", "127.1.1.3", ready=False),
        pod("leaving", "127.1.1.4", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("other", "127.1.1.5", labels={"app": "b"}),
        pod("no-address", None),
    ]
    entry = service_entry(service(), pods)
    assert entry is not None
    assert entry.key == "ns/s"
    assert entry.ports == (PortEntry("web", 80, "http", (("127.1.1.2", 8000),)),)


def test_a_failed_pod_does_not_serve_whatever_its_conditions_say() -> None:
    failed = pod("failed")
    failed["status"]["phase"] = "Failed"
    assert not is_serving(failed)


@pytest.mark.parametrize(
    ("port", "target"),
    [
        ({"port": 80, "targetPort": "http"}, 8000),
        ({"port": 80, "targetPort": 81}, 81),
        ({"port": 80}, 80),
        ({"port": 80, "targetPort": "none"}, None),
    ],
)
def test_target_ports_by_name_number_and_default(port: dict, target: int | None) -> None:
    assert target_port(port, pod("p")) == target


@pytest.mark.parametrize(
    "spec",
    [{"selector": {}}, {"type": "ExternalName"}, {"ports": [{"port": 53, "protocol": "UDP"}]}, {"ports": []}],
)
def test_services_that_cannot_be_served_are_left_out(spec: dict) -> None:
    assert service_entry(service(**spec), [pod("p")]) is None


def test_ports_without_names_are_called_by_number_and_tls_by_scheme() -> None:
    entry = service_entry(service(ports=[{"port": 443}, {"name": "x", "port": 1, "appProtocol": "https"}]), [])
    assert entry is not None
    assert [(p.name, p.scheme) for p in entry.ports] == [("443", "https"), ("x", "https")]


@given(st.dictionaries(st.integers(1, 4), st.integers(0, 5), max_size=4), st.lists(st.integers(1, 4), unique=True))
def test_the_backend_with_the_fewest_connections_is_first(open_ones: dict[int, int], numbers: list[int]) -> None:
    relay = Relay([("127.0.0.1", n) for n in numbers])
    relay.open.update({("127.0.0.1", n): count for n, count in open_ones.items()})
    counts = [relay.open[backend] for backend in relay.order()]
    assert counts == sorted(counts)
    assert sorted(relay.order()) == sorted(relay.backends)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@contextlib.asynccontextmanager
async def backend(handler: Handler) -> AsyncIterator[tuple[str, int]]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)  # type: ignore[misc]
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[:2]
    server.close()


@contextlib.asynccontextmanager
async def listening(*backends: tuple[str, int]) -> AsyncIterator[tuple[Relay, int]]:
    relay = Relay(backends)
    port = await relay.listen("127.0.0.1", 0)
    yield relay, port
    relay.close()


async def free_port() -> int:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return int(port)


async def test_bytes_go_through_as_they_come_and_half_closes_too() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        everything = await reader.read()
        writer.write(everything.upper())
        await writer.drain()

    async with backend(handler) as there, listening(there) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.readline(), 5) == b"hello\n"
        writer.write(b"abc")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"ABC"
        writer.close()


async def test_large_answers_arrive_whole_to_a_slow_reader() -> None:
    size = 8 << 20

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * size)
        await writer.drain()

    async with backend(handler) as there, listening(there) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.2)
        assert len(await asyncio.wait_for(reader.read(), 20)) == size
        writer.close()


async def test_a_refused_backend_is_followed_by_the_next() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ok")

    refused = ("127.0.0.1", await free_port())
    async with backend(handler) as there, listening(refused, there) as (relay, port):
        for _ in range(6):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await asyncio.wait_for(reader.read(), 5) == b"ok"
            writer.close()
        relay.backends = ()


async def test_without_a_ready_backend_the_connection_is_closed_at_once() -> None:
    async with listening() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_connections_go_on_when_their_backend_is_taken_out() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    async with backend(handler) as there, listening(there) as (relay, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"1\n")
        assert await asyncio.wait_for(reader.readline(), 5) == b"1\n"
        assert relay.open[there] == 1
        relay.backends = ()
        writer.write(b"2\n")
        assert await asyncio.wait_for(reader.readline(), 5) == b"2\n"
        writer.close()
        for _ in range(100):
            if not relay.open:
                break
            await asyncio.sleep(0.02)
        assert not relay.open


async def test_a_client_that_goes_away_is_noticed_by_the_backend() -> None:
    gone = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"token")
                await writer.drain()
                await asyncio.sleep(0.01)
        gone.set()

    async with backend(handler) as there, listening(there) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(5), 5) == b"token"
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), 5)


async def test_a_backend_that_is_cut_off_is_a_cut_for_the_client_too() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")
        await writer.drain()
        await asyncio.sleep(0.1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with backend(handler) as there, listening(there) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(4), 5) == b"half"
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        writer.close()
