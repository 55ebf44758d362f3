"""Whole rollouts, simulated: golden sequences of sentences, and random orders of everybody who acts."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from planned_world import LIMITS, World, settled, spec

from paceline_operator.actions import ApplyConfigMap, ApplyDeployment, CreateRevision, Delete, Phase, Plan
from paceline_operator.observed import (
    ConfigMapView,
    Entry,
    Ownership,
    RouterView,
    Traffic,
)
from paceline_operator.plan import asks_routers, plan


def test_the_first_revision_gets_the_traffic_at_once() -> None:
    world = World(spec(replicas=2))
    world.settle()
    assert world.log == [
        "create revision chat-A",
        "create config chat-default-a",
        "create deployment chat-default-a with 2",
        "move traffic to chat-A as generation 1",
    ]
    assert world.last == Plan(Phase.SETTLED)


def test_rolling_brings_the_new_up_moves_waits_for_routers_and_only_then_stops_the_old() -> None:
    world = settled(replicas=2)
    world.change(replicas=2, runtime={"maxNumSeqs": 8})
    phases = []
    world.settle(lambda: phases.append(world.last.phase))
    assert world.log == [
        "create revision chat-B",
        "create config chat-default-b",
        "create deployment chat-default-b with 2",
        "move traffic to chat-B as generation 2",
        "scale chat-default-a from 2 to 0",
        "delete deployment chat-default-a",
        "delete config chat-default-a",
    ]
    assert list(dict.fromkeys(phases)) == [
        Phase.SURGING,
        Phase.ACKNOWLEDGING,
        Phase.DRAINING,
        Phase.SETTLED,
    ]


def test_recreate_moves_first_stops_the_old_and_starts_the_new_when_they_are_gone() -> None:
    world = settled(replicas=2)
    world.change(replicas=2, runtime={"maxNumSeqs": 8}, rollout={"strategy": "Recreate"})

    def never_both() -> None:
        assert len({p.hash for p in world.seen.pods}) <= 1

    world.settle(never_both)
    assert world.log == [
        "create revision chat-B",
        "move traffic to chat-B as generation 2",
        "scale chat-default-a from 2 to 0",
        "create config chat-default-b",
        "create deployment chat-default-b with 2",
        "delete deployment chat-default-a",
        "delete config chat-default-a",
    ]


def test_a_pool_that_does_not_change_is_in_no_action() -> None:
    world = settled(pools=[{"name": "long"}])
    before = {d.pool: d for d in world.seen.deployments}
    world.change(pools=[{"name": "long", "runtime": {"maxNumSeqs": 8}}])
    world.settle()
    assert [line for line in world.log if "default" in line] == []
    assert {d.pool: d for d in world.seen.deployments}["default"] == before["default"]


def test_a_revision_that_fails_is_dropped_for_a_third_and_never_gets_traffic() -> None:
    world = settled(replicas=2)
    world.change(replicas=2, runtime={"maxNumSeqs": 8})
    world.broken = {world.desired().pools[0].hash}
    world.settle(lambda: all(world.routed()) or pytest.fail("nothing serves"))
    assert world.last.phase is Phase.SURGING
    assert world.seen.traffic is not None
    assert world.seen.traffic.generation == 1
    world.change(replicas=2, runtime={"maxNumSeqs": 9})
    world.settle()
    assert world.log == [
        "create revision chat-B",
        "create config chat-default-b",
        "create deployment chat-default-b with 2",
        "create revision chat-C",
        "create config chat-default-c",
        "create deployment chat-default-c with 2",
        "scale chat-default-b from 2 to 0",
        "move traffic to chat-C as generation 2",
        "scale chat-default-a from 2 to 0",
        "delete deployment chat-default-b",
        "delete config chat-default-b",
        "delete deployment chat-default-a",
        "delete config chat-default-a",
    ]


def test_going_back_in_the_middle_of_a_roll_makes_nothing_new() -> None:
    world = settled()
    world.change(runtime={"maxNumSeqs": 8})
    world.broken = {world.desired().pools[0].hash}
    world.settle()
    world.log.clear()
    world.change()
    world.settle()
    assert world.log == [
        "scale chat-default-b from 1 to 0",
        "delete deployment chat-default-b",
        "delete config chat-default-b",
    ]


def test_where_the_old_revision_serves_nothing_the_first_new_replica_takes_over() -> None:
    world = World(spec(replicas=3))
    world.broken = {world.desired().pools[0].hash}
    world.settle()
    world.change(replicas=3, runtime={"maxNumSeqs": 8})
    world.operator()
    while not any(p.ready for p in world.seen.pods):
        world.deployments()
        world.node()
    world.operator()
    assert world.log[-1] == "move traffic to chat-B as generation 2"


def test_a_change_at_zero_replicas_starts_no_pod() -> None:
    world = settled(replicas=0)
    world.change(replicas=0, runtime={"maxNumSeqs": 8})
    world.settle(lambda: None if not world.seen.pods else pytest.fail("a pod was started"))
    assert "create deployment chat-default-b with 0" in world.log
    assert world.seen.traffic is not None
    assert world.seen.traffic.revision == world.desired().revision


def test_while_a_roll_is_stuck_the_serving_revision_follows_the_count() -> None:
    world = settled(replicas=1)
    world.change(replicas=1, runtime={"maxNumSeqs": 8})
    world.broken = {world.desired().pools[0].hash}
    world.settle()
    world.log.clear()
    world.change(replicas=3, runtime={"maxNumSeqs": 8})
    world.settle()
    assert world.log == ["scale chat-default-b from 1 to 3", "scale chat-default-a from 1 to 3"]


def test_a_pool_that_is_no_longer_asked_for_is_stopped_after_the_traffic_left_it() -> None:
    world = settled(pools=[{"name": "long", "replicas": 2}])
    world.change()
    world.settle()
    assert world.log == [
        "create revision chat-B",
        "move traffic to chat-B as generation 2",
        "scale chat-long-a from 2 to 0",
        "delete deployment chat-long-a",
        "delete config chat-long-a",
    ]
    assert world.seen.traffic is not None
    assert world.seen.traffic.entries == (Entry("default", world.desired().revision),)


def test_suspend_plans_nothing() -> None:
    world = settled()
    world.change(suspend=True, runtime={"maxNumSeqs": 8}, replicas=5)
    world.settle()
    assert world.log == []
    assert world.last == Plan(Phase.SUSPENDED, waiting="spec.suspend is true")


def test_the_history_limit_never_takes_a_revision_that_runs() -> None:
    world = settled(revisionHistoryLimit=0)
    world.change(revisionHistoryLimit=0, runtime={"maxNumSeqs": 8})
    world.broken = {world.desired().pools[0].hash}
    world.settle()
    assert len(world.seen.revisions) == 2
    world.broken = set()
    world.set_pods([replace(p, problem=None) for p in world.seen.pods])
    world.settle()
    assert [r.name for r in world.seen.revisions] == [world.desired().revision]
    assert world.log[-1] == "delete revision chat-A"


def test_what_is_to_go_and_kept_by_a_finalizer_of_somebody_is_not_deleted_again() -> None:
    world = settled(revisionHistoryLimit=1)
    world.change(revisionHistoryLimit=1, runtime={"maxNumSeqs": 8})
    world.settle()
    seen = world.seen
    old = next(r for r in seen.revisions if r.name != world.desired().revision)
    left = ConfigMapView("chat-default-old", "u", "1", "default", old.pools[0].hash, Ownership.OURS)
    desired = replace(world.desired(), history_limit=0)

    def deletes(deleting: bool) -> int:
        revisions = tuple(replace(r, deleting=deleting and r.name == old.name) for r in seen.revisions)
        there = replace(seen, revisions=revisions, config_maps=(*seen.config_maps, replace(left, deleting=deleting)))
        return sum(isinstance(action, Delete) for action in plan(there, desired, world.now, LIMITS).actions)

    assert (deletes(False), deletes(True)) == (2, 0)


# Routers.


def waiting_for_routers(routers: tuple[RouterView, ...], waited: float, *, unseen: int = 0) -> Plan:
    """A roll whose traffic has just moved, with these routers, that take all new replicas but `unseen` ones."""
    world = settled()
    world.change(runtime={"maxNumSeqs": 8})
    while world.seen.traffic is None or world.seen.traffic.generation < 2:
        world.operator()
        world.deployments()
        world.node()
    new = [p.name for p in world.seen.pods_of(world.desired().pools[0].hash)]
    takes = frozenset((name, world.desired().revision) for name in new[unseen:])
    observed = replace(world.seen, routers=tuple(replace(router, takes=takes) for router in routers))
    assert asks_routers(observed, world.desired())
    return plan(observed, world.desired(), world.seen.traffic.moved_at + waited, LIMITS)


@pytest.mark.parametrize(
    ("routers", "waited", "words"),
    [
        ((RouterView("r0", 2), RouterView("r1", 1)), 5, "router r1 follows generation 2 of the traffic (now 1)"),
        ((RouterView("r0", None),), 5, "router r0 follows generation 2 of the traffic (now none)"),
        ((RouterView("r0", 1),), 10_000, "router r0 follows generation 2 of the traffic (now 1)"),
        (
            (RouterView("r0", None, "it answered 500"),),
            59,
            "router r0 cannot be asked whether it follows the traffic: it answered 500",
        ),
    ],
)
def test_a_router_that_has_not_followed_holds_the_old_replicas(
    routers: tuple[RouterView, ...], waited: float, words: str
) -> None:
    steps = waiting_for_routers(routers, waited)
    assert (steps.phase, steps.actions, steps.waiting) == (Phase.ACKNOWLEDGING, (), words)
    assert steps.poll


@pytest.mark.parametrize(
    ("routers", "waited"),
    [
        ((), 0),
        ((RouterView("r0", 2), RouterView("r1", 3)), 0),
        ((RouterView("r0", 2), RouterView("r1", None, "timeout")), 61),
    ],
)
def test_the_old_replicas_stop_when_every_router_that_can_be_asked_has_followed(
    routers: tuple[RouterView, ...], waited: float
) -> None:
    steps = waiting_for_routers(routers, waited)
    assert [action.sentence.split(" from ")[1] for action in steps.actions] == ["1 to 0"]


def test_a_router_that_does_not_yet_take_a_new_replica_holds_the_old_ones() -> None:
    """Ready for Kubernetes and known to the router are two facts."""
    steps = waiting_for_routers((RouterView("r0", 2),), 10_000, unseen=1)
    assert steps.actions == ()
    assert re.fullmatch("router r0 takes 0 of 1 replicas of chat-[0-9a-f]{10}", steps.waiting)


# What belongs to others.


def test_an_object_of_a_former_service_is_waited_for_and_not_touched() -> None:
    world = settled()
    for place in ("deployments", "config_maps", "revisions"):
        foreign = tuple(replace(o, owner=Ownership.FOREIGN) for o in getattr(world.seen, place))
        observed = replace(world.seen, **{place: foreign})
        steps = plan(observed, world.desired(), 0.0, LIMITS)
        assert (steps.phase, steps.actions) == (Phase.BLOCKED, ())
        assert "belongs to another owner and has to go first" in steps.waiting


def test_a_deployment_on_its_way_out_is_waited_for() -> None:
    world = settled()
    leaving = tuple(replace(d, deleting=True) for d in world.seen.deployments)
    steps = plan(replace(world.seen, deployments=leaving), world.desired(), 0.0, LIMITS)
    assert (steps.phase, steps.actions) == (Phase.BLOCKED, ())


def test_a_foreign_deployment_is_no_stray() -> None:
    world = settled()
    other = replace(world.seen.deployments[0], name="other", hash="other", owner=Ownership.FOREIGN)
    observed = replace(world.seen, deployments=(*world.seen.deployments, other))
    assert plan(observed, world.desired(), 0.0, LIMITS) == Plan(Phase.SETTLED)


def test_orphans_are_taken_over() -> None:
    world = settled()
    orphaned = replace(
        world.seen,
        revisions=tuple(replace(r, owner=Ownership.ORPHAN) for r in world.seen.revisions),
        deployments=tuple(replace(d, owner=Ownership.ORPHAN) for d in world.seen.deployments),
        config_maps=tuple(replace(c, owner=Ownership.ORPHAN) for c in world.seen.config_maps),
    )
    steps = plan(orphaned, world.desired(), 0.0, LIMITS)
    assert [world.short(sentence) for sentence in steps.sentences] == [
        "adopt revision chat-A",
        "create config chat-default-a",
        "take deployment chat-default-a over",
    ]


def test_a_serving_revision_that_cannot_be_read_keeps_everything_running() -> None:
    """A newer release wrote it; this one was rolled back to."""
    world = settled(replicas=2)
    world.change(replicas=2, runtime={"maxNumSeqs": 8})
    unread = replace(world.seen, revisions=tuple(replace(r, parsed=None) for r in world.seen.revisions))
    steps = plan(replace(unread, routers=()), world.desired(), 0.0, LIMITS)
    assert [type(action) for action in steps.actions] == [CreateRevision, ApplyConfigMap, ApplyDeployment]


def test_a_stray_without_a_record_is_deleted() -> None:
    world = settled()
    stray = replace(world.seen.deployments[0], name="chat-default-old", hash="old")
    observed = replace(world.seen, deployments=(*world.seen.deployments, stray), routers=())
    steps = plan(observed, world.desired(), 0.0, LIMITS)
    assert [action.sentence for action in steps.actions] == ["delete deployment chat-default-old"]


# Everybody in random order.


@pytest.mark.parametrize("seed", range(40))
def test_a_roll_serves_at_every_moment_whatever_the_order(seed: int) -> None:
    order = random.Random(seed)
    replicas, routers = order.randint(1, 4), order.randint(0, 3)
    pools = [{"name": "long", "replicas": order.randint(1, 2)}] if order.random() < 0.5 else []
    world = World(spec(replicas=replicas, pools=pools), routers=routers)
    world.settle(order=order)
    assert world.last.phase is Phase.SETTLED
    generations = [world.seen.traffic.generation] if world.seen.traffic else []

    def serves() -> None:
        traffic = world.seen.traffic
        assert traffic is not None
        assert traffic.generation >= generations[-1], "the generation never falls"
        generations.append(traffic.generation)
        revision = world.seen.revision(traffic.revision)
        assert revision is not None, "the revision that serves is kept"
        for pool in revision.pools:
            if pool.name == "default":
                assert world.seen.ready(pool.hash) >= replicas, "the replicas asked for take traffic at every moment"
        for count in world.routed():
            assert count >= replicas, "the requests of every router reach replicas"

    for number in range(order.randint(1, 3)):
        world.change(replicas=replicas, pools=pools, runtime={"maxNumSeqs": 10 + number}, revisionHistoryLimit=1)
        # Sometimes the next change comes before this one has ended.
        for _ in range(order.choice([0, 5, 40, 3000])):
            order.choice(world.actors())()
            serves()
    world.settle(serves, order=order)
    desired = world.desired()
    assert world.last.phase is Phase.SETTLED
    assert world.seen.traffic is not None
    assert world.seen.traffic.revision == desired.revision
    assert {d.hash: d.replicas for d in world.seen.deployments} == {
        pool.hash: desired.replicas[pool.name] for pool in desired.pools
    }
    assert {c.hash for c in world.seen.config_maps} == {pool.hash for pool in desired.pools}
    assert len(world.seen.revisions) <= 2


@pytest.mark.parametrize("seed", range(20))
def test_recreate_never_runs_two_revisions_whatever_the_order(seed: int) -> None:
    order = random.Random(seed)
    rollout = {"strategy": "Recreate"}
    world = World(spec(replicas=2, rollout=rollout), routers=order.randint(0, 2))
    world.settle(order=order)
    for number in range(2):
        world.change(replicas=2, rollout=rollout, runtime={"maxNumSeqs": 10 + number})
        for _ in range(order.choice([3, 30])):
            order.choice(world.actors())()
            assert len({p.hash for p in world.seen.pods}) <= 1
    world.settle(order=order)
    assert world.last.phase is Phase.SETTLED
    assert {p.hash for p in world.seen.pods} == {world.desired().pools[0].hash}


def test_a_record_of_the_traffic_survives_its_annotation() -> None:
    traffic = Traffic(7, "chat-a", (Entry("default", "chat-a"), Entry("long", "chat-a", 40)), 1234.5)
    assert Traffic.from_json("chat-a", traffic.to_json()) == traffic
    for text in ("", "null", "{}", "[]", '{"generation": "x"}', '{"generation": 1, "movedAt": 1, "weights": [1]}'):
        assert Traffic.from_json("chat-a", text) is None
