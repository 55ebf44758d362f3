"""A world whose replicas say what load they have: addresses for pods, and a stand-in replica behind each."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from operator_world import Operator, World, ready_status
from stand_in_replica import Load, StandIn

from paceline_autoscaler.observed import Settings as Tuning
from paceline_kube import DEPLOYMENTS, PODS, JsonObject

ROUTER = "router-0"
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
        """Start stand-ins for so many replicas."""
        for _ in range(count):
            one = StandIn(f"{self._net}.{next(self._numbers)}", Load())
            await one.start()
            stack.push_async_callback(one.stop)
            self.free.append(one)

    def status(self, pod: JsonObject) -> JsonObject | None:
        """As a kubelet writes it, for `World.kubelet`."""
        name = pod["metadata"]["name"]
        if name == ROUTER:
            return {**ready_status(), "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        if name not in self.replicas:
            self.replicas[name] = one = self.free.pop()
            one.load = self.load
        return {**ready_status(), "podIP": self.replicas[name].address}

    def set_load(self, load: Load) -> None:
        """What every replica has from now on."""
        self.load = load
        for one in self.replicas.values():
            one.load = load


@asynccontextmanager
async def nodes_of(world: World) -> AsyncIterator[Nodes]:
    """Nodes, while the block lasts."""
    nodes = Nodes()
    async with AsyncExitStack() as stack:
        await nodes.prepare(stack)
        await stack.enter_async_context(world.kubelet(nodes.status))
        yield nodes


def scaling(world: World, **settings: Any) -> AbstractAsyncContextManager[Operator]:
    """An operator that looks twice a second and decides eagerly."""
    return world.operator(scaling_seconds=0.5, tuning=EAGER, **settings)


async def counts(world: World) -> list[int]:
    """Replicas that Deployments ask for."""
    return [d["spec"]["replicas"] for d in await world.all(DEPLOYMENTS)]


async def until_count(world: World, count: int) -> None:
    """Wait until the one Deployment asks for so many replicas and has them."""

    async def check() -> bool:
        pods = [p for p in await world.all(PODS) if not p["metadata"].get("deletionTimestamp")]
        return await counts(world) == [count] and len(pods) == count

    await world.until(check, f"the pool has {count} replicas")
