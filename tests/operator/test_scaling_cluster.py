"""A pool's count follows the load that its replicas say, on a real API server with its real controllers."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from operator_world import Operator, World, ready_status
from stand_in_replica import Load, StandIn

from paceline_autoscaler.observed import Settings as Tuning
from paceline_kube import DEPLOYMENTS, INFERENCESERVICES, PODS, JsonObject

pytestmark = pytest.mark.cluster

EAGER = Tuning(smoothing=1.0, down_window=2.0, down_every=0.5)
BUSY = Load(requests=10, prefill=1000, decode=200, seconds=1.0, steps=50, running=8)


class Nodes:
    """Addresses for pods, and a stand-in replica behind each."""

    def __init__(self) -> None:
        self._net = f"127.{random.randint(60, 120)}.{random.randint(1, 250)}"
        self._numbers = itertools.count(1)
        self.load = Load()
        self.replicas: dict[str, StandIn] = {}
        """By pod name."""
        self.free: list[StandIn] = []

    async def prepare(self, stack: AsyncExitStack, count: int = 12) -> None:
        for _ in range(count):
            one = StandIn(f"{self._net}.{next(self._numbers)}", Load())
            await one.start()
            stack.push_async_callback(one.stop)
            self.free.append(one)

    def status(self, pod: JsonObject) -> JsonObject | None:
        """As a kubelet writes it, for `World.kubelet`."""
        name = pod["metadata"]["name"]
        if name not in self.replicas:
            self.replicas[name] = one = self.free.pop()
            one.load = self.load
        return {**ready_status(), "podIP": self.replicas[name].address}

    def set_load(self, load: Load) -> None:
        self.load = load
        for one in self.replicas.values():
            one.load = load


@asynccontextmanager
async def scaled(world: World, **settings: Any) -> AsyncIterator[tuple[Operator, Nodes]]:
    nodes = Nodes()
    async with AsyncExitStack() as stack:
        await nodes.prepare(stack)
        await stack.enter_async_context(world.kubelet(nodes.status))
        operator = await stack.enter_async_context(world.operator(scaling_seconds=0.5, tuning=EAGER, **settings))
        yield operator, nodes


async def counts(world: World) -> list[int]:
    return [d["spec"]["replicas"] for d in await world.all(DEPLOYMENTS)]


async def until_count(world: World, count: int) -> None:
    async def check() -> bool:
        pods = [p for p in await world.all(PODS) if not p["metadata"].get("deletionTimestamp")]
        return await counts(world) == [count] and len(pods) == count

    await world.until(check, f"the pool has {count} replicas")


async def test_a_pool_follows_the_load_that_its_replicas_say(world: World, make_service: Callable[..., Any]) -> None:
    async with scaled(world) as (operator, nodes):
        await world.apply(make_service(scaling={"minReplicas": 1, "maxReplicas": 2}))
        await world.until_ready()
        assert await counts(world) == [1]
        nodes.set_load(BUSY)
        await until_count(world, 2)
        nodes.set_load(Load())
        await until_count(world, 1)

        [said] = (await world.get(INFERENCESERVICES, "chat"))["status"]["scaling"]
        assert said["pool"] == "default"
        assert said["desired"] == 1
        assert said["inputs"]["ready"] == "2" or said["reason"] == "Steady"
        active = await world.condition(type="ScalingActive")
        assert active["status"] == "True", active
        assert operator.told.reasons().count("Scaled") == 2
        assert "Pool default goes from 1 to 2 replicas" in str(operator.told.events)
        assert (await world.get(INFERENCESERVICES, "chat"))["spec"]["replicas"] == 1
        assert operator.errors == []
