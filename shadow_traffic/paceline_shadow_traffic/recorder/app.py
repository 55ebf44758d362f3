"""The recorder's HTTP API: pairs come in, comparisons go out."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from paceline_shadow_traffic import comparisons_page, pair

from .exposition import exposition
from .recorder import Recorder
from .records import Record, rows_of, statistics

ENV_TOKEN = "PACELINE_ADMIN_TOKEN"
MAX_BODY = 32 * 1024 * 1024


def token_of(file: Path | None) -> Callable[[], str]:
    """Gives the bearer token as it is now: from the file, which a mounted Secret replaces in place, else from the
    environment. Empty refuses everybody.
    """

    def current() -> str:
        if file is None:
            return os.environ.get(ENV_TOKEN, "").strip()
        try:
            return file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    return current


def make_app(recorder: Recorder, token: Callable[[], str]) -> FastAPI:
    """The application. It describes itself to nobody: it is for routers and the operator."""
    app = FastAPI(title="Paceline recorder", docs_url=None, redoc_url=None, openapi_url=None)

    def allowed(authorization: Annotated[str | None, Header()] = None) -> None:
        expected = token()
        scheme, _, given = (authorization or "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), expected.encode())
        if not expected or scheme.lower() != "bearer" or not right:
            raise HTTPException(401, "write the admin API's token as `Authorization: Bearer ...`")

    guard = [Depends(allowed)]

    @app.post(pair.PATH, status_code=202, dependencies=guard)
    async def take(request: Request) -> dict[str, int]:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                raise HTTPException(413, f"a batch may have {MAX_BODY} bytes")
        try:
            pairs = await run_in_threadpool(pair.read_batch, bytes(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise HTTPException(400, "this is no batch of pairs: bring routers and recorder to one release") from None
        if not recorder.offer(pairs):
            raise HTTPException(503, "too many pairs wait", {"retry-after": "1"})
        return {"taken": len(pairs)}

    @app.get(comparisons_page.PATH, dependencies=guard)
    def comparisons(
        since: Annotated[float, Query(description="Unix seconds; negative: so many seconds ago.")] = -3600.0,
        until: float | None = None,
        service: str | None = None,
    ) -> dict[str, Any]:
        now = time.time()
        begin, end = (now + since if since < 0 else since), (now if until is None else until)
        services: dict[str, list[comparisons_page.Row]] = {}
        for place, row in sorted(rows_of(recorder.store.between(begin, end, service)).items()):
            services.setdefault(place.service, []).append(row)
        return comparisons_page.page(begin, end, services)

    @app.get(comparisons_page.PATH + "/{request_id}", dependencies=guard)
    def of_request(request_id: str) -> dict[str, Any]:
        records = recorder.store.of_request(request_id)
        if not records:
            raise HTTPException(404, "nothing is known of this request: it was not copied, or too long ago")
        return {"records": [_shown(record) for record in records]}

    @app.get("/health/live")
    def live() -> dict[str, bool]:
        if not recorder.alive:
            raise HTTPException(503, "pairs are not compared any more")
        return {"live": True}

    @app.get("/health/ready")
    def ready() -> dict[str, bool]:
        return live()

    @app.get("/metrics")
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(exposition(recorder), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def _shown(record: Record) -> dict[str, Any]:
    return {
        "kind": record.kind.value,
        "at": record.at,
        **record.place._asdict(),
        "failure": record.failure,
        **statistics(record),
        "raw": None if record.raw is None else msgspec.json.decode(record.raw),
    }
