"""The admin API: what this router knows, for the operator, for Prometheus and for people. Runs in a thread with a
loop of its own.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any, Protocol

import uvicorn
from fastapi import FastAPI, Header, Query
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from paceline_crds import metrics as catalogue
from paceline_crds.errors import SERVER_ERROR, error_body
from paceline_router.build import build, version
from paceline_router.choice.decision import CODES
from paceline_router.choice.policies import ChoicePolicy
from paceline_router.flow.backend import Backend
from paceline_router.flow.dataplane import SWEEP_SECONDS, DataPlane
from paceline_router.report.demand import steady, stream
from paceline_router.report.guard import guarded_app
from paceline_router.report.samples import samples_page
from paceline_router.report.status import answering, status_page
from paceline_router.report.text import (
    OPENMETRICS,
    TEXT,
    Labels,
    Sample,
    accepts_openmetrics,
    exposition,
    sample,
    service_labels,
)
from paceline_router.report.tokens import AdminToken
from paceline_router.shape.shaper import ShapeSamples
from paceline_router.shape.split import split_page
from paceline_router.shape.split_condition import condition_of
from paceline_router.table.policy import SHAPES, Policy
from paceline_router.table.routes import Route, revision_of

LIVE_WITHIN = 10.0
"""Seconds without a sweep after which the data path counts as stuck."""

STREAMS_END_WITHIN = 1
"""Seconds that streams which have no end are given when the router stops."""

MAX_HEAD_BYTES = 32 * 1024


RESTARTS = ("ended", "silent", "start")
"""Why a process of several is started again."""


class Source(Protocol):
    """Where the table comes from, and how that fares."""

    @property
    def error(self) -> str | None:
        """Why the table may be out of date."""

    def age(self) -> float | None:
        """Seconds since the source was last heard; None when not known."""


def routes_page(plane: DataPlane, source: Source) -> dict[str, Any]:
    """The body of `GET /v1/paceline/routes`: the table in use, and how old it may be."""
    table = plane.table
    services: dict[str, Any] = {
        key: {
            "generation": route.service.generation,
            "servedName": route.served_name,
            "problems": _problems(plane, route),
            "pools": {
                pool: {"shapes": shapes, "replicas": 0, "ready": 0}
                for pool, shapes in _shapes_of_pools(route.service.policy).items()
            },
            "replicas": [],
        }
        for key, route in plane.routes.by_key.items()
    }
    now = plane.now()
    for replica in table.replicas.values():
        if replica.service not in services:
            continue
        pools = services[replica.service]["pools"]
        pool = pools.setdefault(replica.pool, {"shapes": [], "replicas": 0, "ready": 0})
        pool["replicas"] += 1
        pool["ready"] += replica.ready
        backend = plane.backends.get(replica.uid)
        services[replica.service]["replicas"].append(
            {
                "name": replica.name,
                "uid": replica.uid,
                "pool": replica.pool,
                "revision": revision_of(table, replica),
                "ready": replica.ready,
                "draining": replica.draining,
                "inFlight": backend.in_flight if backend else 0,
                "loadKnown": backend is not None and backend.reported and not backend.stale(now),
                "ejected": backend is not None and backend.ejected(now),
            }
        )
    age = source.age()
    return {
        "synced": plane.synced,
        "ageSeconds": None if age is None else round(age, 3),
        "error": source.error,
        "keys_unreadable": _keys_unreadable(plane),
        "services": services,
    }


def _keys_unreadable(plane: DataPlane) -> dict[str, str]:
    """By service, why its API keys cannot be checked, so that nobody gets in. Services with readable keys, or without
    any, are left out.
    """
    return {key: why for key, living in list(plane.living.items()) if (why := living.tenants.keys.trouble)}


def _problems(plane: DataPlane, route: Route) -> list[str]:
    """What is wrong with a service that its users only feel, for people."""
    problems = list(route.service.policy.problems)
    living = plane.living.get(route.service.key)  # not yet, or no longer, while another thread takes a new table
    if living is not None:
        keys = living.tenants.keys
        if keys.trouble:
            problems.append(f"API keys cannot be checked: {keys.trouble}")
        if keys.outdated:
            problems.append(f"API keys are those that were read before: {keys.outdated}")
    return problems


def _shapes_of_pools(policy: Policy) -> dict[str, list[str]]:
    """Which shapes go to which pool."""
    pools: dict[str, list[str]] = {}
    for shape, pool in zip(SHAPES, policy.pool_of_shape, strict=True):
        pools.setdefault(pool, []).append(shape.value)
    return pools


def metrics_page(plane: DataPlane, source: Source, openmetrics: bool = False) -> str:
    """The text of `/metrics`."""
    return exposition(_samples(plane, source), plane.metrics.exemplars() if openmetrics else None)


def _samples(plane: DataPlane, source: Source) -> Iterator[Sample]:
    yield from plane.metrics.samples()
    table = plane.table
    states: dict[tuple[str, str], int] = {
        (key, state): 0 for key in table.services for state in ("ready", "not_ready", "draining")
    }
    for replica in table.replicas.values():
        state = "draining" if replica.draining else "ready" if replica.ready else "not_ready"
        if replica.service in table.services:
            states[replica.service, state] += 1
    for (key, state), count in states.items():
        yield sample(catalogue.ROUTER_REPLICAS, service_labels(key), state, value=count)
    for key, living in list(plane.living.items()):
        yield from living.tenants.samples(service_labels(key))
        yield sample(catalogue.ROUTER_AVAILABLE, service_labels(key), value=int(answering(living) > 0))
        yield from _choices(living.chooser, service_labels(key))
        yield from _estimates(living.shaper.samples(), service_labels(key))
    for demand in plane.demand():
        labels = service_labels(demand.service)
        yield sample(catalogue.ROUTER_HELD, labels, value=demand.held)
        yield sample(catalogue.ROUTER_OLDEST_WAIT, labels, value=demand.oldest_wait_ms / 1000.0)
    yield sample(catalogue.ROUTER_BUILD, (), version(), build(), value=1)
    yield sample(catalogue.ROUTER_SERVICES, (), value=len(table.services))
    yield sample(catalogue.ROUTER_TABLE_SYNCED, (), value=int(plane.synced))
    for reason in RESTARTS:
        # The supervisor adds what it has counted (see `processes.admin`).
        yield sample(catalogue.ROUTER_PROCESS_RESTARTS, (), reason, value=0)
    yield sample(catalogue.ROUTER_CLIENT_CONNECTIONS, (), value=len(plane.clients))
    tracer = plane.observer.tracer
    for result, count in (("sent", tracer.sent), ("lost", tracer.lost), ("dropped", tracer.dropped)):
        yield sample(catalogue.ROUTER_SPANS, (), result, value=count)
    age = source.age()
    if age is not None:
        # Not known is an absent series, never a zero.
        yield sample(catalogue.ROUTER_TABLE_AGE, (), value=age)


def _choices(chooser: ChoicePolicy[Backend], labels: Labels) -> Iterator[Sample]:
    """Why replicas were chosen, and how much of the prompts was expected to lie there."""
    for reason, count in zip(CODES, tuple(chooser.counts), strict=True):
        yield sample(catalogue.ROUTER_CHOICES, labels, reason, value=count)
    cached = chooser.cached_tokens
    for kind, tokens in (("cached", cached), ("new", max(0, chooser.prompt_tokens - cached))):
        yield sample(catalogue.ROUTER_CHOICE_TOKENS, labels, kind, value=tokens)


def _estimates(found: ShapeSamples, labels: Labels) -> Iterator[Sample]:
    """How right a service's estimates of lengths are."""
    for it in found.calibration:
        for level, share in (("p50", it.below_median), ("p90", it.below_high)):
            place = (it.shape.value, it.basis.label, level)
            yield sample(catalogue.ROUTER_LENGTH_ESTIMATE, labels, *place, value=share)
    for level, error in (("p50", found.prompt_error_median), ("p98", found.prompt_error_p98)):
        if error is not None:
            yield sample(catalogue.ROUTER_PROMPT_ESTIMATE, labels, level, value=error)


