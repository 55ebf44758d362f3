"""One admin API for several processes: asks each on its own port and answers for all.

It is the supervisor's, since that has no requests to delay and outlives every worker: counters of one that has ended
are not forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from paceline_crds.errors import UNAVAILABLE, error_body
from paceline_router.processes.merging import (
    Exposition,
    Waiting,
    counted,
    merge_demand,
    merge_expositions,
    merge_routes,
    merge_samples,
    merge_splits,
)
from paceline_router.report.admin import MAX_HEAD_BYTES, STREAMS_END_WITHIN
from paceline_router.report.demand import stream
from paceline_router.report.guard import guarded_app
from paceline_router.report.status import merge_status
from paceline_router.report.tokens import AdminToken

ASK_SECONDS = 5.0
RETRY_DEMAND = 0.5


class Unreachable(Exception):
    """A process did not answer, or with an error."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__("A router process does not answer.")
        self.status = status
        self.body = body


class _Server(uvicorn.Server):
    """Leaves signals to the supervisor."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class CombinedAdmin:
    """The server, to be entered."""

    def __init__(
        self,
        ports: Callable[[], dict[int, int]],
        processes: int,
        token: AdminToken,
        inner_token: str,
        host: str,
        port: int,
    ) -> None:
        self._ports = ports
        """Admin port of each process that is up, by process id."""
        self._processes = processes
        self._inner_token = inner_token
        self._said: dict[int, Exposition] = {}
        """What each process said last at `/metrics`."""
        self._ended = Exposition()
        """What processes that have ended had counted."""
        self._waiting: dict[int, dict[str, Waiting]] = {}
        self._listening: dict[int, asyncio.Task[None]] = {}
        self.stopping = False
        self._socket = socket.create_server((host, port), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            make_app(self, token),
            http="h11",  # the other parser has no bound on a head
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=STREAMS_END_WITHIN,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> CombinedAdmin:
        self._session = aiohttp.ClientSession(
            headers={"authorization": f"Bearer {self._inner_token}"},
            timeout=aiohttp.ClientTimeout(total=ASK_SECONDS),
            trust_env=False,
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._serving is not None
        assert self._session is not None
        self._server.should_exit = True
        for task in self._listening.values():
            task.cancel()
        await asyncio.gather(self._serving, *self._listening.values(), return_exceptions=True)
        await self._session.close()
        self._socket.close()

    def ended(self, pid: int) -> None:
        """A process is gone: what it counted is kept."""
        said = self._said.pop(pid, None)
        if said is not None:
            self._ended = merge_expositions([self._ended, counted(said)])
        self._waiting.pop(pid, None)
        task = self._listening.pop(pid, None)
        if task is not None:
            task.cancel()

    # Asking

    async def _ask(self, port: int, path: str) -> tuple[int, str]:
        assert self._session is not None
        try:
            async with self._session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise Unreachable(503, error_body(f"A router process does not answer: {exc}.", type=UNAVAILABLE)) from None

    async def pages(self, path: str) -> list[Any]:
        """The JSON of all processes.

        Raises:
            Unreachable: one of them is missing, so that nothing can be said for all.
        """
        ports = self._ports()
        if len(ports) < self._processes:
            words = f"{self._processes - len(ports)} of {self._processes} router processes are being started."
            raise Unreachable(503, error_body(words, type=UNAVAILABLE))
        answers = await asyncio.gather(*(self._ask(port, path) for port in ports.values()))
        for status, text in answers:
            if status != 200:
                raise Unreachable(status, json.loads(text))
        return [json.loads(text) for _, text in answers]

    async def live(self) -> None:
        """Ask those that are up whether their data paths move; one that is being started again is no reason for alarm.

        Raises:
            Unreachable: one of them is stuck.
        """
        answers = await asyncio.gather(*(self._ask(port, "/health/live") for port in self._ports().values()))
        for status, text in answers:
            if status != 200:
                raise Unreachable(status, json.loads(text))

    async def metrics(self) -> str:
        """The text for all. A process that does not answer counts with what it said last."""
        ports = self._ports()
        answers = await asyncio.gather(
            *(self._ask(port, "/metrics") for port in ports.values()), return_exceptions=True
        )
        for pid, answer in zip(ports, answers, strict=True):
            if isinstance(answer, tuple) and answer[0] == 200 and pid in self._ports():
                self._said[pid] = Exposition.parse(answer[1])
        return merge_expositions([*self._said.values(), self._ended]).text()

    def demand(self) -> list[Waiting]:
        """What waits in all processes, as far as has been heard."""
        for pid, port in self._ports().items():
            if pid not in self._listening:
                self._listening[pid] = asyncio.create_task(self._listen(pid, port))
        return merge_demand(self._waiting.values())

    async def _listen(self, pid: int, port: int) -> None:
        """Follow the demand of one process for as long as it lives."""
        assert self._session is not None
        url = f"http://127.0.0.1:{port}/v1/paceline/demand"
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with self._session.get(url, timeout=aiohttp.ClientTimeout(sock_read=ASK_SECONDS)) as answer:
                    async for line in answer.content:
                        if line.strip():
                            said = Waiting(**json.loads(line))
                            self._waiting.setdefault(pid, {})[said.service] = said
            self._waiting.pop(pid, None)
            await asyncio.sleep(RETRY_DEMAND)


def make_app(fleet: CombinedAdmin, token: AdminToken) -> FastAPI:
    """The application, with the paths and rights that a single process's has."""
    app = guarded_app(token)

    @app.exception_handler(Unreachable)
    async def unreachable(_request: Request, exc: Unreachable) -> JSONResponse:
        return JSONResponse(exc.body, exc.status)

    @app.get("/health")
    @app.get("/health/ready")
    @app.get("/ping")
    async def ready() -> JSONResponse:
        if fleet.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        try:
            await fleet.pages("/health/ready")
        except Unreachable as exc:
            status = exc.body.get("status", "starting")
            return JSONResponse({"status": status}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/health/live")
    async def live() -> JSONResponse:
        try:
            await fleet.live()
        except Unreachable as exc:
            return JSONResponse(exc.body, 503)
        return JSONResponse({"status": "alive"})

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(await fleet.metrics(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/paceline/routes")
    async def routes() -> JSONResponse:
        return JSONResponse(merge_routes(await fleet.pages("/v1/paceline/routes")))

    @app.get("/v1/paceline/status")
    async def status() -> JSONResponse:
        return JSONResponse(merge_status(await fleet.pages("/v1/paceline/status")))

    @app.get("/v1/paceline/split")
    async def split() -> JSONResponse:
        return JSONResponse(merge_splits(await fleet.pages("/v1/paceline/split")))

    @app.get("/v1/paceline/samples")
    async def samples(request: Request) -> JSONResponse:
        query = request.scope["query_string"].decode("latin-1")
        return JSONResponse(merge_samples(await fleet.pages(f"/v1/paceline/samples?{query}")))

    @app.get("/v1/paceline/demand")
    async def demand() -> StreamingResponse:
        return StreamingResponse(stream(fleet.demand), media_type="application/x-ndjson")

    return app
