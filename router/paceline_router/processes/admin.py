"""One admin API for several processes: asks each on its own port and answers for all.

It is the supervisor's, since that has no requests to delay and outlives every worker: counters of one that has ended
are not forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from paceline_crds import metrics as catalogue
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
from paceline_router.report.text import OPENMETRICS, TEXT, accepts_openmetrics, exposition, sample
from paceline_router.report.tokens import AdminToken

ASK_SECONDS = 5.0
RETRY_DEMAND = 0.5

LOOK_SECONDS = 0.1
"""Between looks at whether the process that is asked still gives signs of life."""

HUNG_SECONDS = 0.75
"""Of silence, after which nobody waits for a process's answer: it may be busy, but an answer without it comes within a
second.
"""

RED_SECONDS = 3.0
"""Of silence, after which the router is not ready: the kernel still gives that process its share of connections."""


@dataclass(frozen=True, slots=True)
class Up:
    """A process whose ports are open.

    Attributes:
        port: of its own admin API.
        ready: what its last sign of life said.
        silence: seconds since that.
    """

    port: int
    ready: bool
    silence: float


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
        up: Callable[[], Mapping[int, Up]],
        restarts: Mapping[str, int],
        processes: int,
        token: AdminToken,
        inner_token: str,
        host: str,
        port: int,
    ) -> None:
        """
        Args:
            up: by process id.
            restarts: processes that were started again, by reason; grows.
        """
        self._up = up
        self._restarts = restarts
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

    async def _ask(self, pid: int, path: str) -> tuple[int, str]:
        request: asyncio.Future[tuple[int, str]] | None = None
        try:
            while True:
                one = self._up().get(pid)
                if one is None or one.silence >= HUNG_SECONDS:
                    words = "has just ended" if one is None else f"has given no sign of life for {one.silence:g} s"
                    raise Unreachable(503, error_body(f"A router process {words}.", type=UNAVAILABLE))
                if request is None:
                    request = asyncio.ensure_future(self._get(one.port, path))
                await asyncio.wait([request], timeout=LOOK_SECONDS)
                if request.done():
                    return request.result()
        finally:
            if request is not None:
                request.cancel()

    async def _get(self, port: int, path: str) -> tuple[int, str]:
        assert self._session is not None
        try:
            # Of metrics the form that has all of them.
            async with self._session.get(f"http://127.0.0.1:{port}{path}", headers={"accept": OPENMETRICS}) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as exc:
            words = str(exc) or f"nothing came in {ASK_SECONDS:g} s"
            raise Unreachable(
                503, error_body(f"A router process does not answer: {words}.", type=UNAVAILABLE)
            ) from None

    async def pages(self, path: str) -> list[Any]:
        """The JSON of all processes.

        Raises:
            Unreachable: one of them is missing, so that nothing can be said for all.
        """
        up = self._up()
        if len(up) < self._processes:
            words = f"{self._processes - len(up)} of {self._processes} router processes are being started."
            raise Unreachable(503, error_body(words, type=UNAVAILABLE))
        answers = await asyncio.gather(*(self._ask(pid, path) for pid in up))
        for status, text in answers:
            if status != 200:
                raise Unreachable(status, json.loads(text))
        return [json.loads(text) for _, text in answers]

    @property
    def status(self) -> str:
        """`ready` when every process is, by its signs of life: nobody needs to be asked, so the answer is there at once
        whatever state they are in.
        """
        up = self._up()
        if self.stopping:
            return "stopping"
        if len(up) < self._processes or not all(one.ready for one in up.values()):
            return "starting"
        return "ready" if all(one.silence < RED_SECONDS for one in up.values()) else "silent"

    async def metrics(self, openmetrics: bool = False) -> str:
        """The text for all, as `Exposition.text`. A process that does not answer counts with what it said last."""
        up = tuple(self._up())
        answers = await asyncio.gather(*(self._ask(pid, "/metrics") for pid in up), return_exceptions=True)
        for pid, answer in zip(up, answers, strict=True):
            if isinstance(answer, tuple) and answer[0] == 200 and pid in self._up():
                self._said[pid] = Exposition.parse(answer[1])
        own = exposition(
            sample(catalogue.ROUTER_PROCESS_RESTARTS, (), reason, value=count)
            for reason, count in self._restarts.items()
        )
        return merge_expositions([*self._said.values(), self._ended, Exposition.parse(own)]).text(openmetrics)

    def demand(self) -> list[Waiting]:
        """What waits in all processes, as far as has been heard."""
        for pid, one in self._up().items():
            if pid not in self._listening:
                self._listening[pid] = asyncio.create_task(self._listen(pid, one.port))
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
        return JSONResponse({"status": fleet.status}, 200 if fleet.status == "ready" else 503)

    @app.get("/health/live")
    async def live() -> JSONResponse:
        # A process that hangs is the supervisor's to replace; there is no reason to end the others with it.
        return JSONResponse({"status": "alive"})

    @app.get("/metrics")
    async def metrics(accept: Annotated[str, Header()] = "") -> PlainTextResponse:
        openmetrics = accepts_openmetrics(accept)
        text = await fleet.metrics(openmetrics)
        return PlainTextResponse(text, headers={"content-type": OPENMETRICS if openmetrics else TEXT})

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
