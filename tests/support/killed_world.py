"""A rollout by steps whose operator is killed between two writes, on an API server in this process.

The operator is the real reconciler. Its process ends right after a write, before it learns of the answer; the next one
has nothing but what the API server keeps. Controllers, nodes, two routers and a person are stand-ins that act in turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from paceline_crds.names import ANNOTATION_ROLLOUT, LABEL_POOL_HASH
from paceline_kube import Store
from paceline_kube.testing import FakeApiServer
from paceline_operator.findings import Findings
from paceline_operator.observed import Traffic
from paceline_operator.reconcile import Reconciler
from paceline_operator.rollout.asked import Judgement
from paceline_operator.rollout.state import Phase, State
from paceline_operator.settings import Settings
from paceline_operator.stores import Caches, child_indexes, service_indexes
from paceline_shadow_traffic.verdict import Verdict

OURS = "/apis/paceline.io/v1alpha1"
SERVICES, REVISIONS = f"{OURS}/inferenceservices", f"{OURS}/inferencerevisions"
DEPLOYMENTS, CONFIGMAPS, PODS = "/apis/apps/v1/deployments", "/api/v1/configmaps", "/api/v1/pods"
BUDGETS, NODES = "/apis/policy/v1/poddisruptionbudgets", "/api/v1/nodes"
CHILDREN = {
    "revisions": REVISIONS,
    "deployments": DEPLOYMENTS,
    "configmaps": CONFIGMAPS,
    "pods": PODS,
    "budgets": BUDGETS,
}
HOME, TEAM, NAME = "paceline-system", "demo", "chat"
ROUTERS = ("127.0.0.1", "127.0.0.2")
TICKS = 300
READY = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
}

Object = dict[str, Any]
Edge = tuple[int, tuple[tuple[str, int], ...], str]
"""Generation and shares of the traffic as they are recorded, and the phase of the rollout."""


class Killed(BaseException):
    """The process is gone: nobody catches it, and nothing is tidied up."""


class Silent:
    """Events are not what is looked at."""

    def event(self, about: Any, *, type: str, reason: str, message: str) -> None:
        pass


class Mortal:
    """A client whose process is killed after so many writes; None: it lives."""

    def __init__(self, client: Any, writes: int | None, wrote: Callable[[str], None]) -> None:
        self._client = client
        self._left = writes
        self._wrote = wrote

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name not in ("create", "apply", "patch", "delete"):
            return call

        async def write(resource: Any, *args: Any, **options: Any) -> Any:
            answer = await call(resource, *args, **options)
            about = args[0] if isinstance(args[0], str) else args[0]["metadata"]["name"]
            sub = options.get("subresource")
            self._wrote(f"{name} {resource.kind} {about}{'/' + sub if sub else ''}")
            if self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    raise Killed
            return answer

        return write


@dataclass(frozen=True)
class Turn:
    """What a person does at some point of a rollout.

    Attributes:
        when: asked of where the rollout is; None: no rollout is remembered.
        spec: fields of the spec from then on; None takes one away.
        order: about the revision that is rolled out, or was rejected.
        verdict: of the gates from then on.
    """

    when: Callable[[State | None], bool]
    spec: Mapping[str, Any] = field(default_factory=dict)
    order: str = ""
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Moment:
    """Right after a write: what the API server keeps, and where the others are."""

    wrote: str
    kept: dict[Any, Object]
    now: float
    taken: int
    verdict: Verdict | None
    follows: dict[str, Object]
    edges: list[Edge]


@dataclass
class World:
    """Everything but the operator's process, which is `life` writes long (None: it lives on)."""

    server: FakeApiServer
    spec: Object
    turns: tuple[Turn, ...]
    lives: list[int | None]
    now: float = 1000.0
    taken: int = 0
    verdict: Verdict | None = None
    follows: dict[str, Object] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    port: int = 0
    _client: Any = None

    # What stays.

    def all(self, collection: str) -> list[Object]:
        return [obj for (path, _, _), obj in self.server.objects.items() if path == collection]

    @property
    def service(self) -> Object:
        return self.server.objects[SERVICES, TEAM, NAME]

    @property
    def record(self) -> Traffic | None:
        texts = {
            r["metadata"]["name"]: r["metadata"]["annotations"].get(ANNOTATION_ROLLOUT) for r in self.all(REVISIONS)
        }
        found = [read for name, text in texts.items() if text and (read := Traffic.from_json(name, text)) is not None]
        return max(found, key=lambda traffic: traffic.generation, default=None)

    @property
    def state(self) -> State | None:
        return self.record.rollout if self.record is not None else None

    def timelines(self) -> dict[str, list[tuple[str, int, str, str]]]:
        """Every decision that is kept, by revision."""
        return {
            revision["metadata"]["name"]: [
                (one["phase"], one["weight"], one["by"], one["reason"])
                for one in ((revision.get("status") or {}).get("rollout") or {}).get("timeline") or ()
            ]
            for revision in self.all(REVISIONS)
        }

    def judgement(self, _: Any) -> Judgement | None:
        state = self.state
        followed = all(one["generation"] >= state.generation for one in self.follows.values()) if state else False
        if self.verdict is None or state is None or not (state.candidate and followed):
            return None
        said = f"said {self.verdict}"
        about = (state.candidate, state.generation, state.step, state.since)
        return Judgement(*about, self.verdict, said, self.now)

    # Who acts.

    async def person(self) -> None:
        while self.taken < len(self.turns) and self.turns[self.taken].when(self.state):
            turn = self.turns[self.taken]
            self.taken += 1
            self.verdict = turn.verdict if turn.verdict is not None else self.verdict
            spec = {key: value for key, value in {**self.service["spec"], **turn.spec}.items() if value is not None}
            if turn.order:
                assert self.state is not None, "an order is about a rollout"
                revision = self.state.candidate or self.state.rejected
                order = {
                    "revision": revision,
                    "action": turn.order,
                    "id": str(self.taken),
                    "by": "ann",
                    "why": "I looked",
                }
                spec["rollout"] = {**spec["rollout"], "order": order}
            await self.server.put(SERVICES, {**self.service, "spec": spec})

    async def controllers(self) -> None:
        """Pods as the Deployments ask for them, each ready at once, and the Deployments' counts of them."""
        wanted = {}
        for deployment in self.all(DEPLOYMENTS):
            name, count = deployment["metadata"]["name"], deployment["spec"]["replicas"]
            template = deployment["spec"]["template"]
            for number in range(count):
                metadata = {"name": f"{name}-{number}", "namespace": TEAM, "labels": template["metadata"]["labels"]}
                wanted[metadata["name"]] = {"metadata": metadata, "spec": template["spec"], "status": READY}
            if (deployment.get("status") or {}).get("replicas") != count:
                await self.server.put(DEPLOYMENTS, {**deployment, "status": {"replicas": count}})
        there = {pod["metadata"]["name"] for pod in self.all(PODS)}
        for name in wanted.keys() - there:
            await self.server.put(PODS, wanted[name])
        for name in there - wanted.keys():
            await self.server.remove(PODS, TEAM, name)

    def routers(self) -> bool:
        """One router follows the traffic as it is told; whether one did."""
        told = (self.service.get("status") or {}).get("traffic")
        behind = [name for name in ROUTERS if told is not None and self.follows.get(name) != told]
        for name in behind[:1]:
            self.follows[name] = told
        return bool(behind)

    async def operator(self) -> bool:
        """One pass of the process that lives, or its end; whether it wants to be woken."""
        try:
            return await self._reconciler.reconcile(TEAM, NAME) is not None
        except Killed:
            await self._reconciler.close()
            await self.start()
            return True

    async def start(self) -> None:
        """A new process, which knows nothing."""
        caches = Caches(
            services=Store(service_indexes()),
            routers=Store(),
            **{name: Store(child_indexes()) for name in CHILDREN},
        )
        self._caches = caches
        if self._client is None:
            self._client = self.server.client()
        life = self.lives.pop(0) if self.lives else None
        self._reconciler = Reconciler(
            Mortal(self._client, life, self.wrote),  # type: ignore[arg-type]
            caches,
            Silent(),
            lambda: self.now,
            Settings(runtime_image="r:1", namespace=HOME, router_admin_port=self.port),
            Findings(judgement=self.judgement, recorder=lambda: "http://recorder"),
        )
        await self._reconciler.prepare()

    def show(self) -> None:
        """The caches as the watches fill them."""
        kept = _copied(self.server.objects)
        self._caches.routers.replace([_router(address) for address in ROUTERS])
        for name, collection in {"services": SERVICES, **CHILDREN}.items():
            getattr(self._caches, name).replace([obj for (path, _, _), obj in kept.items() if path == collection])

    def wrote(self, what: str) -> None:
        self.writes.append(what)
        self.check()
        kept = _copied(self.server.objects)
        self.moments.append(Moment(what, kept, self.now, self.taken, self.verdict, dict(self.follows), self.edges[:]))

    async def killed_at(self, moment: Moment) -> None:
        """As if the process had ended just then: what was in its memory is gone, and another one begins."""
        self.server.objects = _copied(moment.kept)
        self.now, self.taken, self.verdict = moment.now, moment.taken, moment.verdict
        self.follows, self.edges = dict(moment.follows), moment.edges[:]
        await self._reconciler.close()
        await self.start()

    # What holds.

    def check(self) -> None:
        """Routers are told what is recorded, send no requests to a revision without replicas, and the old revision is
        whole until the end.
        """
        record = self.record
        if record is not None:
            shares = tuple((entry.revision, entry.weight) for entry in record.entries)
            now = record.generation, shares, record.rollout.phase.value if record.rollout is not None else ""
            if not self.edges or now != self.edges[-1]:
                self.edges.append(now)
        told = (self.service.get("status") or {}).get("traffic")
        if told is not None:
            shares = tuple((entry["revision"], entry["weight"]) for entry in told["entries"])
            assert (told["generation"], shares) in {edge[:2] for edge in self.edges}, (
                "routers are told what is recorded"
            )
        hashes = {r["metadata"]["name"]: r["spec"]["pools"][0]["hash"] for r in self.all(REVISIONS)}
        asked = {d["metadata"]["labels"][LABEL_POOL_HASH]: d["spec"]["replicas"] for d in self.all(DEPLOYMENTS)}
        for router, follows in self.follows.items():
            for entry in follows["entries"]:
                served = asked.get(hashes[entry["revision"]], 0)
                assert served or not self.service["spec"]["replicas"], (
                    f"{router} sends {entry['weight']} % to {entry['revision']}, which has no replica"
                )
        state = self.state
        if state is not None and state.candidate:
            total = self.service["spec"]["replicas"]
            assert asked[hashes[state.base]] >= total, f"the old revision is not whole in {state.phase}"

    # How it goes.

    async def run(self, edges: int | None = None) -> None:
        """Until nobody has anything to do, whatever time passes; or until so many more edges are taken."""
        quiet, most = 0, None if edges is None else len(self.edges) + edges
        for _ in range(TICKS):
            before = self.server.version
            await self.person()
            await self.controllers()
            followed = self.routers()
            self.show()
            await self.operator()
            self.check()
            if most is not None and len(self.edges) >= most:
                return
            if self.server.version != before or followed:
                quiet = 0
                continue
            quiet += 1
            self.now += 61.0
            if quiet == 4:
                assert self.taken == len(self.turns), f"the story ends at {self.state}"
                return
        raise AssertionError(f"it never comes to rest: {self.writes[-12:]}")

    async def close(self) -> None:
        await self._reconciler.close()

    async def routes(self, request: web.Request) -> web.Response:
        """What a router says of itself."""
        follows = self.follows.get(request.host.partition(":")[0])
        if follows is None:
            return web.json_response({"synced": True, "services": {}})
        hashes = {r["spec"]["pools"][0]["hash"]: r["metadata"]["name"] for r in self.all(REVISIONS)}
        replicas = [
            {
                "name": pod["metadata"]["name"],
                "revision": hashes[pod["metadata"]["labels"][LABEL_POOL_HASH]],
                "ready": True,
                "draining": False,
            }
            for pod in self.all(PODS)
        ]
        said = {"generation": follows["generation"], "replicas": replicas}
        return web.json_response({"synced": True, "services": {f"{TEAM}/{NAME}": said}})


