"""A pool's count follows the load that its replicas say, on a real API server with its real controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from operator_world import World
from scaled_world import BUSY, ROUTER, counts, nodes_of, scaling, until_count
from stand_in_replica import Load, StandInRouter

from paceline_crds.names import ANNOTATION_DRAINING
from paceline_kube import DEPLOYMENTS, INFERENCESERVICES, PODS

pytestmark = pytest.mark.cluster


async def test_a_pool_follows_the_load_that_its_replicas_say(world: World, make_service: Callable[..., Any]) -> None:
    async with nodes_of(world) as nodes, scaling(world) as operator:
        await world.apply(make_service(scaling={"minReplicas": 1, "maxReplicas": 2}))
        await world.until_ready()
        assert await counts(world) == [1]
        nodes.set_load(BUSY)
        await until_count(world, 2)
        nodes.set_load(Load())
        await until_count(world, 1)

        async def told() -> bool:
            [said] = (await world.get(INFERENCESERVICES, "chat"))["status"]["scaling"]
            active = await world.condition(type="ScalingActive")
            return (said["pool"], said["desired"], active["status"]) == ("default", 1, "True") and "work" in said[
                "inputs"
            ]

        await world.until(told, "the status has the decision and its numbers")
        assert operator.told.reasons().count("Scaled") == 2
        assert "Pool default goes from 1 to 2 replicas" in str(operator.told.events)
        assert (await world.get(INFERENCESERVICES, "chat"))["spec"]["replicas"] == 1
        assert operator.errors == []


async def marked(world: World) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in await world.all(PODS)
        if ANNOTATION_DRAINING in (pod["metadata"].get("annotations") or {})
    }


async def living(world: World) -> set[str]:
    return {p["metadata"]["name"] for p in await world.all(PODS) if not p["metadata"].get("deletionTimestamp")}


async def test_the_replica_with_the_least_to_lose_goes_once_it_is_empty_across_a_restart_and_comes_back_with_load(
    world: World, make_service: Callable[..., Any]
) -> None:
    async with nodes_of(world) as nodes:
        nodes.set_load(Load(running=5))
        async with scaling(world):
            await world.apply(make_service(replicas=3, scaling={"minReplicas": 3, "maxReplicas": 4}))
            await world.until_ready()
            chosen = sorted(await living(world))[1]
            nodes.replicas[chosen].load = Load(running=1)
            await world.apply(make_service(replicas=3, scaling={"minReplicas": 2, "maxReplicas": 4}))

            async def drains() -> bool:
                return await marked(world) == {chosen} and nodes.replicas[chosen].asked >= 3

            await world.until(drains, "the replica with the fewest requests drains, and is asked again and again")
            assert await counts(world) == [3]
        before = nodes.replicas[chosen].asked
        async with scaling(world) as operator:

            async def asked_again() -> bool:
                return nodes.replicas[chosen].asked >= before + 3

            await world.until(asked_again, "the next operator goes on with it")
            assert await counts(world) == [3]
            assert await marked(world) == {chosen}
            others = await living(world) - {chosen}
            nodes.replicas[chosen].load = Load()

            async def gone() -> bool:
                return chosen not in await living(world) and await counts(world) == [2]

            await world.until(gone, "the empty replica is gone")
            assert await living(world) == others
            assert await marked(world) & others == set()
            assert operator.errors == []


async def test_a_drain_is_taken_back_when_load_returns(world: World, make_service: Callable[..., Any]) -> None:
    async with nodes_of(world) as nodes, scaling(world) as operator:
        nodes.set_load(Load(running=5))
        await world.apply(make_service(replicas=2, scaling={"minReplicas": 2, "maxReplicas": 3}))
        await world.until_ready()
        await world.apply(make_service(replicas=2, scaling={"minReplicas": 1, "maxReplicas": 2}))

        async def one_drains() -> bool:
            return len(await living(world)) == 2 and len(await marked(world)) == 1

        await world.until(one_drains, "one of two replicas drains")
        both = await living(world)
        nodes.set_load(BUSY)

        async def none_drains() -> bool:
            return not await marked(world)

        await world.until(none_drains, "it takes requests again")
        assert await living(world) == both
        assert await counts(world) == [2]
        # A service that follows load no more leaves no mark behind.
        nodes.set_load(Load(running=5))
        await world.until(one_drains, "one drains again")
        await world.apply(make_service(replicas=2))
        await world.until(none_drains, "its mark is taken away")
        assert await living(world) == both
        assert operator.errors == []


async def test_who_scales_by_hand_changes_nothing_where_the_count_follows_load(
    world: World, make_service: Callable[..., Any]
) -> None:
    async with nodes_of(world) as nodes, scaling(world) as operator:
        nodes.set_load(Load(running=5))
        await world.apply(make_service(replicas=2, scaling={"minReplicas": 2, "maxReplicas": 3}))
        await world.until_ready()
        scaled = {"spec": {"replicas": 5}}
        await world.client.patch(INFERENCESERVICES, "chat", scaled, world.namespace, subresource="scale")
        generation = (await world.get(INFERENCESERVICES, "chat"))["metadata"]["generation"]

        async def seen() -> bool:
            return (await world.get(INFERENCESERVICES, "chat"))["status"]["observedGeneration"] == generation

        await world.until(seen, "the operator has seen the scale of the service")
        assert await counts(world) == [2]
        [deployment] = await world.all(DEPLOYMENTS)
        await world.client.patch(DEPLOYMENTS, deployment["metadata"]["name"], scaled, world.namespace)
        # Those that are not ready yet go at once, others as any replica that is too many: when they are empty.
        nodes.set_load(Load())
        await until_count(world, 2)
        # With a fixed count the spec's is in force again.
        await world.apply(make_service(replicas=3, scaling={"mode": "Fixed", "minReplicas": 2, "maxReplicas": 3}))
        await until_count(world, 3)

        async def untold() -> bool:
            status = (await world.get(INFERENCESERVICES, "chat"))["status"]
            return "scaling" not in status and not await world.condition(type="ScalingActive")

        await world.until(untold, "the status says nothing of scaling any more")
        assert operator.errors == []


async def test_an_idle_service_goes_to_zero_stays_there_across_a_restart_and_wakes_for_a_held_request(
    world: World, make_service: Callable[..., Any]
) -> None:
    router = StandInRouter({f"{world.namespace}/chat": 0})
    await router.start()
    pod = {
        "metadata": {"name": ROUTER, "labels": {"app.kubernetes.io/component": "router"}},
        "spec": {"containers": [{"name": "router", "image": "r"}]},
    }
    await world.client.create(PODS, pod, world.namespace)
    try:
        async with nodes_of(world) as nodes:
            async with scaling(world, router_admin_port=router.port):
                zero = {"maxReplicas": 2, "scaleToZero": {"after": "1s"}}
                await world.apply(make_service(scaling=zero))
                await world.until_ready(reason="ScaledToZero")
                assert await counts(world) == [0]
            async with scaling(world, router_admin_port=router.port) as operator:

                async def decided() -> bool:
                    return bool(operator.scaling.of((world.namespace, "chat")))

                await world.until(decided, "the next operator has looked at it")
                assert await counts(world) == [0]
                # While it works it stays.
                nodes.set_load(Load(requests=1, prefill=1, decode=1, seconds=0.01, steps=1))
                router.held[f"{world.namespace}/chat"] = 3
                await world.until_ready()
                assert await counts(world) == [1]
                assert "Wake" in operator.told.reasons()
                assert operator.errors == []
    finally:
        await router.stop()
