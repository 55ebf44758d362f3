"""Health, version, metrics, and what a replica says of itself under `/v1/paceline/`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from . import openapi
from .canary import Canary
from .errors import ApiError, unavailable
from .health import Verdict
from .replica import Replica


class AdminRoutes:
    """The routes of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._canary = Canary(replica)
        self.router = APIRouter()
        verdict, plain = openapi.answers(), openapi.answers(media="text/plain")
        verdict[503] = {"description": "not now", "content": {"application/json": {}}}
        for path, route, answers in (
            ("/health/live", self.live, verdict),
            ("/health/ready", self.ready, verdict),
            ("/health", self.ready, verdict),
            ("/ping", self.ready, verdict),
            ("/version", self.version, openapi.answers()),
            ("/metrics", self.metrics, plain),
            ("/v1/paceline/config", self.config, openapi.answers()),
            ("/v1/paceline/load", self.load, openapi.answers()),
            ("/v1/paceline/canary", self.canary, openapi.answers()),
            ("/v1/paceline/requests/{request_id:path}", self.request, openapi.answers()),
        ):
            self.router.add_api_route(path, route, methods=["GET"], responses=answers, response_class=Response)

    async def live(self) -> Response:
        """200 while the engine makes progress, or still starts; 503 when it is dead or stuck."""
        return _verdict(await self._replica.check_life())

    async def ready(self) -> Response:
        """200 while new requests are welcome."""
        return _verdict(self._replica.takes_traffic(time.monotonic()))

    async def version(self) -> Response:
        """The version of Paceline."""
        return _json({"version": importlib.metadata.version("paceline")})

    async def metrics(self, request: Request) -> Response:
        """Prometheus metrics; with exemplars for who accepts OpenMetrics."""
        page, content_type = self._replica.metrics.render(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def config(self, request: Request) -> Response:
        """Each parameter as it is in effect and where it came from; the ETag is the hash of it."""
        replica = self._replica
        etag = f'"{replica.config_hash}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"etag": etag})
        body = {**replica.effective, "pool_hash": replica.pool_hash or None, "config_hash": replica.config_hash}
        return _json(body, {"etag": etag})

    async def load(self) -> Response:
        """What the replica has to do, as in the header `x-paceline-load`."""
        report = self._replica.engine.load()
        if report is None:
            raise unavailable("The engine has not reported its load yet; try again soon.")
        return _json({"v": 1, **dataclasses.asdict(report)})

    async def canary(self) -> Response:
        """Hashes of the answer to the fixed question, computed and from the cache; see `canary`."""
        return _json(await self._canary.ask())

    async def request(self, request_id: str) -> Response:
        """The state of a request that runs or ran not long ago."""
        record = self._replica.requests.find(request_id)
        if record is None:
            raise ApiError(404, "No running or recent request has this id.", param="id", code="request_not_found")
        return _json(record.as_json(time.monotonic()))


def _verdict(verdict: Verdict) -> Response:
    return Response(
        msgspec.json.encode({"status": "ok" if verdict.ok else "unavailable", "reason": verdict.reason}),
        200 if verdict.ok else 503,
        media_type="application/json",
    )


def _json(body: object, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")
