"""A router for rollouts: it follows the traffic of one service on a real API server, and counts requests as one that
sends them by these weights would.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from operator_world import World

from paceline_crds.names import LABEL_POOL_HASH
from paceline_crds.sketch import SCALE, Sketch
from paceline_kube import INFERENCEREVISIONS, INFERENCESERVICES, PODS, JsonObject
from paceline_operator.routers import RECORDER_PORT
from paceline_shadow_traffic.both import Both
from paceline_shadow_traffic.comparisons_page import PATH, Row, page
from paceline_shadow_traffic.share import Share
from paceline_shadow_traffic.tally import Side, Tally

ROUTER, RECORDER = "router-0", "recorder-0"
REQUESTS = 400
"""Of one look at its samples."""


@dataclass
class FollowingRouter:
    """Asks the API server anew for each answer, so it follows at once unless it `lags`.

    Attributes:
        slow: by revision, how many times slower than the others.
        lags: it stays with the traffic that it followed last.
        base: the revision that served first.
    """

    world: World
    slow: dict[str, float] = field(default_factory=dict)
    lags: bool = False
    base: str = ""
    port: int = 0
    followed: list[JsonObject] = field(default_factory=list)
    """Every traffic that it took, in order."""
    served: list[tuple[float, str, int]] = field(default_factory=list)
    """When, by which revision, and how many."""

    @property
    def key(self) -> str:
        return f"{self.world.namespace}/chat"

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/v1/paceline/routes":
            return web.json_response(await self.routes())
        if request.path == "/v1/paceline/samples":
            return web.json_response(await self.samples(float(request.query["since"])))
        raise web.HTTPNotFound

    async def traffic(self) -> JsonObject:
        service = await self.world.get(INFERENCESERVICES, "chat")
        found: JsonObject = (service.get("status") or {}).get("traffic") or {"generation": 0, "entries": []}
        if not self.followed or (not self.lags and found != self.followed[-1]):
            self.followed.append(found)
        return self.followed[-1]

    async def routes(self) -> JsonObject:
        traffic = await self.traffic()
        replicas = [
            {"name": pod["metadata"]["name"], "revision": "", "ready": True, "draining": False}
            for pod in await self.world.all(PODS)
            if pod["metadata"]["name"] not in (ROUTER, RECORDER)
        ]
        known = {"generation": traffic["generation"], "replicas": await self._named(replicas)}
        return {"synced": True, "services": {self.key: known}}

    async def _named(self, replicas: list[JsonObject]) -> list[JsonObject]:
        """With the revision of each replica, one with traffic first."""
        weights = {entry["revision"]: entry["weight"] for entry in (await self.traffic())["entries"]}
        revisions = sorted(
            await self.world.all(INFERENCEREVISIONS), key=lambda r: weights.get(r["metadata"]["name"], 0)
        )
        by_hash = {pool["hash"]: r["metadata"]["name"] for r in revisions for pool in r["spec"]["pools"]}
        labels = {p["metadata"]["name"]: p["metadata"].get("labels") or {} for p in await self.world.all(PODS)}
        return [
            {**one, "revision": by_hash.get(labels.get(one["name"], {}).get(LABEL_POOL_HASH, ""), "")}
            for one in replicas
        ]

    async def samples(self, since: float) -> JsonObject:
        now = time.time()
        for entry in (await self.traffic())["entries"]:
            self.served.append((now, entry["revision"], REQUESTS * entry["weight"] // 100))
        counts: Counter[str] = Counter()
        for at, revision, count in self.served:
            if at >= since:
                counts[revision] += count
        rows = [self._row(revision, count) for revision, count in counts.items()]
        return {"scale": SCALE, "to": now, "services": {self.key: {"from": since, "rows": rows}}}

    def _row(self, revision: str, count: int) -> JsonObject:
        factor = self.slow.get(revision, 1.0)
        ttft = Sketch.of(factor * (0.1 + part / 100) for part in range(10))
        ttft = Sketch({bucket: ones * (count // 10) for bucket, ones in ttft.counts.items()})
        place = {"pool": "default", "revision": revision, "shape": "ShortInputShortOutput"}
        return {**place, "outcomes": {"2xx": count}, "met": 0, "missed": 0, "ttft": ttft.encode(), "tpot": []}


@dataclass
class StandInRecorder:
    """Says that each stretch of time brought so many pairs.

    Attributes:
        base, candidate: revisions.
        differ: greedy answers of a hundred in which the candidate differs from the base.
    """

    base: str = ""
    candidate: str = ""
    differ: int = 0
    pairs: int = 200

    async def answer(self, request: web.Request) -> web.Response:
        since, until = float(request.query["since"]), float(request.query["until"])
        side = Side(
            answers=self.pairs,
            length=Sketch({100: self.pairs}),
            finish_reasons=Counter({"stop": self.pairs}),
            refused=Share(0.0, self.pairs),
        )
        sides = Both(side, side)
        row = Row(
            self.base,
            self.candidate,
            "default",
            "ShortInputShortOutput",
            pairs=self.pairs,
            candidate=Tally(sides, different=Share(self.pairs * self.differ / 100, self.pairs)),
            itself=Tally(sides, different=Share(0.0, self.pairs)),
        )
        return web.json_response(page(since, until, {request.query["service"]: [row]}))


@asynccontextmanager
async def recorder_of(world: World) -> AsyncIterator[tuple[StandInRecorder, str]]:
    """A recorder with its pod, on an address of its own; and its URL."""
    recorder, app = StandInRecorder(), web.Application()
    app.router.add_get(PATH, recorder.answer)
    server = web.AppRunner(app)
    await server.setup()
    address = f"127.{random.randint(20, 200)}.{random.randint(1, 200)}.{random.randint(1, 200)}"
    await web.TCPSite(server, address, RECORDER_PORT).start()
    try:
        await _pod(world, RECORDER, "recorder", address)
        yield recorder, f"http://{address}:{RECORDER_PORT}"
    finally:
        await server.cleanup()


async def _pod(world: World, name: str, component: str, address: str) -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
        "spec": {"containers": [{"name": component, "image": "r"}]},
    }
    made = await world.client.create(PODS, pod, world.namespace)
    conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
    await world.set_pod(made, {"phase": "Running", "podIP": address, "conditions": conditions})


@asynccontextmanager
async def router_of(world: World) -> AsyncIterator[FollowingRouter]:
    """A router with its pod, in the namespace that the operator takes for its own."""
    router = FollowingRouter(world)
    server = web.AppRunner(_app(router))
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    router.port = server.addresses[0][1]
    try:
        await _pod(world, ROUTER, "router", "127.0.0.1")
        yield router
    finally:
        await server.cleanup()


def _app(router: FollowingRouter) -> web.Application:
    app = web.Application()
    app.router.add_get("/{path:.*}", router.answer)
    return app
