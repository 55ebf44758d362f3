"""The keeper over time, on a world that obeys: pools that rest together, and leaders that follow one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from planned_world import World, spec

from paceline_crds import metrics
from paceline_kube import JsonObject, KubeClient
from paceline_operator.scaling.keeper import ScalingKeeper, Seen

TICK = 10.0
KEY = ("demo", "chat")
ZERO = {"maxReplicas": 4, "scaleToZero": {"after": "5m"}}


def page(work: float) -> dict[str, str]:
    """A replica that has worked for so many seconds, and has nothing left."""
    values = {
        metrics.RUNTIME_STEP_PHASE: work,
        metrics.RUNTIME_ENGINE_STEPS: 50.0 * work,
        metrics.RUNTIME_PREFILL_TOKENS_COMPUTED: 1000.0 * work,
        metrics.RUNTIME_GENERATION_TOKENS: 100.0 * work,
        metrics.RUNTIME_REQUESTS_RECEIVED: work,
        metrics.RUNTIME_REQUESTS_WAITING: 0.0,
        metrics.RUNTIME_REQUESTS_RUNNING: 0.0,
        metrics.RUNTIME_PREFILL_TOKENS: 0.0,
        metrics.RUNTIME_KV_CACHE_USAGE: 0.0,
    }
    return {metric.name: str(value) for metric, value in values.items()}


@dataclass
class Cluster:
    """Some operators over one service; what is decided is done at once."""

    world: World
    now: float = 0.0
    work: dict[str, float] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    events: list[tuple[float, str, str]] = field(default_factory=list)

    def keeper(self) -> ScalingKeeper:
        """One operator's."""
        client = AsyncMock(spec=KubeClient)
        one = ScalingKeeper(
            services=lambda: [self.service],
            seen=lambda key: self.seen(),
            pods=lambda: [],
            client=client,
            routers=self.routers,
            changed=lambda key: None,
            recorder=self,
            clock=lambda: self.now,
        )
        one._replicas = AsyncMock()
        one._replicas.ask = self.ask
        return one

    @property
    def service(self) -> JsonObject:
        return {"metadata": {"namespace": "demo", "name": "chat", "uid": "uid"}, "spec": self.world.spec}

    def seen(self) -> Seen:
        pods = tuple({"metadata": {"uid": pod.uid, "name": pod.name, "namespace": "demo"}} for pod in self.pods)
        return Seen(self.service, self.world.seen, self.world.desired(), pods)

    @property
    def pods(self) -> Any:
        return self.world.seen.pods

    def event(self, about: JsonObject, *, type: str, reason: str, message: str) -> None:
        self.events.append((self.now, reason, message))

    async def routers(self, path: str) -> tuple[int, list[Mapping[str, Any]]]:
        service = {"held": sum(self.held.values()), "heldByPool": self.held, "oldestWaitSeconds": 0.0}
        return 1, [{"services": {"demo/chat": service}}]

    async def ask(self, pods: Iterable[JsonObject]) -> dict[str, tuple[float, Mapping[str, str]]]:
        pool_of = {pod.uid: pod.pool for pod in self.pods}
        uids = [str(pod["metadata"]["uid"]) for pod in pods]
        return {uid: (self.now, page(self.work.get(pool_of[uid], 0.0))) for uid in uids}

    async def go(self, keeper: ScalingKeeper, seconds: float, **busy: float) -> None:
        """Time goes by under one leader, while pools are busy for a share of it; what it decides is done."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            for pool, share in busy.items():
                self.work[pool] = self.work.get(pool, 0.0) + share * TICK
            await keeper.look()
            self.obey(keeper)

    def obey(self, keeper: ScalingKeeper) -> None:
        counts = self.decided(keeper)
        done = [replace(one, replicas=counts.get(one.pool, one.replicas)) for one in self.world.seen.deployments]
        self.world.seen = replace(self.world.seen, deployments=tuple(done))
        while self.world.deployments() or self.world.node() or self.world.drain():
            pass

    def decided(self, keeper: ScalingKeeper) -> dict[str, int]:
        return {name: one.desired for name, one in (keeper.of(KEY) or {}).items()}


def cluster(**fields: Any) -> Cluster:
    world = World(spec(**fields))
    world.settle()
    pods = [replace(pod, uid=pod.name) for pod in world.seen.pods]
    world.set_pods(pods)
    return Cluster(world)


async def test_pools_of_a_service_go_to_zero_together_and_wake_together() -> None:
    home = cluster(scaling=ZERO, pools=[{"name": "long"}])
    keeper = home.keeper()
    await home.go(keeper, 1200.0, long=0.3)
    assert home.decided(keeper) == {"default": 1, "long": 1}, "one is at work, and the other's requests would go there"
    await home.go(keeper, 200.0)
    assert home.decided(keeper) == {"default": 1, "long": 1}, "not for long enough"
    await home.go(keeper, 400.0)
    assert home.decided(keeper) == {"default": 0, "long": 0}
    home.held = {"long": 1}
    await home.go(keeper, TICK)
    assert home.decided(keeper) == {"default": 1, "long": 1}


async def test_what_rests_stays_so_for_an_operator_that_begins_and_a_pool_alone_at_zero_is_brought_back() -> None:
    home = cluster(scaling=ZERO, pools=[{"name": "long"}])
    await home.go(home.keeper(), 1200.0)
    following = home.keeper()
    await home.go(following, 300.0)
    assert home.decided(following) == {"default": 0, "long": 0}
    deployments = [replace(one, replicas=int(one.pool == "long")) for one in home.world.seen.deployments]
    home.world.seen = replace(home.world.seen, deployments=tuple(deployments))
    last = home.keeper()
    await home.go(last, TICK)
    assert home.decided(last) == {"default": 1, "long": 1}, "nobody's request would have woken it"


@pytest.mark.parametrize("replicas", [3, 0], ids=["replicas that are too many", "at zero"])
async def test_three_leaders_that_are_killed_in_turns_change_nothing_without_traffic(replicas: int) -> None:
    """Every half a minute the one that leads is gone and the next one begins (C097)."""
    home = cluster(replicas=3, scaling=ZERO if replicas == 0 else {"maxReplicas": 4})
    if replicas == 0:
        await home.go(home.keeper(), 1200.0)
        home.events.clear()
    for _ in range(60):
        keeper = home.keeper()
        await home.go(keeper, 30.0)
        assert home.decided(keeper) == {"default": replicas}
    assert home.events == []
    # Whoever stays sees a whole window, and then it goes on as ever.
    await home.go(keeper, 1200.0)
    assert home.decided(keeper) == {"default": min(1, replicas)}


async def test_a_leader_that_leads_again_remembers_nothing_of_before() -> None:
    """Another one may have decided meanwhile: the operator lets it forget, and a whole window is seen anew."""
    home = cluster(replicas=3, scaling={"maxReplicas": 4})
    keepers = [home.keeper() for _ in range(3)]
    for turn in range(60):
        keeper = keepers[turn % 3]
        keeper.forget()
        await home.go(keeper, 30.0)
    assert home.events == []
    assert home.decided(keeper) == {"default": 3}
