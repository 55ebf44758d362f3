"""Health, version, metrics, and what a replica says of itself under `/v1/paceline/`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from paceline_crds.tuning import TUNING_PATH, Knob

from . import openapi
from .body import read_json_body
from .canary import Canary
from .errors import ApiError, bad_request, unavailable
from .health import Verdict
from .replica import Replica
from .submission import EngineGone


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
        self.router.add_api_route(
            TUNING_PATH,
            self.tune,
            methods=["PUT"],
            openapi_extra=openapi.body_of_struct(_Tuning),
            responses=openapi.answers() | openapi.error(409, "another replica is meant"),
            response_class=Response,
        )

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
        etag = f'"{replica.etag}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"etag": etag})
        body = {**replica.effective, "pool_hash": replica.pool_hash or None, "config_hash": replica.config_hash}
        return _json(body, {"etag": etag})

    async def tune(self, request: Request) -> Response:
        """Run with other knobs from the next step on; the answer says what each was started with and is now.

        For the operator: a router sends nobody here. Whoever reaches this port can send requests as well, and gets no
        further by this than to what the replica was started with.
        """
        replica = self._replica
        asked = _tuning_of(await read_json_body(request, _MAX_TUNING_BYTES))
        if asked.pool_hash is not None and asked.pool_hash != replica.pool_hash:
            words = f"This replica is of pool hash {replica.pool_hash or 'none'}, not {asked.pool_hash}."
            raise ApiError(409, words, param="poolHash")
        try:
            await replica.tune(asked.knobs)
        except ValueError as error:
            raise bad_request(f"{error}.", param="knobs") from None
        except EngineGone as error:
            raise unavailable(str(error), close=True) from None
        return _json({"set": replica.started_knobs, "inEffect": replica.knobs})

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


class _Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The body of `PUT /v1/paceline/tuning`.

    Attributes:
        knobs: by name; those that are left out are set back.
        pool_hash: of the replica that is meant; an address may have gone to another one.
    """

    knobs: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]],
        msgspec.Meta(extra_json_schema={"propertyNames": {"enum": list(Knob)}}),
    ]
    pool_hash: str | None = None


_MAX_TUNING_BYTES: Final = 4096


def _tuning_of(body: bytes) -> _Tuning:
    try:
        return msgspec.json.decode(body, type=_Tuning)
    except msgspec.MsgspecError as error:
        words = f'Write {{"knobs": {{"{Knob.MAX_NUM_SEQS}": 16}}}} with whole numbers: {error}.'
        raise bad_request(words) from None


def _verdict(verdict: Verdict) -> Response:
    return Response(
        msgspec.json.encode({"status": "ok" if verdict.ok else "unavailable", "reason": verdict.reason}),
        200 if verdict.ok else 503,
        media_type="application/json",
    )


def _json(body: object, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")
