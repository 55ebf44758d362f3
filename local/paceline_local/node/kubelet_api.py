"""The part of the kubelet's HTTPS API that `kubectl logs` and `kubectl exec` need, for the API server only."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aiohttp import web

from paceline_local.node.exec import serve_exec
from paceline_local.node.logs import LogOptions, stream
from paceline_local.node.pod import PodWorker

CLIENT_NAME = "kube-apiserver-kubelet-client"

Find = Callable[[str, str], PodWorker | None]
"""Namespace and name of a pod → its worker on this node."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of the API: its certificate and key, and the authority that clients' certificates must be of."""

    certificate: Path
    key: Path
    client_authority: Path


def server_tls(files: TlsFiles) -> ssl.SSLContext:
    """TLS that takes only clients with a certificate of the client authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.client_authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _common_name(request: web.Request) -> str | None:
    certificate = request.get_extra_info("peercert") or {}
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return None


@web.middleware
async def only_api_server(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse everybody but the API server: other certificates of the same authority have no business here."""
    if _common_name(request) != CLIENT_NAME:
        raise web.HTTPForbidden(text=f"only {CLIENT_NAME} may use this API\n")
    return await handler(request)


def log_options(query: Mapping[str, str], now: float) -> LogOptions:
    """Options from the query of `containerLogs`.

    Raises:
        ValueError: A value is malformed.
    """

    def flag(name: str) -> bool:
        return query.get(name, "").lower() in ("true", "1")

    def number(name: str) -> int | None:
        return int(query[name]) if name in query else None

    since = None
    if (seconds := number("sinceSeconds")) is not None:
        since = now - seconds
    elif "sinceTime" in query:
        since = datetime.fromisoformat(query["sinceTime"]).timestamp()
    return LogOptions(flag("follow"), number("tailLines"), since, flag("timestamps"), number("limitBytes"))


class KubeletApi:
    """Serves logs and exec of the pods that `find` knows."""

    def __init__(self, find: Find) -> None:
        self._find = find

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[only_api_server])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        app.router.add_post("/exec/{namespace}/{pod}/{container}", self._exec)
        return app

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    def _worker(self, request: web.Request) -> PodWorker:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        worker = self._find(namespace, name)
        if worker is None:
            raise web.HTTPNotFound(text=f"pod {namespace}/{name} is not on this node\n")
        if request.match_info["container"] not in worker.containers:
            raise web.HTTPNotFound(text=f"container {request.match_info['container']} not found in pod {name}\n")
        return worker

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker(request)
        container = worker.containers[request.match_info["container"]]
        try:
            options = log_options(request.query, time.time())
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        previous = request.query.get("previous") == "true"
        path = worker.log_path(container.spec.name, previous)
        if path is None:
            which = "previous terminated container" if previous else "container"
            words = f'{which} "{container.spec.name}" in pod "{worker.name}" '
            words += "not found" if previous else "is waiting to start: ContainerCreating"
            raise web.HTTPBadRequest(text=words + "\n")
        attempt = container.attempt
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)

        def running() -> bool:
            return not previous and attempt is not None and attempt.running

        with contextlib.suppress(ConnectionError):  # the reader has seen enough
            async for piece in stream(path, options, running):
                await response.write(piece)
            await response.write_eof()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker(request)
        return await serve_exec(request, worker, worker.containers[request.match_info["container"]])
