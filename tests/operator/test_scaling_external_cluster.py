"""A real HorizontalPodAutoscaler of the real controllers: where it is asked for, and where it is in the way (C104)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metrics_adapter import adapter
from operator_world import World
from scaled_world import Nodes, counts, nodes_of, scaling, until_count
from stand_in_replica import Load

from paceline_kube import DEPLOYMENTS, INFERENCESERVICES, JsonObject
from paceline_operator.scaling.pages import values_of
from paceline_operator.scaling.rivals import HPAS

pytestmark = pytest.mark.cluster

METRIC = "paceline-waiting"


def waiting(nodes: Nodes) -> float:
    """What the replicas' own pages say, added up."""
    pages = [one.page() for one in list(nodes.replicas.values())]
    return sum(float(values_of(page)["vllm:num_requests_waiting"]) for page in pages)


def hpa(kind: str, name: str, api: str) -> JsonObject:
    """Four waiting requests a replica, one to three replicas, down at once."""
    metric = {
        "type": "External",
        "external": {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "4"}},
    }
    return {
        "metadata": {"name": "theirs"},
        "spec": {
            "scaleTargetRef": {"apiVersion": api, "kind": kind, "name": name},
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [metric],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


async def test_with_mode_external_an_hpa_scales_the_service_by_what_replicas_say(
    world: World, make_service: Callable[..., Any], tmp_path: Path
) -> None:
    async with nodes_of(world) as nodes, scaling(world) as operator:
        await world.apply(make_service(scaling={"mode": "External"}))
        await world.until_ready()
        with adapter(world.cluster, tmp_path, METRIC, lambda: waiting(nodes)):
            theirs = hpa("InferenceService", "chat", "paceline.io/v1alpha1")
            await world.client.create(HPAS, theirs, world.namespace)
            nodes.set_load(Load(waiting=10))
            await until_count(world, 3)
            assert (await world.get(INFERENCESERVICES, "chat"))["spec"]["replicas"] == 3
            await world.until_ready()
            nodes.set_load(Load())
            await until_count(world, 1)
            await world.client.delete(HPAS, "theirs", world.namespace)
        status = (await world.get(INFERENCESERVICES, "chat"))["status"]
        assert "scaling" not in status
        assert not await world.condition(type="ScalingActive")
        assert operator.errors == []


async def test_a_pool_that_an_hpa_of_somebody_else_scales_is_left_to_it_without_a_fight_until_it_is_gone(
    world: World, make_service: Callable[..., Any], tmp_path: Path
) -> None:
    async with nodes_of(world) as nodes, scaling(world) as operator:
        await world.apply(make_service(scaling={"maxReplicas": 4}))
        await world.until_ready()
        [deployment] = await world.all(DEPLOYMENTS)
        with adapter(world.cluster, tmp_path, METRIC, lambda: waiting(nodes)):
            nodes.set_load(Load(waiting=10))
            theirs = hpa("Deployment", deployment["metadata"]["name"], "apps/v1")
            await world.client.create(HPAS, theirs, world.namespace)

            async def said() -> bool:
                return (await world.condition(type="ScalingActive")).get("reason") == "ScalerConflict"

            await world.until(said, "the status says who else scales it")
            await until_count(world, 3)
            [before] = await world.all(DEPLOYMENTS)
            # Several rounds of both: nobody undoes what the other wrote.
            await asyncio.sleep(6.0)
            [after] = await world.all(DEPLOYMENTS)
            assert after["metadata"]["generation"] == before["metadata"]["generation"]
            assert await counts(world) == [3]
            assert "HPA theirs scales Deployment" in (await world.condition(type="ScalingActive"))["message"]
            assert "ScalerConflict" in operator.told.reasons()
            await world.client.delete(HPAS, "theirs", world.namespace)

        async def ours_again() -> bool:
            return (await world.condition(type="ScalingActive")).get("status") == "True"

        nodes.set_load(Load())
        await world.until(ours_again, "Paceline decides again")
        await until_count(world, 1)
        assert operator.errors == []
