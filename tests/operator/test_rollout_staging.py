"""Rollouts by steps on a whole service, simulated: what is written in which order, and what holds whoever acts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from planned_world import LIMITS, World, spec

from paceline_autoscaler.capacity import Objectives
from paceline_operator.actions import Phase
from paceline_operator.observed import Traffic
from paceline_operator.rollout.staging import plan, stand_of
from paceline_operator.rollout.state import Phase as Stage
from paceline_operator.scaling.asked import Asked
from paceline_operator.scaling.fleet import ordered, standing
from paceline_shadow_traffic.verdict import Verdict

STEPS = [{"weight": 10, "replicas": 1, "hold": "60s", "maxDuration": "10m"}, {"weight": 50, "hold": "60s"}]
CANARY: dict[str, Any] = {"strategy": "Canary", "steps": [*STEPS, {"weight": 100, "hold": "30s"}]}
NEW = {"maxNumSeqs": 8}


def rolled(**fields: Any) -> World:
    """A service that serves, with four replicas."""
    world = World(spec(replicas=4, rollout=CANARY, **fields))
    world.settle()
    world.log.clear()
    return world


def changed(world: World, rollout: dict[str, Any] | None = None, **fields: Any) -> World:
    world.change(**({"replicas": 4, "runtime": NEW} | fields), rollout=CANARY | (rollout or {}))
    return world


def traffic(world: World) -> Traffic:
    found = world.seen.traffic
    assert found is not None
    return found


def shares(world: World) -> dict[str, int]:
    letters = {r.name: chr(ord("A") + at) for at, r in enumerate(sorted(world.seen.revisions, key=lambda r: r.created))}
    return {letters[entry.revision]: entry.weight for entry in traffic(world).entries}


def counts(world: World) -> list[int]:
    """Replicas asked for, of the revisions in the order of their coming."""
    hashes = [r.pools[0].hash for r in sorted(world.seen.revisions, key=lambda r: r.created)]
    return [sum(d.replicas for d in world.seen.deployments if d.hash == one) for one in hashes]


def wait(world: World, seconds: float) -> None:
    world.now += seconds
    world.settle()


def stage(world: World) -> Stage | None:
    state = traffic(world).rollout
    return None if state is None else state.phase


def test_a_good_revision_takes_over_step_by_step_and_the_old_one_stays_whole_until_the_end() -> None:
    world = changed(rolled())
    world.settle()
    assert (stage(world), shares(world), counts(world)) == (Stage.JUDGING, {"A": 90, "B": 10}, [4, 1])
    wait(world, 120.0)
    assert stage(world) is Stage.JUDGING, "nothing is known yet"
    world.verdict = Verdict.PASS
    wait(world, 1.0)
    assert (stage(world), shares(world), counts(world)) == (Stage.JUDGING, {"A": 50, "B": 50}, [4, 2])
    wait(world, 61.0)
    assert (stage(world), shares(world), counts(world)) == (Stage.FINISHING, {"B": 100}, [4, 4])
    wait(world, 31.0)
    assert (stage(world), shares(world), counts(world)) == (None, {"B": 100}, [0, 4])
    assert traffic(world).revision == world.desired().revision
    assert world.last.phase is Phase.SETTLED


def test_time_alone_wakes_a_step_when_its_hold_or_its_maximum_is_over() -> None:
    world = changed(rolled())
    world.settle()
    state = traffic(world).rollout
    assert state is not None
    world.operator()
    assert world.last.again == state.since + 60.0 - world.now
    wait(world, 61.0)
    world.operator()
    assert world.last.again == state.since + 600.0 - world.now
    changed(world, {"shadow": {"percent": 5, "maxDuration": "7m"}}, runtime={"maxNumSeqs": 16})
    world.settle()
    assert (stage(world), traffic(world).shadow) == (Stage.SHADOW, 5)
    state = traffic(world).rollout
    assert state is not None
    world.operator()
    assert world.last.again == state.since + 420.0 - world.now


def test_the_record_moves_first_and_replicas_follow_it() -> None:
    world = changed(rolled())
    world.verdict = Verdict.PASS
    world.settle()
    assert world.log[:6] == [
        "create revision chat-B",
        "take the rollout of chat-B from Idle to Preparing: Begun",
        "create config chat-default-b",
        "create deployment chat-default-b with 1",
        "take the rollout of chat-B from Preparing to Moving: Moving",
        "take the rollout of chat-B from Moving to Judging: Followed",
    ]


@pytest.mark.parametrize("step", [0, 1])
def test_a_worse_one_loses_its_traffic_first_and_its_replicas_when_every_router_has_left(step: int) -> None:
    world = changed(rolled())
    world.settle()
    if step:
        world.verdict = Verdict.PASS
        wait(world, 61.0)
    world.verdict = Verdict.FAIL
    world.log.clear()
    world.operator()
    assert world.log == ["take the rollout of chat-B from Judging to RollingBack: GateWorse"]
    assert (shares(world), counts(world)) == ({"A": 100}, [4, 1 + step])
    for _ in range(5):
        world.operator()
    assert counts(world) == [4, 1 + step], "a router may still send it requests"
    world.settle()
    assert (stage(world), counts(world)) == (Stage.IDLE, [4, 0])
    state = traffic(world).rollout
    assert state is not None
    assert state.rejected == world.desired().revision
    assert "said Fail" in state.message
    wait(world, 100_000.0)
    assert counts(world) == [4, 0], "what was rejected is not begun again by itself"


def test_a_rejected_revision_gets_no_replica_whatever_becomes_of_the_other() -> None:
    """C057: a shortage is no reason to use a rejected version."""
    world = changed(rolled())
    world.settle()
    world.verdict = Verdict.FAIL
    world.settle()
    changed(world, replicas=8)
    world.settle()
    assert counts(world) == [8, 0]
    world.broken = {p.hash for p in world.seen.pods}
    world.set_pods([replace(p, ready=False) for p in world.seen.pods])
    world.settle()
    assert counts(world) == [8, 0]


def test_the_old_spec_ends_it_and_a_third_one_supersedes_it() -> None:
    world = changed(rolled())
    world.settle()
    changed(world, runtime={})
    world.settle()
    assert (stage(world), shares(world), counts(world)) == (None, {"A": 100}, [4, 0])
    changed(world)
    world.settle()
    assert shares(world) == {"A": 90, "B": 10}
    world.log.clear()
    changed(world, runtime={"maxNumSeqs": 16})
    world.settle()
    assert shares(world) == {"A": 90, "C": 10}
    assert counts(world) == [4, 0, 1]
    assert [line for line in world.log if line.startswith("take")][:2] == [
        "take the rollout of chat-B from Judging to RollingBack: Superseded",
        "take the rollout of chat-B from RollingBack to Idle: Superseded",
    ]


def test_orders_are_followed_once_and_say_who_and_why() -> None:
    world = changed(rolled())
    world.settle()
    name = world.desired().revision
    skip = {"revision": name, "action": "Skip", "by": "ann", "why": "it is only a log line"}
    changed(world, {"order": skip})
    world.settle()
    assert shares(world) == {"A": 50, "B": 50}
    wait(world, 600.0)
    assert shares(world) == {"A": 50, "B": 50}
    changed(world, {"order": {**skip, "id": "again"}})
    world.settle()
    assert shares(world) == {"B": 100}
    changed(world, {"order": {"revision": name, "action": "Abort"}})
    world.settle()
    assert (shares(world), counts(world)) == ({"A": 100}, [4, 0])
    changed(world, {"order": {"revision": name, "action": "Promote", "by": "bob"}})
    world.settle()
    assert shares(world) == {"B": 100}
    state = traffic(world).rollout
    assert state is not None
    assert state.handled == f"Promote/{name}"


def test_another_strategy_finishes_what_is_under_way() -> None:
    world = changed(rolled())
    world.settle()
    world.change(replicas=4, runtime=NEW)
    world.settle()
    assert shares(world) == {"B": 100}
    wait(world, 31.0)
    assert (traffic(world).revision, counts(world)) == (world.desired().revision, [0, 4])


def test_a_pin_to_the_old_revision_takes_it_back_and_one_to_the_new_takes_it_over() -> None:
    world = changed(rolled())
    world.settle()
    old = replace(world.desired(), revision=traffic(world).revision, pinned=True, pools=world.seen.revisions[0].pools)
    stand = stand_of(world.seen, old)
    assert stand is not None
    back = plan(replace(world.seen, routers=()), old, stand, world.now, LIMITS)
    assert back.records[0].reason == "Reverted"
    new = replace(world.desired(), pinned=True)
    over = plan(replace(world.seen, routers=()), new, stand, world.now, LIMITS)
    assert (over.records[0].reason, over.records[0].message) == (
        "Promote",
        "Promote by spec: spec.rollout.order pins it",
    )


def test_a_pause_holds_the_weight_and_nothing_begins_meanwhile() -> None:
    world = changed(rolled(), {"paused": True})
    world.settle()
    state = traffic(world).rollout
    assert state is not None
    assert (state.phase, state.reason, counts(world)) == (Stage.BLOCKED, "Paused", [4, 0])
    changed(world)
    world.verdict = Verdict.PASS
    world.settle()
    changed(world, {"paused": True})
    wait(world, 1000.0)
    assert shares(world) == {"A": 90, "B": 10}


def test_without_room_it_says_so_and_begins_when_there_is_some() -> None:
    world = rolled()
    world.free = None
    changed(world)
    world.settle()
    state = traffic(world).rollout
    assert state is not None
    assert (state.reason, counts(world)) == ("RoomNotKnown", [4, 0])
    world.free = 0
    wait(world, 60.0)
    assert counts(world) == [3, 1], "one is exchanged at a time"
    assert stage(world) is Stage.JUDGING


def test_at_zero_nothing_starts_and_the_new_revision_is_used_at_the_next_start() -> None:
    """C060."""
    world = rolled()
    changed(world, runtime={}, replicas=0)
    world.settle()
    changed(world, replicas=0)
    world.settle()
    assert (shares(world), counts(world)) == ({"B": 100}, [0, 0])
    changed(world)
    world.settle()
    assert counts(world) == [0, 4]


def test_a_pool_that_does_not_change_keeps_its_replicas_and_goes_by_both_names() -> None:
    world = rolled(pools=[{"name": "long"}])
    pools = [{"name": "long", "runtime": {"prefillChunkTokens": 256}}]
    before = {d.name: d.uid for d in world.seen.deployments}
    changed(world, runtime={}, pools=pools)
    world.settle()
    entries = {(e.pool, e.weight) for e in traffic(world).entries}
    assert entries == {("default", 90), ("default", 10), ("long", 90), ("long", 10)}
    kept = {d.name: d.uid for d in world.seen.deployments if d.name in before}
    assert kept == before
    world.verdict = Verdict.FAIL
    world.settle()
    assert {d.name for d in world.seen.deployments} == before.keys()


def test_a_pool_that_is_added_is_no_shortage_of_the_revision_that_does_not_have_it() -> None:
    """Eight replicas of a new pool beside four that serve: the step waits for nobody."""
    world = rolled()
    changed(world, runtime={}, pools=[{"name": "long", "replicas": 8}])
    world.settle()
    state = traffic(world).rollout
    assert state is not None
    assert (state.phase, state.reason) == (Stage.JUDGING, "Followed")
    assert {(e.pool, e.weight) for e in traffic(world).entries} == {("default", 90), ("default", 10), ("long", 10)}
    world.verdict = Verdict.PASS
    for _ in range(3):
        wait(world, 61.0)
    assert {(e.pool, e.weight) for e in traffic(world).entries} == {("default", 100), ("long", 100)}


def test_a_pool_that_is_taken_away_is_held_up_by_nothing() -> None:
    world = rolled(pools=[{"name": "long", "replicas": 3}])
    changed(world, runtime={})
    world.settle()
    assert stage(world) is Stage.JUDGING
    world.verdict = Verdict.PASS
    for _ in range(3):
        wait(world, 61.0)
    assert {(e.pool, e.weight) for e in traffic(world).entries} == {("default", 100)}
    assert {d.name for d in world.seen.deployments if d.replicas} == {
        d.name for d in world.seen.deployments if d.pool == "default"
    }


def test_a_candidate_that_crashes_is_given_up() -> None:
    world = rolled()
    changed(world)
    world.broken = {world.desired().pools[0].hash}
    world.settle()
    state = traffic(world).rollout
    assert state is not None
    assert (state.phase, state.reason, counts(world)) == (Stage.IDLE, "RolledBack", [4, 0])
    assert "it crashes" in state.message


def test_a_revision_that_serves_nobody_is_replaced_at_once() -> None:
    world = rolled()
    world.broken = {p.hash for p in world.seen.pods}
    world.set_pods([replace(p, ready=False) for p in world.seen.pods])
    world.settle()
    changed(world)
    world.settle()
    assert (shares(world), counts(world)) == ({"B": 100}, [0, 4])


def test_a_record_of_a_rollout_that_cannot_be_read_is_begun_anew_with_the_weights_beside_it() -> None:
    world = changed(rolled())
    world.settle()
    before = traffic(world)
    broken = Traffic.from_json(before.revision, before.to_json().replace('"phase":"Judging"', '"phase":"Dancing"'))
    assert broken is not None
    assert (broken.rollout, broken.entries) == (None, before.entries)
    assert Traffic.from_json(before.revision, before.to_json()) == before
    kept = [replace(r, traffic=broken) if r.traffic == before else r for r in world.seen.revisions]
    world.seen = replace(world.seen, revisions=tuple(kept))
    world.settle()
    assert (stage(world), shares(world)) == (Stage.JUDGING, {"A": 90, "B": 10})
    assert traffic(world).generation > before.generation


@pytest.mark.parametrize("free", [100, 1])
def test_the_count_that_follows_load_is_read_back_from_both_revisions(free: int) -> None:
    """An operator that is started anew in the middle finds what was decided."""
    bounds = Asked(1, 8, 1, Objectives(None, None))
    world = rolled()
    world.free = free
    changed(world)
    world.verdict = Verdict.PASS
    world.settle()
    for _ in range(4):
        assert ordered(world.seen, world.desired(), "default", bounds) == 4, (stage(world), counts(world))
        seen = standing(world.seen, world.desired(), "default")
        assert seen is not None
        assert seen.rolling == (traffic(world).rollout is not None)
        if traffic(world).rollout is not None:
            assert len(seen.loaded) == sum(counts(world)), "both revisions carry the load"
        wait(world, 61.0)


def test_a_rejected_revision_holds_up_no_scaling() -> None:
    world = changed(rolled())
    world.settle()
    world.verdict = Verdict.FAIL
    world.settle()
    seen = standing(world.seen, world.desired(), "default")
    assert seen is not None
    assert (seen.rolling, len(seen.pods), len(seen.loaded)) == (False, 4, 4)


@pytest.mark.parametrize("seed", range(12))
def test_whoever_acts_first_no_request_is_without_a_replica_and_no_weight_is_wrong(seed: int) -> None:
    order = random.Random(seed)
    world = World(spec(replicas=4, rollout=CANARY), routers=2)
    world.settle(order=order)
    reached: list[int] = []

    def check() -> None:
        for count in world.routed():
            assert count >= 1, "a router has nobody to send requests to"
        generations = [r.traffic.generation for r in world.seen.revisions if r.traffic is not None]
        assert len(set(generations)) == len(generations), "two records of one generation"
        record = traffic(world)
        assert sum(e.weight for e in record.entries) == 100
        reached.append(record.generation)

    for runtime, verdict in ((NEW, Verdict.PASS), ({"maxNumSeqs": 16}, Verdict.FAIL), ({"maxNumSeqs": 16}, None)):
        changed(world, runtime=runtime)
        world.verdict = verdict
        for _ in range(6):
            world.now += order.choice([1.0, 30.0, 61.0, 61.0])
            world.settle(check, order)
    assert reached == sorted(reached)
    assert shares(world).get("C") is None
