"""An API server that refuses, forgets, hangs and loses answers: the reconciler on a real one behind a client that does
all of that at random.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    ApiError,
    Gone,
    JsonObject,
    KubeClient,
    KubeError,
    ObjectList,
    TooManyRequests,
    Unreachable,
    WatchEvent,
)
from paceline_operator import written

pytestmark = pytest.mark.cluster


class Unreliable:
    """A `KubeClient` that fails by chance while `chance` is above zero.

    Calls are refused (429 with Retry-After, 500, 503), never sent, carried out with the answer lost, or slow. Watches
    end by 410, by an error in the stream, or by a cut, after some events.
    """

    def __init__(self, client: KubeClient, order: random.Random) -> None:
        self._client = client
        self._order = order
        self.chance = 0.0
        self.faults: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def timeout(self) -> float:
        return self._client.timeout

    def _draw(self, *kinds: str) -> str:
        if self._order.random() >= self.chance:
            return ""
        kind = self._order.choice(kinds)
        self.faults[kind] = self.faults.get(kind, 0) + 1
        return kind

    async def _call(self, call: Callable[[], Any]) -> Any:
        match self._draw("throttled", "broken", "unavailable", "unsent", "unanswered", "slow"):
            case "throttled":
                raise TooManyRequests(429, "TooManyRequests", "too many requests", {}, retry_after=1.0)
            case "broken":
                raise ApiError(500, "InternalError", "etcdserver: request timed out", {})
            case "unavailable":
                raise ApiError(503, "ServiceUnavailable", "apiserver is shutting down", {})
            case "unsent":
                raise Unreachable("connection refused")
            case "unanswered":
                await call()
                raise Unreachable("the answer was cut")
            case "slow":
                await asyncio.sleep(self._order.uniform(0.2, 1.0))
        return await call()

    async def get(self, *args: Any, **options: Any) -> JsonObject:
        return await self._call(lambda: self._client.get(*args, **options))  # type: ignore[no-any-return]

    async def list(self, *args: Any, **options: Any) -> ObjectList:
        return await self._call(lambda: self._client.list(*args, **options))  # type: ignore[no-any-return]

    async def create(self, *args: Any, **options: Any) -> JsonObject:
        return await self._call(lambda: self._client.create(*args, **options))  # type: ignore[no-any-return]

    async def apply(self, *args: Any, **options: Any) -> JsonObject:
        return await self._call(lambda: self._client.apply(*args, **options))  # type: ignore[no-any-return]

    async def patch(self, *args: Any, **options: Any) -> JsonObject:
        return await self._call(lambda: self._client.patch(*args, **options))  # type: ignore[no-any-return]

    async def delete(self, *args: Any, **options: Any) -> JsonObject:
        return await self._call(lambda: self._client.delete(*args, **options))  # type: ignore[no-any-return]

    async def watch(self, *args: Any, **options: Any) -> AsyncIterator[WatchEvent]:
        if self._draw("refused watch"):
            raise TooManyRequests(429, "TooManyRequests", "storage is (re)initializing", {}, retry_after=1.0)
        async with aclosing(self._client.watch(*args, **options)) as events:  # type: ignore[type-var]
            async for event in events:
                match self._draw("expired", "error event", "cut"):
                    case "expired":
                        raise Gone(410, "Expired", "too old resource version", {})
                    case "error event":
                        raise ApiError(500, "InternalError", "etcdserver: no leader", {})
                    case "cut":
                        raise Unreachable("the watch was cut")
                yield event


@pytest.mark.parametrize("seed", range(3))
async def test_through_any_trouble_everything_is_made_once_and_comes_to_rest(
    world: Any, make_service: Any, seed: int
) -> None:
    order = random.Random(seed)
    users = world.client
    unreliable = Unreliable(users, order)
    world.client = unreliable
    names = [f"s{number}" for number in range(6)]
    async with world.operator() as operator:
        world.client = users
        async with world.kubelet():
            unreliable.chance = 0.25
            gone: set[str] = set()
            for number in range(30):
                name = order.choice(names)
                if order.random() < 0.15:
                    if name not in gone:
                        try:
                            await users.delete(INFERENCESERVICES, name, world.namespace)
                        except KubeError:
                            continue
                        gone.add(name)
                else:
                    runtime = {"maxNumSeqs": 1 + number % 4}
                    await world.apply(make_service(name, replicas=order.randint(0, 2), runtime=runtime))
                    gone.discard(name)
                await asyncio.sleep(order.uniform(0.0, 0.4))
            for name in names:
                await world.apply(make_service(name, replicas=1, runtime={"maxNumSeqs": 2}))
            unreliable.chance = 0.0
            for name in names:
                await world.until_ready(name, seconds=90)

            async def at_rest() -> bool:
                deployments, configs = await world.all(DEPLOYMENTS), await world.all(CONFIGMAPS)
                kept = [o["metadata"]["labels"]["paceline.io/service"] for o in (*deployments, *configs)]
                return sorted(kept) == sorted(names * 2)

            await world.until(at_rest, "each service has one Deployment and one ConfigMap", 60)
        assert len(unreliable.faults) >= 8, "most kinds of faults have happened"
        assert len(operator.errors) > 5
        services = {s["metadata"]["name"]: s["metadata"]["uid"] for s in await world.all(INFERENCESERVICES)}
        for kind in (INFERENCEREVISIONS, CONFIGMAPS, DEPLOYMENTS):
            for child in await world.all(kind):
                [owner] = child["metadata"]["ownerReferences"]
                assert owner["uid"] == services[owner["name"]], "nothing belongs to a service that is gone"


async def test_a_storm_of_scale_writes_costs_no_error_and_the_last_count_holds(world: Any, make_service: Any) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service())
        await world.until_ready()

        async def scale(counts: Sequence[int]) -> None:
            for count in counts:
                body: Mapping[str, Any] = {"spec": {"replicas": count}}
                await world.client.patch(INFERENCESERVICES, "chat", body, world.namespace, subresource="scale")
                await asyncio.sleep(0.05)

        async def touch_deployment() -> None:
            """Another writer of the object that the operator scales down from the version it judged."""
            for number in range(60):
                for deployment in await world.all(DEPLOYMENTS):
                    body = {"metadata": {"annotations": {"example.com/seen": str(number)}}}
                    await world.client.patch(DEPLOYMENTS, deployment["metadata"]["name"], body, world.namespace)
                await asyncio.sleep(0.05)

        await asyncio.gather(scale([1 + number % 3 for number in range(60)] + [2]), touch_deployment())
        ready = await world.until_ready()
        assert ready["status"]["pools"][0]["desired"] == 2
        assert operator.errors == []


async def test_a_clock_that_jumps_changes_nothing_that_is_done(
    world: Any, make_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, skew = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + skew[0])
    async with world.operator() as operator, world.kubelet():
        for number, jump in enumerate((0.0, 7200.0, -7200.0, 86400.0)):
            skew[0] = jump
            await world.apply(make_service(runtime={"maxNumSeqs": 1 + number}))
            await world.until_ready()
            [deployment] = await _settled(world)
            assert deployment["spec"]["replicas"] == 1
        skew[0] = -86400.0
        before = operator.passes
        await asyncio.sleep(1.0)
        assert operator.passes - before < 20, "no pass chases another"
        assert operator.errors == []


async def test_an_api_server_slower_than_the_memory_of_our_writes_costs_nothing_but_time(
    world: Any, make_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "KEEP_SECONDS", -1.0)  # forgotten before the pass that wrote has ended
    async with world.operator() as operator, world.kubelet():
        for number in range(3):
            await world.apply(make_service(runtime={"maxNumSeqs": 1 + number}))
            await world.until_ready()
            await _settled(world)
        assert len(await world.all(INFERENCEREVISIONS)) == 3
        assert operator.errors == []


async def _settled(world: Any) -> list[JsonObject]:
    async def one_left() -> list[JsonObject]:
        deployments = await world.all(DEPLOYMENTS)
        return deployments if len(deployments) == 1 else []

    return await world.until(one_left, "the old Deployment is gone")  # type: ignore[no-any-return]
