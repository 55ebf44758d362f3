"""Rollouts in any order of everybody who acts: users, controllers, nodes, routers, clocks, and hands that meddle."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from planned_world import World, spec

from paceline_crds.service import InferenceService
from paceline_operator.actions import (
    Action,
    ApplyConfigMap,
    ApplyDeployment,
    CreateRevision,
    Delete,
    MoveTraffic,
    Phase,
    child_name,
)
from paceline_operator.observed import Ownership, Traffic
from paceline_operator.render import Desired, carried_from, pinned, render

ACTORS = ("operator", "deployments", "node", "drain", "router", "clock")
HANDS = ("crash", "delete pod", "delete deployment", "delete config", "delete revision", "scale by hand", "jump clock")
USERS = ("edit", "scale", "pool", "suspend", "resume", "recreate", "rolling", "pin", "unpin")


@dataclass
class Rough(World):
    """A `World` with users who change their minds and hands that meddle, which judges each action as it is taken."""

    fields: dict[str, Any] = field(default_factory=dict)
    scalings: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    # Users.

    def edited(self, **changes: Any) -> None:
        self.fields = {key: value for key, value in {**self.fields, **changes}.items() if value is not None}
        self.change(**self.fields)

    def act(self, what: str, number: int) -> None:
        """One step of somebody."""
        rollout: dict[str, Any] = dict(self.fields.get("rollout") or {})
        match what:
            case "edit":
                self.edited(runtime={"maxNumSeqs": 1 + number % 4})
            case "scale":
                self.edited(replicas=number % 4)
            case "pool":
                self.edited(pools=[{"name": "long", "replicas": 1 + number % 2}] if number % 3 else None)
            case "suspend" | "resume":
                self.edited(suspend=what == "suspend")
            case "recreate" | "rolling":
                self.edited(rollout=rollout | {"strategy": what.capitalize()})
            case "pin":
                names = sorted(r.name for r in self.seen.revisions)
                if names:
                    name = names[number % len(names)]
                    self.edited(rollout=rollout | {"order": {"action": "Pin", "revision": name, "reason": "by test"}})
            case "unpin":
                rollout.pop("order", None)
                self.edited(rollout=rollout or None)
            case _ if what in HANDS:
                self.meddle(what, number)
            case _:
                getattr(self, what)()

    def render(self) -> Desired:
        obj = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": self.spec}
        parsed = InferenceService.from_object(obj)
        kept = [r.parsed for r in self.seen.revisions if r.parsed is not None]
        desired = render(parsed, carried_from(kept), "r:1")
        order = parsed.spec.rollout.order if parsed.spec.rollout else None
        if order is None:
            return desired
        ordered = next((r for r in kept if r.metadata.name == order.revision), None)
        # An order about what is gone is refused before anything is planned.
        return desired if ordered is None else pinned(desired, ordered)

    def order_is_void(self) -> bool:
        order = ((self.fields.get("rollout") or {}).get("order") or {}).get("revision")
        return order is not None and self.seen.revision(order) is None

    # Hands.

    def meddle(self, what: str, number: int) -> None:
        seen = self.seen
        match what:
            case "crash" if seen.pods:
                hit = seen.pods[number % len(seen.pods)]
                self.set_pods([replace(p, ready=False) if p is hit else p for p in seen.pods])
            case "delete pod" if seen.pods:
                hit = seen.pods[number % len(seen.pods)]
                self.set_pods([replace(p, terminating=True) if p is hit else p for p in seen.pods])
            case "delete deployment" if seen.deployments:
                hit_ = seen.deployments[number % len(seen.deployments)]
                self.seen = replace(seen, deployments=tuple(d for d in seen.deployments if d is not hit_))
            case "scale by hand" if seen.deployments:
                hit_ = seen.deployments[number % len(seen.deployments)]
                changed = (replace(d, replicas=number % 4) if d is hit_ else d for d in seen.deployments)
                self.seen = replace(seen, deployments=tuple(changed))
            case "delete config" if seen.config_maps:
                left = [c for i, c in enumerate(seen.config_maps) if i != number % len(seen.config_maps)]
                self.seen = replace(seen, config_maps=tuple(left))
            case "delete revision":
                serving = seen.traffic.revision if seen.traffic else None
                idle = [r for r in seen.revisions if r.name not in (serving, self.desired().revision)]
                if idle:
                    hit__ = idle[number % len(idle)]
                    self.seen = replace(seen, revisions=tuple(r for r in seen.revisions if r is not hit__))
            case "jump clock":
                self.now += (3600.0, -3600.0)[number % 2]

    # The operator, judged.

    def operator(self) -> bool:
        return False if self.order_is_void() else super().operator()

    def take(self, action: Action, desired: Desired) -> None:
        self.judge(action, desired)
        super().take(action, desired)

    def judge(self, action: Action, desired: Desired) -> None:
        seen = self.seen
        match action:
            case CreateRevision(name=name, adopt=adopt):
                assert adopt or seen.revision(name) is None, "a revision is made once"
            case ApplyConfigMap(name=name):
                there = seen.config_map(name)
                assert there is None or there.owner is Ownership.ORPHAN, "a config is made once"
            case ApplyDeployment(name=name, replicas=replicas, before=None):
                assert seen.deployment(name) is None, "a Deployment is made once"
            case ApplyDeployment(name=name, replicas=replicas, before=before):
                assert replicas != before, "nothing is written that is so already"
                self.scalings[name].append(1 if replicas > before else -1)
                if replicas == 0:
                    self.judge_stop(name, desired)
            case MoveTraffic(traffic=traffic):
                self.judge_move(traffic, desired)
            case Delete(kind="deployment", name=name):
                there_ = seen.deployment(name)
                assert there_ is not None
                recorded = {child_name("chat", pool) for r in seen.revisions for pool in r.pools}
                assert not there_.replicas or name not in recorded, "what is recorded drains before it is deleted"
                self.judge_stop(name, desired)

    def judge_move(self, traffic: Traffic, desired: Desired) -> None:
        before = self.seen.traffic
        assert traffic.revision == desired.revision
        if before is None:
            return
        assert traffic.generation == before.generation + 1
        old = self.seen.revision(before.revision)
        if old is None or self.recreates():
            return
        if any(self.seen.ready(pool.hash) for pool in old.pools):
            for pool in desired.pools:
                assert self.seen.ready(pool.hash) or not desired.replicas[pool.name], "the new one serves"

    def judge_stop(self, name: str, desired: Desired) -> None:
        """What is taken away is asked for by nobody, and no router sends requests there any more."""
        traffic = self.seen.traffic
        if name in {child_name("chat", pool) for pool in desired.pools}:
            assert not all(desired.replicas[pool.name] for pool in desired.pools), "somebody asked for zero"
            return
        assert traffic is not None
        serving = self.seen.revision(traffic.revision)
        asked_for_zero = not any(desired.replicas.values())
        if serving is not None and name in {child_name("chat", pool) for pool in serving.pools}:
            assert asked_for_zero or traffic.revision == desired.revision
            return
        deployment = self.seen.deployment(name)
        if deployment is not None and deployment.replicas:
            assert all(g is not None and g.generation >= traffic.generation for g in self.router_generations)

    def recreates(self) -> bool:
        return (self.fields.get("rollout") or {}).get("strategy") == "Recreate"


STEPS = st.lists(
    st.tuples(st.sampled_from(ACTORS * 4 + HANDS + USERS), st.integers(0, 11)),
    min_size=20,
    max_size=120,
)


@given(STEPS, st.integers(0, 2), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_nothing_is_made_twice_and_it_comes_to_rest(
    steps: list[tuple[str, int]], routers: int, order: random.Random
) -> None:
    world = Rough(spec(), routers=routers)
    for what, number in steps:
        world.act(what, number)
    # Everybody lets go; a suspension and an order about what is gone are lifted, or nothing would move.
    world.edited(suspend=False)
    if world.order_is_void():
        world.act("unpin", 0)
    world.scalings.clear()
    world.settle(order=order)
    desired = world.desired()
    assert world.last.phase is Phase.SETTLED
    assert world.seen.traffic is not None
    assert world.seen.traffic.revision == desired.revision
    assert {d.name: d.replicas for d in world.seen.deployments} == {
        child_name("chat", pool): desired.replicas[pool.name] for pool in desired.pools
    }
    assert {c.name for c in world.seen.config_maps} == {child_name("chat", pool) for pool in desired.pools}
    for name, directions in world.scalings.items():
        turns = sum(1 for a, b in pairwise(directions) if a != b)
        assert turns <= 1, f"{name} was scaled up and down and up again, though nobody asked for it: {directions}"
    assert not world.operator(), "a pass over what is settled does nothing"


@given(STEPS, st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_actions_of_one_plan_never_contradict_each_other(steps: list[tuple[str, int]], routers: int) -> None:
    world = Rough(spec(), routers=routers)
    for what, number in steps:
        world.act(what, number)
        targets = [
            (type(a) if not isinstance(a, Delete) else a.kind, a.name)
            for a in world.last.actions
            if not isinstance(a, MoveTraffic)
        ]
        assert len(set(targets)) == len(targets), f"one object, one action: {world.last.sentences}"
        made = {a.name for a in world.last.actions if isinstance(a, ApplyDeployment)}
        assert not made & {a.name for a in world.last.actions if isinstance(a, Delete) and a.kind == "deployment"}
        assert sum(isinstance(a, MoveTraffic) for a in world.last.actions) <= 1
        if world.last.phase is Phase.SUSPENDED:
            assert not world.last.actions, "suspended means hands off"
