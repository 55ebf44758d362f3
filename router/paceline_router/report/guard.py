"""What every admin API has: the token before all else, and errors in the form that all of Paceline's HTTP has."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from paceline_crds.errors import AUTHENTICATION, NOT_FOUND, error_body
from paceline_router.report.tokens import AdminToken

OPEN_PATHS = frozenset(["/health", "/health/ready", "/health/live", "/ping", "/metrics"])
"""All that needs no token."""


def guarded_app(token: AdminToken) -> FastAPI:
    """An application without paths yet. Whatever is not in `OPEN_PATHS` needs the token, paths that do not exist
    included.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.middleware("http")
    async def authenticate(request: Request, call_next: Any) -> Response:
        if request.scope["path"] not in OPEN_PATHS:
            values = request.headers.getlist("authorization")
            if len(values) != 1 or not token.matches(values[0]):
                body = error_body(
                    "The admin API needs its bearer token, in the header: Authorization: Bearer TOKEN.",
                    type=AUTHENTICATION,
                )
                return JSONResponse(body, 401, {"www-authenticate": "Bearer"})
        response: Response = await call_next(request)
        return response

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, exc: RequestValidationError) -> JSONResponse:
        first = exc.errors()[0]
        return JSONResponse(error_body(f"The parameter `{first['loc'][-1]}`: {first['msg']}."), 400)

    @app.exception_handler(HTTPException)
    async def refused(_request: Request, exc: HTTPException) -> JSONResponse:
        headers = dict(exc.headers or {})
        if exc.status_code == 404:
            return JSONResponse(error_body("There is nothing at this path.", type=NOT_FOUND), 404)
        if exc.status_code == 405:
            return JSONResponse(error_body(f"This path takes {headers['Allow']}."), 405, headers)
        return JSONResponse(error_body(f"{exc.detail}."), exc.status_code, headers)

    return app