def _copied(objects: dict[Any, Object]) -> dict[Any, Object]:
    """The server changes nothing of an object but its metadata; it keeps another one instead."""
    return {key: {**obj, "metadata": {**obj["metadata"]}} for key, obj in objects.items()}


def _router(address: str) -> Object:
    return {"metadata": {"name": f"router-{address[-1]}", "namespace": HOME}, "status": {**READY, "podIP": address}}


def served(state: State | None) -> bool:
    """No rollout is remembered."""
    return state is None


def at(phase: Phase, weight: int) -> Callable[[State | None], bool]:
    """The rollout is there."""
    return lambda state: state is not None and (state.phase, state.weight) == (phase, weight)


@asynccontextmanager
async def told(spec: Object, turns: tuple[Turn, ...], lives: list[int | None]) -> AsyncIterator[World]:
    """A service that has served for long, before the first turn of a story."""
    async with FakeApiServer() as server:
        world = World(server, spec, turns, [None, *lives])
        app = web.Application()
        app.router.add_get("/v1/paceline/routes", world.routes)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "0.0.0.0", 0)
        await site.start()
        world.port = runner.addresses[0][1]
        try:
            allocatable = {"cpu": "64", "memory": "256Gi", "pods": "100"}
            ready = [{"type": "Ready", "status": "True"}]
            node = {"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": allocatable, "conditions": ready}}
            await server.put(NODES, node)
            await server.put(SERVICES, {"metadata": {"name": NAME, "namespace": TEAM}, "spec": spec})
            story, world.turns = world.turns, ()
            await world.start()
            await world.run()
            await world.close()
            world.turns = story
            world.writes.clear()
            world.moments.clear()
            del world.edges[:-1]
            await world.start()
            yield world
        finally:
            await world.close()
            await runner.cleanup()
