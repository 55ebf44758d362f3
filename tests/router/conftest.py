"""A router in this process and scripted replicas around it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings
from paceline_router.table.records import Replica, Service, Table
from paceline_router.wire.client import ClientConnection

# How long one example takes is the machine's affair.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

KEY = "demo/chat"
MODEL = "smollm2"


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """The loop that routers run on."""
    return {"uvloop": uvloop.new_event_loop}


@dataclass
class Received:
    """One request as a replica got it. `gone` is set when the connection ends before the handler does."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, body: Any, status: str = "200 OK", headers: str = "") -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {len(raw)}\r\n\r\n"
        self.send(head.encode() + raw)
        await self.writer.drain()

    def begin_stream(self, headers: str = "") -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{headers}transfer-encoding: chunked\r\n\r\n"
        self.send(head.encode())

    def event(self, text: str) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        chunk["choices"] = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]  # type: ignore[assignment]
        self.chunk(b"data: %b\n\n" % json.dumps(chunk).encode())

    def chunk(self, payload: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end_stream(self) -> None:
        self.chunk(b"data: [DONE]\n\n")
        self.send(b"0\r\n\r\n")

    def die(self) -> None:
        """Close with a reset, as a killed process does."""
        self.writer.transport.abort()


Handler = Callable[[Received], Awaitable[None]]


def completion(text: str = "hello") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}


async def say_hello(request: Received) -> None:
    if request.json.get("stream"):
        request.begin_stream()
        for word in ("one ", "two ", "three"):
            request.event(word)
            await asyncio.sleep(0)
        request.end_stream()
    else:
        await request.answer(completion())


class Peer:
    """A replica that does what its handler says."""

    def __init__(self, handler: Handler, serves_get: bool = False) -> None:
        self.handler = handler
        self.serves_get = serves_get
        self.received: list[Received] = []
        self.connections = 0
        self.port = 0
        self.errors: list[BaseException] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            first = b""
            while True:
                request = await self._read(reader, writer, first)
                if request is None:
                    return
                if request.method == "GET" and not self.serves_get:
                    await request.answer({}, "404 Not Found")
                    first = b""
                    continue
                self.received.append(request)
                watch = asyncio.create_task(reader.read(1))
                watch.add_done_callback(lambda t, r=request: r.gone.set() if not t.cancelled() and _eof(t) else None)
                await self.handler(request)
                first = await watch
                if not first:
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # also the cancellation of `stop`, which the stream server would log
        except Exception as exc:
            self.errors.append(exc)
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(Exception):
                writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes) -> Received | None:
        try:
            head = first + await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        lines = head.decode().split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Received(method, path, headers, body, writer)


def _eof(task: asyncio.Task[bytes]) -> bool:
    return task.exception() is not None or task.result() == b""


def table_of(*peers: Peer | int, served_name: str = MODEL, **service: Any) -> Table:
    """One service whose replicas are these peers (or ports), uid `r0`, `r1`, ..."""
    replicas = {}
    for number, peer in enumerate(peers):
        port = peer if isinstance(peer, int) else peer.port
        uid = f"r{number}"
        replicas[uid] = Replica(uid, f"pod-{number}", KEY, "default", "h1", "127.0.0.1", port, True, False)
    return Table(services={KEY: Service(KEY, served_name, **service)}, replicas=replicas)


@dataclass
class Router:
    plane: DataPlane
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def outcomes(self) -> dict[str, int]:
        return {name: count for name, count in self.plane.metrics.service(KEY).outcomes.items() if count}

    def retries(self) -> dict[str, int]:
        return {name: count for name, count in self.plane.metrics.service(KEY).retries.items() if count}

    async def idle(self) -> None:
        """Wait until no request runs."""
        async with asyncio.timeout(10):
            while self.plane.exchanges:
                await asyncio.sleep(0.002)

    async def raw(self, data: bytes, *, until_close: bool = True) -> bytes:
        """Send bytes on a connection of their own and read the answer until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            async with asyncio.timeout(10):
                return await reader.read() if until_close else await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()


StartRouter = Callable[..., Awaitable[Router]]
StartPeer = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def peer() -> AsyncIterator[StartPeer]:
    """Start a scripted replica."""
    started: list[Peer] = []

    async def start(handler: Handler = say_hello, serves_get: bool = False) -> Peer:
        made = Peer(handler, serves_get)
        await made.start()
        started.append(made)
        return made

    yield start
    for made in started:
        await made.stop()
    assert [error for made in started for error in made.errors] == []


@pytest.fixture
async def router() -> AsyncIterator[StartRouter]:
    """Start a router with a table, or with the peers of one service."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*peers: Peer | int, table: Table | None = None, **settings: Any) -> Router:
            plane = DataPlane(Settings(**settings))
            plane.use(table if table is not None else table_of(*peers))
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: ClientConnection(plane), "127.0.0.1", 0)
            sweep = asyncio.create_task(plane.sweep())

            async def stop() -> None:
                sweep.cancel()
                server.close()
                await plane.drain(0.0)
                for client in tuple(plane.clients):
                    client.transport.abort()

            stack.push_async_callback(stop)
            return Router(plane, server.sockets[0].getsockname()[1])

        yield start


@pytest.fixture
def helpers() -> Any:
    """The names of this file for tests, which cannot import it."""
    import types

    return types.SimpleNamespace(
        KEY=KEY, MODEL=MODEL, Received=Received, completion=completion, say_hello=say_hello, table_of=table_of
    )


@pytest.fixture
def closed_port() -> int:
    """A port on which nobody listens."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def blackhole() -> Iterator[int]:
    """A port that accepts no connection and refuses none: its backlog is full."""
    import socket

    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = int(full.getsockname()[1])
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port
