"""Knobs follow load in running replicas, on a real API server: no pod is replaced, no revision made, nothing drifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from operator_world import Operator, World
from scaled_world import Nodes, nodes_of
from stand_in_replica import Load

from paceline_autoscaler.knobs import Settings
from paceline_crds.revision import InferenceRevision
from paceline_kube import INFERENCEREVISIONS, INFERENCESERVICES, PODS

pytestmark = pytest.mark.cluster

EAGER = {"window": 1.0, "settings": Settings(settle=3600.0)}
SLOW = Load(requests=50, prefill=20000, decode=6000, running=20, ended=100, tpot=0.09)
SLO = {"tpot": {"p90": "60ms"}}
RANGED = {"autoRanges": {"prefillChunkTokens": {"min": 64, "max": 512}, "maxNumSeqs": {"min": 8, "max": 32}}}


async def say_what_they_run_with(world: World, nodes: Nodes) -> None:
    """Have the stand-ins say at their page that they run as recorded."""
    [revision] = await world.all(INFERENCEREVISIONS)
    [pool] = InferenceRevision.from_object(revision).spec.pools
    config = pool.config.model_dump(mode="json", by_alias=True)
    parameters = {
        name: {"value": value, "origin": config["origins"][name]} for name, value in config["parameters"].items()
    }
    for one in nodes.replicas.values():
        one.config = {"model": config["model"], "model_digest": "sha256:0", "parameters": parameters}


async def pods_of(world: World) -> set[str]:
    return {str(pod["metadata"]["uid"]) for pod in await world.all(PODS)}


async def in_sync(world: World, operator: Operator) -> None:
    """Wait until a look for drift has seen every replica as it is now, and found nothing."""
    before = operator.drift.looks

    async def looked() -> bool:
        condition = await world.condition(type="ConfigInSync")
        return operator.drift.looks > before + 2 and condition.get("status") == "True"

    await world.until(looked, "looks for drift find nothing")


async def test_knobs_follow_load_without_a_restart_across_operators_and_go_back_without_ranges(
    world: World, make_service: Callable[..., Any]
) -> None:
    def operator() -> Any:
        return world.operator(scaling_seconds=0.3, drift_seconds=0.5, knobs=EAGER)

    async with nodes_of(world) as nodes:

        def knobs() -> list[dict[str, int]]:
            return [one.knobs for one in nodes.replicas.values()]

        async with operator() as first:
            await world.apply(make_service(replicas=2, slo=SLO, runtime=RANGED))
            await world.until_ready()
            await say_what_they_run_with(world, nodes)
            pods = await pods_of(world)
            nodes.set_load(SLOW)

            async def tuned() -> bool:
                return knobs() == [{"prefillChunkTokens": 352}] * 2

            await world.until(tuned, "both replicas run with smaller pieces of prompts")

            async def told() -> bool:
                status = (await world.get(INFERENCESERVICES, "chat"))["status"]
                active = await world.condition(type="TuningActive")
                return (
                    active.get("status") == "True"
                    and [one["knobs"]["prefillChunkTokens"] for one in status.get("tuning") or ()] == [352]
                    and "60 ms are promised" in status["tuning"][0]["message"]
                )

            await world.until(told, "the status has the decision and its numbers")
            assert first.told.reasons().count("KnobsTightened") == 1
            await in_sync(world, first)
            assert first.drift.tuned((world.namespace, "chat")) == set(nodes.replicas)
            assert first.errors == []
        # What is in effect outlives the operator, and the next one goes on with it.
        async with operator() as second:

            async def found() -> bool:
                return bool(second.knobs.of((world.namespace, "chat")))

            await world.until(found, "the next operator has looked at it")
            assert knobs() == [{"prefillChunkTokens": 352}] * 2
            # A replica that begins anew begins as recorded, and is told.
            again = next(iter(nodes.replicas.values()))
            again.knobs = {}
            await world.until(tuned, "the replica that began anew runs as the others do")
            await world.apply(make_service(replicas=2, slo=SLO))

            async def back() -> bool:
                status = (await world.get(INFERENCESERVICES, "chat"))["status"]
                return knobs() == [{}, {}] and "tuning" not in status and not await world.condition(type="TuningActive")

            await world.until(back, "replicas run as they were started, and nothing is told any more")
            await in_sync(world, second)
            assert second.drift.tuned((world.namespace, "chat")) == set()
            assert "ConfigDrift" not in (*first.told.reasons(), *second.told.reasons())
            assert await pods_of(world) == pods, "no pod was replaced"
            assert len(await world.all(INFERENCEREVISIONS)) == 1, "it is one configuration"
            assert second.errors == []
