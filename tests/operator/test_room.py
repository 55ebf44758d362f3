"""Rolls where every device is taken: old replicas go one by one, and nobody waits for ever."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from planned_world import World, spec

from paceline_crds.conditions import Reason
from paceline_operator.failures import Problem
from paceline_operator.observed import PodView
from paceline_operator.room import NO_ROOM_SECONDS, places

NO_DEVICE = Problem(Reason.UNSCHEDULABLE, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "pod p")
WRONG_NODE = Problem(Reason.UNSCHEDULABLE, "0/1 nodes are available: 1 node(s) didn't match Pod's node selector", "p")


@dataclass
class Scarce(World):
    """With a scheduler that has so many places, and a clock that runs."""

    devices: int = 2
    lacks: Problem = NO_DEVICE

    def clock(self) -> bool:
        self.now += 20.0
        # Time alone brings something about while replicas wait for a place.
        return self.last.again is not None

    def stamp(self) -> str:
        return datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def deployments(self) -> bool:
        before = {p.name for p in self.seen.pods}
        acted = super().deployments()
        made = [replace(p, created=self.stamp()) if p.name not in before else p for p in self.seen.pods]
        self.set_pods(made)
        return acted

    def scheduler(self) -> bool:
        taken = sum(1 for p in self.seen.pods if p.placed)
        for pod in self.seen.pods:
            if pod.placed or pod.terminating:
                continue
            if taken < self.devices and self.lacks is NO_DEVICE:
                self.put(pod, replace(pod, placed=self.stamp(), problem=None))
                return True
            if pod.problem is None:
                self.put(pod, replace(pod, problem=self.lacks))
                return True
        return False

    def put(self, old: PodView, new: PodView) -> None:
        self.set_pods([new if p is old else p for p in self.seen.pods])

    def node(self) -> bool:
        waiting = [p for p in self.seen.pods if not p.placed and p.problem is None]
        if any(p in waiting for p in self.seen.pods if not p.ready):
            return False
        return super().node()

    def actors(self) -> list:  # type: ignore[type-arg]
        return [*super().actors(), self.scheduler]


def rolled(replicas: int, devices: int, **change: object) -> Scarce:
    """A service that has settled and is asked for another configuration."""
    world = Scarce(spec(replicas=replicas), devices=devices)
    world.settle()
    assert len([p for p in world.seen.pods if p.ready]) == replicas
    world.log.clear()
    world.change(**{"replicas": replicas, "runtime": {"maxNumSeqs": 8}, **change})
    return world


def test_two_replicas_on_two_devices_go_one_by_one_and_one_always_serves() -> None:
    world = rolled(2, 2)
    world.settle(lambda: all(world.routed()) or pytest.fail("nothing serves"))
    assert world.log == [
        "create revision chat-B",
        "create config chat-default-b",
        "create deployment chat-default-b with 2",
        "scale chat-default-a from 2 to 1",
        "move traffic to chat-B as generation 2",
        "scale chat-default-a from 1 to 0",
        "delete deployment chat-default-a",
        "delete config chat-default-a",
    ]
    assert sum(p.ready for p in world.seen.pods) == 2


def test_a_single_replica_on_the_only_device_goes_first() -> None:
    world = rolled(1, 1)
    world.settle()
    assert world.log[2:5] == [
        "create deployment chat-default-b with 1",
        "scale chat-default-a from 1 to 0",
        "move traffic to chat-B as generation 2",
    ]


def test_nothing_old_goes_before_the_new_ones_have_waited() -> None:
    world = rolled(2, 2)
    begin = world.now
    while not any("from 2 to 1" in line for line in world.log):
        for actor in world.actors():
            actor()
    assert world.now - begin >= NO_ROOM_SECONDS


def test_where_there_is_room_nothing_old_goes_early() -> None:
    world = rolled(2, 4)
    world.settle()
    assert "scale chat-default-a from 2 to 0" in world.log
    assert "scale chat-default-a from 2 to 1" not in world.log


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(("replicas", "devices"), [(2, 2), (3, 3), (4, 5), (8, 8), (5, 6)])
def test_in_any_order_it_ends_and_something_always_serves(replicas: int, devices: int, seed: int) -> None:
    world = rolled(replicas, devices)
    least = replicas

    def check() -> None:
        nonlocal least
        serving = world.routed()
        assert all(serving)
        least = min([least, *serving])

    world.settle(check, random.Random(seed))
    assert world.last.phase == "Settled"
    [revision] = {p.hash for p in world.seen.pods}
    assert revision == world.desired().pools[0].hash
    assert least >= replicas // 2


def test_a_node_of_another_kind_is_not_made_by_stopping_what_serves() -> None:
    world = Scarce(spec(replicas=2), devices=2)
    world.settle()
    world.log.clear()
    world.lacks = WRONG_NODE
    world.change(replicas=2, pod={"nodeSelector": {"gpu": "typo"}})
    for _ in range(200):
        for actor in world.actors():
            actor()
    assert not any("scale" in line for line in world.log)


def test_a_new_revision_that_fails_costs_one_replica_and_no_more() -> None:
    world = rolled(3, 3)
    world.broken = {world.desired().pools[0].hash}
    for _ in range(300):
        for actor in world.actors():
            actor()
    assert [line for line in world.log if "scale" in line] == ["scale chat-default-a from 3 to 2"]
    assert all(count == 2 for count in world.routed())
    # And back: what was given is taken again.
    world.change(replicas=3)
    world.settle()
    assert sum(p.ready for p in world.seen.pods) == 3


def test_how_many_old_ones_make_room_for_a_new_one_follows_the_devices() -> None:
    def pool(count: int) -> object:
        world = World(spec(accelerator={"resource": "nvidia.com/gpu", "count": count}))
        return world.desired().pools[0]

    assert places(pool(1), pool(2)) == 2  # type: ignore[arg-type]
    assert places(pool(4), pool(2)) == 1  # type: ignore[arg-type]
    assert places(pool(2), pool(3)) == Fraction(3, 2)  # type: ignore[arg-type]
    assert places(pool(0), pool(1)) == 1  # type: ignore[arg-type]