def split_pages(plane: DataPlane) -> dict[str, Any]:
    """The body of `GET /v1/paceline/split`: by service and pool, whether a shape should have a pool of its own, and by
    service the same as a condition for its status.
    """
    now = plane.now()
    services = {
        key: split_page({pool: watcher.window(now) for pool, watcher in list(living.watchers.items())})
        for key, living in list(plane.living.items())
    }
    return {"services": services, "conditions": {key: condition_of(pools) for key, pools in services.items()}}


def make_app(plane: DataPlane, source: Source, token: AdminToken) -> FastAPI:
    """The application."""
    app = guarded_app(token)

    @app.get("/health")
    @app.get("/health/ready")
    @app.get("/ping")
    async def ready() -> JSONResponse:
        if plane.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "stopping" if plane.stopping else "starting"}, 503)

    @app.get("/health/live")
    async def live() -> JSONResponse:
        silent = plane.now() - plane.swept_at
        if silent < LIVE_WITHIN + SWEEP_SECONDS:
            return JSONResponse({"status": "alive"})
        return JSONResponse(error_body(f"The data path has not moved for {silent:.0f} s.", type=SERVER_ERROR), 503)

    @app.get("/metrics")
    async def metrics(accept: Annotated[str, Header()] = "") -> PlainTextResponse:
        openmetrics = accepts_openmetrics(accept)
        text = steady(lambda: metrics_page(plane, source, openmetrics))
        return PlainTextResponse(text, headers={"content-type": OPENMETRICS if openmetrics else TEXT})

    @app.get("/v1/paceline/routes")
    async def routes() -> JSONResponse:
        return JSONResponse(steady(lambda: routes_page(plane, source)))

    @app.get("/v1/paceline/status")
    async def status() -> JSONResponse:
        return JSONResponse(steady(lambda: status_page(plane)))

    @app.get("/v1/paceline/split")
    def split() -> JSONResponse:
        return JSONResponse(split_pages(plane))

    @app.get("/v1/paceline/samples")
    async def samples(
        since: Annotated[float, Query(ge=0.0, allow_inf_nan=False)] = 0.0, service: str | None = None
    ) -> JSONResponse:
        return JSONResponse(steady(lambda: samples_page(plane.metrics, since, time.time(), service)))

    @app.get("/v1/paceline/demand")
    async def demand() -> StreamingResponse:
        return StreamingResponse(stream(plane.demand), media_type="application/x-ndjson")

    return app


class AdminServer:
    """uvicorn in a thread, so that a long answer here never delays a stream there by more than the interpreter's
    switch.
    """

    def __init__(self, plane: DataPlane, source: Source, token: AdminToken, host: str, port: int) -> None:
        self._socket = socket.create_server((host, port), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            make_app(plane, source, token),
            http="h11",  # the other parser has no bound on a head
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=STREAMS_END_WITHIN,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, waiting a little for answers that are under way."""
        self._server.should_exit = True
        self._thread.join(timeout=5.0)
        self._socket.close()
