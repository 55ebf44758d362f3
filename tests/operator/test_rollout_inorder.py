"""Pools in order: those that matter most change last, by a rollout of their own."""

from __future__ import annotations

from typing import Any

from planned_world import World, spec

from paceline_operator.render import Desired
from paceline_operator.rollout.inorder import in_order
from paceline_operator.rollout.state import Phase
from paceline_operator.rollout.told import rollout_status
from paceline_shadow_traffic.verdict import Verdict

STEPS = [{"weight": 50, "hold": "60s", "maxDuration": "10m"}, {"weight": 100, "hold": "30s"}]
CANARY: dict[str, Any] = {"strategy": "Canary", "steps": STEPS, "lastPools": ["chat"]}
POOLS = [
    {"name": "bulk", "shapes": ["VeryLong"], "replicas": 2},
    {"name": "chat", "shapes": ["ShortInputShortOutput"], "replicas": 2},
]


class Ordered(World):
    """Renders as the operator does."""

    def desired(self) -> Desired:
        return in_order(super().desired(), self.seen)

    @property
    def asked(self) -> Desired:
        """By the spec alone."""
        return super().desired()


def served(**rollout: Any) -> Ordered:
    """A service of three pools that serves."""
    world = Ordered(spec(replicas=2, pools=POOLS, rollout=CANARY | rollout))
    world.settle()
    return world


def changed(world: Ordered, pools: list[dict[str, Any]] | None = None, **fields: Any) -> Ordered:
    world.change(replicas=2, pools=pools or POOLS, rollout=world.spec["rollout"], **fields)
    return world


def hashes(world: Ordered, revision: str) -> dict[str, str]:
    view = world.seen.revision(revision)
    assert view is not None
    return {pool.name: pool.hash for pool in view.pools}


def serving(world: Ordered) -> str:
    traffic = world.seen.traffic
    assert traffic is not None
    return traffic.revision


def test_what_matters_most_changes_when_all_others_have_by_a_rollout_of_its_own() -> None:
    world = served()
    before = hashes(world, serving(world))
    changed(world, runtime={"maxNumSeqs": 8})
    assert world.desired().waiting == ("chat",)
    world.settle()
    first = world.seen.traffic
    assert first is not None
    assert first.rollout is not None
    candidate = hashes(world, first.rollout.candidate)
    assert (candidate["chat"], candidate["bulk"] != before["bulk"]) == (before["chat"], True)
    shares = {(one.pool, one.weight) for one in first.entries if one.revision == first.rollout.candidate}
    assert shares == {("default", 50), ("bulk", 50), ("chat", 50)}, "of the pool chat both have the same replicas"
    world.verdict = Verdict.PASS
    between = set()
    for _ in range(20):
        world.now += 61.0
        world.settle()
        between.add(serving(world))
    assert serving(world) == world.asked.revision == world.desired().revision
    assert world.desired().waiting == ()
    assert first.rollout.candidate in between
    assert hashes(world, serving(world))["chat"] != before["chat"]


def test_what_is_rejected_changes_nothing_of_what_waits() -> None:
    world = served()
    before = hashes(world, serving(world))
    changed(world, runtime={"maxNumSeqs": 8})
    world.settle()
    world.verdict = Verdict.FAIL
    world.settle()
    traffic = world.seen.traffic
    assert traffic is not None
    assert traffic.rollout is not None
    assert (traffic.rollout.phase, traffic.rollout.rejected) == (Phase.IDLE, world.desired().revision)
    assert hashes(world, serving(world)) == before
    assert world.desired().waiting == ("chat",)


def test_a_change_of_either_kind_alone_is_one_rollout() -> None:
    only_last = served()
    changed(only_last, [POOLS[0], {**POOLS[1], "runtime": {"maxNumSeqs": 8}}])
    assert (only_last.desired(), only_last.desired().waiting) == (only_last.asked, ())
    only_others = served()
    changed(only_others, [{**POOLS[0], "runtime": {"maxNumSeqs": 8}}, POOLS[1]])
    assert (only_others.desired(), only_others.desired().waiting) == (only_others.asked, ())


def test_without_the_field_or_a_base_nothing_waits() -> None:
    world = served(lastPools=None)
    changed(world, runtime={"maxNumSeqs": 8})
    assert world.desired() == world.asked
    new = Ordered(spec(replicas=2, pools=POOLS, rollout=CANARY))
    assert new.desired() == new.asked


def test_another_spec_in_the_middle_is_ordered_anew() -> None:
    world = served()
    changed(world, runtime={"maxNumSeqs": 8})
    world.settle()
    first = world.desired().revision
    changed(world, runtime={"maxNumSeqs": 4})
    world.settle()
    assert world.desired().revision != first
    assert world.desired().waiting == ("chat",)


def test_the_status_names_what_waits() -> None:
    world = changed(served(), runtime={"maxNumSeqs": 8})
    world.settle()
    traffic = world.seen.traffic
    assert traffic is not None
    told = rollout_status(traffic.rollout, world.desired().revision, None, world.desired().waiting)
    assert told is not None
    assert told.waiting_pools == ["chat"]
