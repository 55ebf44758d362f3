"""The ASGI application: routes, errors in one form, and what every answer carries."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline_crds import headers

from .admin_routes import AdminRoutes
from .errors import ApiError
from .openai_routes import OpenAIRoutes
from .replica import Phase, Replica
from .request_headers import read
from .unsupported_routes import unsupported_router

log = logging.getLogger(__name__)

_NEEDS_MODEL: Final = ("/v1/", "/tokenize", "/detokenize")
_NEW_WORK: Final = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


def create_app(replica: Replica) -> ASGIApp:
    """The application that serves `replica`."""
    app = FastAPI(
        title="Paceline replica",
        version=importlib.metadata.version("paceline"),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    # The longer paths first: a model's id may be any path.
    app.include_router(AdminRoutes(replica).router)
    app.include_router(OpenAIRoutes(replica).router)
    app.include_router(unsupported_router())
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)
    return _Envelope(app, replica)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"There is nothing at {request.method} {request.url.path[:200]}."
    elif error.status_code == 405:
        message = f"{request.method} is not allowed at {request.url.path[:200]}."
    else:
        message = str(error.detail)
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _invalid(request: Request, error: Exception) -> Response:
    return ApiError(400, "The request is not valid.").response()


async def _unexpected(request: Request, error: Exception) -> Response:
    # The traceback goes to the log, the client gets an id to find it by.
    request_id = request.state.context.request_id
    log.error("request %s failed", request_id)
    return ApiError(500, f"The server failed to answer request {request_id}.").response()


class _Envelope:
    """Around every request: its id, its headers' faults, the replica's phase, and the load in every answer."""

    def __init__(self, app: ASGIApp, replica: Replica) -> None:
        self._app = app
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = read(scope["headers"])
        scope.setdefault("state", {})["context"] = context

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers(context.request_id, message)]
            await send(message)

        path: str = scope["path"]
        fault = context.fault
        if fault is None and path.startswith(_NEEDS_MODEL):
            fault = self._replica.refusal(new_work=path in _NEW_WORK and scope["method"] == "POST")
        if fault is not None:
            await fault.response()(scope, receive, send_with_headers)
            return
        if scope["method"] == "HEAD":
            # Whoever sends the answer knows what was asked, and leaves out the body.
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send_with_headers)

    def _headers(self, request_id: str, message: Message) -> list[tuple[bytes, bytes]]:
        found = [(headers.REQUEST_ID.encode(), request_id.encode("latin-1"))]
        load = self._replica.engine.load()
        if load is not None:
            found.append((headers.LOAD.encode(), load.encode().encode("latin-1")))
        closing = self._replica.phase in (Phase.DRAINING, Phase.DEAD)
        if closing and not any(name == b"connection" for name, _ in message.get("headers", ())):
            # The client's next request should find another replica.
            found.append((b"connection", b"close"))
        return found


async def wait_for_requests(replica: Replica, deadline: float) -> bool:
    """Wait until no request is open; whether that was so before `deadline` (event loop's time)."""
    loop = asyncio.get_running_loop()
    while len(replica.requests):
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(0.02)
    return True
