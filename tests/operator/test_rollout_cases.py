"""Faults of other rollouts, tried on ours (`docs/reference/rollout-cases.md`), on a whole service, simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned_world import World, spec

from paceline_operator.rollout.state import Phase
from paceline_shadow_traffic.verdict import Verdict

STEPS = [{"weight": 10, "replicas": 1, "hold": "60s", "maxDuration": "10m"}, {"weight": 50, "hold": "60s"}]
CANARY: dict[str, Any] = {"strategy": "Canary", "steps": [*STEPS, {"weight": 100, "hold": "30s"}]}


class Late(World):
    """Routers hear of a replica some seconds after it is ready."""

    def router(self) -> bool:
        known: dict[str, float] = self.__dict__.setdefault("known", {})
        for pod in self.seen.pods:
            if pod.ready:
                known.setdefault(pod.name, self.now)
        there = self.seen.pods
        waits = {name for name, since in known.items() if self.now - since < 8.0}
        self.seen = replace(
            self.seen, pods=tuple(replace(pod, ready=pod.ready and pod.name not in waits) for pod in there)
        )
        try:
            return super().router() or bool(waits)
        finally:
            self.seen = replace(self.seen, pods=there)


def where(world: World) -> tuple[Phase, int] | None:
    traffic = world.seen.traffic
    assert traffic is not None
    return None if traffic.rollout is None else (traffic.rollout.phase, traffic.rollout.weight)


def counts(world: World) -> list[int]:
    """Replicas asked for, of the revisions in the order of their coming."""
    hashes = [r.pools[0].hash for r in sorted(world.seen.revisions, key=lambda r: r.created)]
    return [sum(d.replicas for d in world.seen.deployments if d.hash == one) for one in hashes]


def begin(world: World, replicas: int = 2) -> None:
    world.settle()
    world.change(replicas=replicas, runtime={"maxNumSeqs": 8}, rollout=CANARY)
    world.settle()


@pytest.mark.parametrize("free", [100, 2, 0])
def test_a_router_that_hears_of_replicas_eight_seconds_late_always_has_one_to_send_requests_to(free: int) -> None:
    """C049: ready for Kubernetes and known to the router are two facts."""
    world = Late(spec(replicas=2, rollout=CANARY))
    world.free = free

    def check() -> None:
        assert all(count >= 1 for count in world.routed())
        # Nobody is sent where the router knows of no replica: it would fall back, and the share would not hold.
        state, [taken] = where(world), world.router_takes
        candidate = {name for name, revision in taken if revision != first}
        assert candidate or state is None or state[0] is not Phase.JUDGING

    world.settle()
    first = world.seen.revisions[0].name
    world.change(replicas=2, runtime={"maxNumSeqs": 8}, rollout=CANARY)
    world.verdict = Verdict.PASS
    for _ in range(8):
        world.settle(check)
        world.now += 61.0
    assert (where(world), counts(world)[-1]) == (None, 2)


def lose(world: World, count: int) -> None:
    """Pods of the base are preempted, and the new ones take long to start."""
    base = min(world.seen.revisions, key=lambda r: r.created).pools[0].hash
    lost = [pod.name for pod in world.seen.pods if pod.hash == base][:count]
    world.set_pods([replace(pod, ready=pod.ready and pod.name not in lost) for pod in world.seen.pods])


@pytest.mark.parametrize("free", [100, 3])
def test_a_step_waits_for_replicas_of_the_base_that_were_lost_meanwhile(free: int) -> None:
    """C052: what serves is counted on both sides."""
    world = World(spec(replicas=6, rollout=CANARY))
    world.free = free
    begin(world, 6)
    assert (where(world), counts(world)) == ((Phase.JUDGING, 10), [6, 1])
    world.verdict = Verdict.PASS
    world.now += 61.0
    while where(world) != (Phase.PREPARING, 10):
        world.operator()
    lose(world, 3)
    for _ in range(20):
        for actor in (world.operator, world.deployments, world.router):
            actor()
        new = [pod for pod in world.seen.pods if not pod.ready and pod.hash == world.desired().pools[0].hash]
        world.set_pods([replace(pod, ready=True) if pod in new else pod for pod in world.seen.pods])
    assert (where(world), counts(world)) == ((Phase.PREPARING, 10), [6, 3]), "no old one goes"
    state = world.seen.traffic.rollout if world.seen.traffic else None
    assert state is not None
    assert state.message.startswith(f"3 of 6 replicas of {state.base} are ready")
    world.operator()
    assert world.last.again is not None, "time wakes it: it does not wait for ever"
    world.settle()
    assert where(world) == (Phase.JUDGING, 50), "they are back"


def test_a_person_goes_on_though_the_base_lacks_replicas_and_so_does_time() -> None:
    """A base that crashes may be why there is a new version."""
    for ordered in (True, False):
        world = World(spec(replicas=4, rollout=CANARY))
        begin(world, 4)
        world.broken = {min(world.seen.revisions, key=lambda r: r.created).pools[0].hash}
        lose(world, 2)
        if ordered:
            order = {"revision": world.desired().revision, "action": "Skip", "by": "ann", "why": "it is the cure"}
            world.change(replicas=4, runtime={"maxNumSeqs": 8}, rollout=CANARY | {"order": order})
        else:
            world.verdict = Verdict.PASS
            world.now += 61.0
            world.settle()
            assert where(world) == (Phase.PREPARING, 10)
            world.now += 3601.0
        world.settle()
        assert where(world) == (Phase.JUDGING, 50)


def test_a_skip_that_comes_when_its_step_has_just_passed_leaves_no_other_step_out() -> None:
    world = World(spec(replicas=4, rollout=CANARY))
    begin(world, 4)
    world.verdict = Verdict.PASS
    world.now += 61.0
    while where(world) != (Phase.PREPARING, 10):
        world.operator()
    order = {"revision": world.desired().revision, "action": "Skip", "by": "ann", "why": "it is long enough"}
    world.change(replicas=4, runtime={"maxNumSeqs": 8}, rollout=CANARY | {"order": order})
    world.settle()
    assert where(world) == (Phase.JUDGING, 50)


def test_a_skip_of_what_holds_a_rollout_up_begins_it_with_its_first_step() -> None:
    world = World(spec(replicas=4, rollout=CANARY))
    world.settle()
    world.free = None
    world.change(replicas=4, runtime={"maxNumSeqs": 8}, rollout=CANARY)
    world.settle()
    assert where(world) == (Phase.BLOCKED, 0)
    order = {"revision": world.desired().revision, "action": "Skip", "by": "ann", "why": "I have counted"}
    world.change(replicas=4, runtime={"maxNumSeqs": 8}, rollout=CANARY | {"order": order})
    world.settle()
    assert where(world) == (Phase.JUDGING, 10)
