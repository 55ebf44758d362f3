"""A rollout by steps while the count of replicas changes under it, as an autoscaler does: the two do not fight."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from planned_world import World, spec

from paceline_operator.rollout.state import Phase
from paceline_shadow_traffic.verdict import Verdict

STEPS = [{"weight": 10, "replicas": 1, "hold": "60s", "maxDuration": "10m"}, {"weight": 50, "hold": "60s"}]
CANARY: dict[str, Any] = {"strategy": "Canary", "steps": [*STEPS, {"weight": 100, "hold": "30s"}]}


def rolled(free: int = 100) -> World:
    """A candidate at its first step, beside four replicas of the base."""
    world = World(spec(replicas=4, rollout=CANARY))
    world.settle()
    world.free = free
    scale(world, 4)
    world.settle()
    assert phase(world) == (Phase.JUDGING, 10)
    return world


def scale(world: World, replicas: int) -> None:
    """As the scale subresource does."""
    world.change(replicas=replicas, runtime={"maxNumSeqs": 8}, rollout=CANARY)


def phase(world: World) -> tuple[Phase, int] | None:
    traffic = world.seen.traffic
    assert traffic is not None
    return None if traffic.rollout is None else (traffic.rollout.phase, traffic.rollout.weight)


def counts(world: World) -> list[int]:
    """Replicas asked for, of base and candidate."""
    hashes = [r.pools[0].hash for r in sorted(world.seen.revisions, key=lambda r: r.created)]
    return [sum(d.replicas for d in world.seen.deployments if d.hash == one) for one in hashes]


def onward(world: World) -> None:
    world.verdict = Verdict.PASS
    world.now += 61.0
    world.settle()
    world.verdict = None


@pytest.mark.parametrize(
    ("free", "replicas", "expected"),
    [
        (100, 8, [[8, 1], [8, 4], [8, 8]]),
        (100, 2, [[2, 1], [2, 1], [2, 2]]),
        (3, 8, [[8, 1], [4, 4], [1, 8]]),
        (3, 2, [[2, 1], [1, 1], [1, 2]]),
    ],
)
def test_both_revisions_follow_the_count_by_their_weights_at_every_step(
    free: int, replicas: int, expected: list[list[int]]
) -> None:
    """With room for both whole, and where the base shrinks by steps."""
    for step in range(3):
        world = rolled(free)
        for _ in range(step):
            onward(world)
        before = phase(world)
        scale(world, replicas)
        world.settle()
        assert (phase(world), counts(world)) == (before, expected[step])
        scale(world, 4)
        world.settle()
        assert phase(world) == before, "no count changes a weight"


def test_where_one_is_exchanged_at_a_time_both_together_are_never_more_than_the_count() -> None:
    world = rolled(0)
    for replicas in (6, 3, 4):
        scale(world, replicas)
        world.settle()
        assert sum(counts(world)) == replicas
        assert min(counts(world)) >= 1
        onward(world)


def test_no_replica_goes_while_a_router_may_still_send_it_what_it_sent_before() -> None:
    world = rolled()
    onward(world)
    assert counts(world) == [4, 2]
    world.verdict = Verdict.PASS
    world.now += 61.0
    while phase(world) != (Phase.MOVING, 100):
        for actor in (world.operator, world.deployments, world.node):
            actor()
    scale(world, 1)
    for _ in range(5):
        world.operator()
    assert counts(world) == [4, 4]
    world.settle()
    assert (phase(world), counts(world)) == ((Phase.FINISHING, 100), [1, 1])


@pytest.mark.parametrize("seed", range(6))
def test_whoever_scales_whenever_the_steps_stay_and_no_request_is_without_a_replica(seed: int) -> None:
    order = random.Random(seed)
    world = World(spec(replicas=4, rollout=CANARY), routers=2)
    world.settle()
    world.free = order.choice([100, 3, 0])
    scale(world, 4)
    world.verdict = Verdict.PASS
    weights: list[int] = []

    def check() -> None:
        assert all(count >= 1 for count in world.routed()), "a router has nobody to send requests to"
        now = phase(world)
        if now is not None and (not weights or weights[-1] != now[1]):
            weights.append(now[1])

    world.settle(check, order)
    for _ in range(8):
        scale(world, order.randint(1, 9))
        world.now += order.choice([1.0, 61.0])
        world.settle(check, order)
    assert weights == sorted(weights), "it never goes back"
    if world.free:
        assert weights == [0, 10, 50, 100]


def test_a_candidate_that_loses_replicas_keeps_its_weight_until_none_is_ready() -> None:
    world = rolled()
    onward(world)
    candidate = max(world.seen.revisions, key=lambda r: r.created).pools[0].hash
    world.broken = {candidate}
    lost = [pod for pod in world.seen.pods if pod.hash == candidate]
    world.set_pods([replace(pod, ready=False) if pod == lost[0] else pod for pod in world.seen.pods])
    world.operator()
    assert phase(world) == (Phase.JUDGING, 50)
    world.set_pods([replace(pod, ready=False) if pod in lost else pod for pod in world.seen.pods])
    world.operator()
    assert phase(world) == (Phase.ROLLING_BACK, 0)
