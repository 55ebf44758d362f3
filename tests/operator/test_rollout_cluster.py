"""Rollouts by steps on a real API server with its controllers; the router and the kubelet are stand-ins."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from operator_world import Operator, World
from rolled_world import FollowingRouter, recorder_of, router_of

from paceline_crds.names import ANNOTATION_ROLLOUT
from paceline_kube import DEPLOYMENTS, INFERENCEREVISIONS, INFERENCESERVICES, NODES, JsonObject, KubeError

pytestmark = pytest.mark.cluster

GATES = [
    {"signal": "TTFTP50", "maxRegressionPercent": 20, "minSamples": 100, "warmUp": "0s"},
    {"signal": "ErrorRate", "maxRegressionPercent": 5, "minSamples": 100, "warmUp": "0s"},
]
ROLLOUT: JsonObject = {
    "strategy": "Canary",
    "gates": GATES,
    "steps": [
        {"weight": 10, "replicas": 1, "hold": "1s", "maxDuration": "10m"},
        {"weight": 50, "hold": "1s", "maxDuration": "10m"},
        {"weight": 100, "hold": "1s"},
    ],
}
NEW = {"maxNumSeqs": 8}


@asynccontextmanager
async def rolled(
    world: World, make_service: Callable[..., Any]
) -> AsyncIterator[tuple[FollowingRouter, Callable[..., Any]]]:
    """A service of two replicas that serves; yields its router, and what applies another spec."""
    async with world.node() as pod, beating(world), world.kubelet(), router_of(world) as router:

        async def apply(rollout: JsonObject | None = None, **spec: Any) -> JsonObject:
            return await world.apply(make_service(replicas=2, pod=pod, rollout=ROLLOUT | (rollout or {}), **spec))

        async with operator(world, router):
            await apply()
            router.base = (await world.until_ready())["status"]["currentRevision"]
        yield router, apply


@asynccontextmanager
async def beating(world: World) -> AsyncIterator[None]:
    """The node goes on saying that it is ready; after 40 s without a word its pods are not."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(5)
            status = {"status": world.node_status({})}
            with suppress(KubeError):
                await world.client.patch(NODES, f"node-{world.namespace}", status, subresource="status")

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


def operator(world: World, router: FollowingRouter) -> Any:
    return world.operator(router_admin_port=router.port, rollout_seconds=0.1)


async def rollout(world: World) -> JsonObject:
    found: JsonObject = ((await world.get(INFERENCESERVICES, "chat")).get("status") or {}).get("rollout") or {}
    return found


async def until_at(world: World, phase: str, weight: int, seconds: float = 60.0) -> JsonObject:
    async def check() -> bool:
        said = await rollout(world)
        return (said.get("phase"), said.get("weight")) == (phase, weight)

    await world.until(check, f"the rollout is {phase} at {weight} %", seconds)
    return await rollout(world)


async def counts(world: World, router: FollowingRouter) -> list[int]:
    """Replicas asked for, of the revision that served first and of the others together."""
    deployments = await world.all(DEPLOYMENTS)
    asked = {d["metadata"]["labels"]["paceline.io/pool-hash"]: d["spec"]["replicas"] for d in deployments}
    found = {
        r["metadata"]["name"]: asked.get(r["spec"]["pools"][0]["hash"], 0) for r in await world.all(INFERENCEREVISIONS)
    }
    return [found.pop(router.base), sum(found.values())]


def weights(router: FollowingRouter, revision: str) -> list[int]:
    """What a router gave a revision, in order, from nothing on."""
    found = [sum(e["weight"] for e in traffic["entries"] if e["revision"] == revision) for traffic in router.followed]
    return [new for old, new in pairwise([0, *found]) if new != old]


async def revision_status(world: World, name: str) -> JsonObject:
    found: JsonObject = ((await world.get(INFERENCEREVISIONS, name)).get("status") or {}).get("rollout") or {}
    return found


def reasons(told: Operator) -> list[str]:
    return [reason.removeprefix("Rollout") for reason in told.told.reasons() if reason.startswith("Rollout")]


async def test_a_good_revision_goes_through_its_steps_by_itself(world: World, make_service: Callable[..., Any]) -> None:
    async with rolled(world, make_service) as (router, apply), operator(world, router) as told:
        await apply(runtime=NEW)
        service = await world.until_ready()
        after = service["status"]["currentRevision"]
        assert after != router.base
        assert weights(router, after) == [10, 50, 100]
        generations = [traffic["generation"] for traffic in router.followed]
        assert generations == sorted(generations)

        async def alone() -> bool:
            return await counts(world, router) == [0, 2]

        await world.until(alone, "the old revision has no replica")
        assert "rollout" not in service["status"]
        assert reasons(told) == ["Begun", *["Moving", "Followed", "Passed"] * 2, "Moving", "Followed", "Finished"]
        kept = await revision_status(world, after)
        assert (kept["verdict"]["verdict"], kept["verdict"]["base"], kept["verdict"]["weight"]) == (
            "Pass",
            router.base,
            50,
        )
        assert [one["reason"] for one in kept["timeline"]] == reasons(told)
        assert told.errors == []


async def test_a_slow_one_is_rolled_back_with_the_reason_and_not_begun_again(
    world: World, make_service: Callable[..., Any]
) -> None:
    async with rolled(world, make_service) as (router, apply), operator(world, router) as told:
        await apply({"paused": True}, runtime=NEW)
        blocked = await until_at(world, "Blocked", 0)
        assert blocked["reason"] == "Paused"
        assert await counts(world, router) == [2, 0]
        bad = blocked["revision"]
        router.slow[bad] = 2.0
        await apply(runtime=NEW)
        said = await until_at(world, "Idle", 0)
        assert (said["revision"], said["reason"]) == (bad, "RolledBack")
        assert "TTFTP50 is worse" in said["message"]
        service = await world.until_ready(reason="RolledBack")
        assert service["status"]["currentRevision"] == router.base
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        assert weights(router, bad) == [10, 0]

        async def gone() -> bool:
            return await counts(world, router) == [2, 0]

        await world.until(gone, "the bad revision has no replica")
        kept = await revision_status(world, bad)
        assert kept["verdict"]["verdict"] == "Fail"
        assert kept["verdict"]["gates"][0]["outcome"] == "Worse"
        assert reasons(told)[-2:] == ["GateWorse", "RolledBack"]
        # What was rejected stays so across a restart, until a person or another spec says otherwise.
    async with world.kubelet(), operator(world, router) as told:
        ready = await world.condition()
        assert ready["reason"] == "RolledBack"
        assert await counts(world, router) == [2, 0]
        await world.apply(make_service(replicas=2, rollout=ROLLOUT))


async def test_an_abort_takes_it_back_once_every_router_has_left_and_a_promote_brings_it(
    world: World, make_service: Callable[..., Any]
) -> None:
    async with rolled(world, make_service) as (router, apply), operator(world, router) as told:
        await apply({"steps": [{"weight": 10, "hold": "1h"}, {"weight": 100, "hold": "0s"}]}, runtime=NEW)
        revision = (await until_at(world, "Judging", 10))["revision"]
        router.lags = True
        steps = [{"weight": 10, "hold": "1h"}, {"weight": 100, "hold": "0s"}]
        order = {"revision": revision, "action": "Abort", "by": "ann", "why": "wrong language"}
        await apply({"steps": steps, "order": order}, runtime=NEW)
        said = await until_at(world, "RollingBack", 0)
        assert said["message"] == "Abort by ann: wrong language"
        assert await counts(world, router) == [2, 1], "the router still sends it requests"
        router.lags = False
        await until_at(world, "Idle", 0)
        await apply({"steps": steps, "order": {**order, "action": "Promote"}}, runtime=NEW)
        service = await world.until_ready()
        assert service["status"]["currentRevision"] == revision
        timeline = (await revision_status(world, revision))["timeline"]
        assert [(one["by"], one["reason"]) for one in timeline if one["by"] != "paceline"] == [
            ("ann", "Aborted"),
            ("ann", "Begun"),
        ]
        assert told.errors == []


async def test_an_operator_that_is_started_anew_at_every_edge_gives_no_wrong_weight(
    world: World, make_service: Callable[..., Any]
) -> None:
    async with rolled(world, make_service) as (router, apply):
        await apply(runtime=NEW)
        edges: list[str] = []
        while "Finished" not in edges:
            async with operator(world, router) as told:

                async def acted(told: Operator = told) -> bool:
                    return bool(reasons(told))

                await world.until(acted, "an edge is taken")
            edges += reasons(told)
        async with operator(world, router):
            service = await world.until_ready()
        after = service["status"]["currentRevision"]
        assert weights(router, after) == [10, 50, 100]


PROCESS = textwrap.dedent(
    """
    import asyncio, os, sys, uvloop
    from paceline_kube import connect
    from paceline_operator.app import Operator, Options
    from paceline_operator.election import LeaseTiming
    from paceline_operator.settings import Settings

    async def main(kubeconfig, namespace, port):
        options = Options(
            identity=f"op_{os.getpid()}", instance="op", namespaces=(namespace,), health_port=None, metrics_port=None,
            lease=LeaseTiming(3.0, 2.0, 0.4),
        )
        settings = Settings(
            runtime_image="paceline.io/runtime:0.1.0", namespace=namespace, router_admin_port=int(port),
            poll_seconds=0.1, rollout_seconds=0.1,
        )
        async with connect(kubeconfig) as reader, connect(kubeconfig, timeout=1.0) as writer:
            await Operator(reader, writer, settings, options).run(asyncio.Event())

    uvloop.run(main(*sys.argv[1:]))
    """
)
"""The operator with a lease that runs out in three seconds, so that many processes fit into a test."""


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_process_that_is_killed_at_every_edge_is_followed_by_one_that_gives_no_wrong_weight(
    world: World, make_service: Callable[..., Any], tmp_path: Path
) -> None:
    async with rolled(world, make_service) as (router, apply):
        await apply(runtime=NEW)
        command = [sys.executable, "-c", PROCESS, str(world.cluster.kubeconfig), world.namespace, str(router.port)]
        killed, before = 0, await record(world)
        while True:
            with (tmp_path / "operator.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
            try:

                async def acted(before: str = before) -> bool:
                    return await record(world) != before

                await world.until(acted, f"an edge is taken after {before}")
            finally:
                process.kill()
                await process.wait()
            killed, before = killed + 1, await record(world)
            if "rollout" not in before:
                break
        async with operator(world, router):
            service = await world.until_ready()
        after = service["status"]["currentRevision"]
        assert weights(router, after) == [10, 50, 100]
        assert killed >= 8
        kept = [one["weight"] for one in (await revision_status(world, after))["timeline"]]
        assert [weight for weight, _ in groupby(kept)] == [0, 10, 50, 100]


async def record(world: World) -> str:
    """Of the traffic, the one that counts."""
    found = [
        json.loads(text)
        for revision in await world.all(INFERENCEREVISIONS)
        if (text := (revision["metadata"].get("annotations") or {}).get(ANNOTATION_ROLLOUT))
    ]
    return json.dumps(max(found, key=lambda one: one["generation"]))


async def test_a_revision_that_answers_otherwise_never_serves_and_one_that_answers_alike_goes_on(
    world: World, make_service: Callable[..., Any]
) -> None:
    shadow = {"shadow": {"percent": 20, "minSamples": 100, "maxDuration": "10m"}}
    async with rolled(world, make_service) as (router, apply), operator(world, router) as told:
        await apply(shadow, runtime=NEW)
        first = (await until_at(world, "Shadow", 0))["revision"]
        traffic = (await world.get(INFERENCESERVICES, "chat"))["status"]["traffic"]
        assert "shadow" not in traffic, "without a recorder nothing is copied"
        async with recorder_of(world) as (recorder, url):
            recorder.base, recorder.candidate, recorder.differ = router.base, first, 40

            async def copied() -> bool:
                now = (await world.get(INFERENCESERVICES, "chat"))["status"]["traffic"]
                return bool(now.get("shadow"))

            async def rejected() -> bool:
                return (await rollout(world)).get("phase") == "Idle"

            await world.until(copied, "routers are told to copy")
            traffic = (await world.get(INFERENCESERVICES, "chat"))["status"]["traffic"]
            asked = {name: traffic["shadow"][name] for name in ("revision", "percent", "recorder")}
            assert asked == {"revision": first, "percent": 20, "recorder": url}
            await world.until(rejected, "the revision is rejected")
            assert "OutputDifference is worse" in (await rollout(world))["message"]
            assert weights(router, first) == []
            after = (await world.get(INFERENCESERVICES, "chat"))["status"]["traffic"]
            assert "shadow" not in after
            assert after["generation"] > traffic["generation"]
            recorder.differ = 0
            recorder.candidate = ""
            await apply(shadow, runtime={"maxNumSeqs": 16})
            recorder.candidate = (await until_at(world, "Shadow", 0))["revision"]
            assert recorder.candidate != first
            await world.until_ready()
            assert weights(router, recorder.candidate) == [10, 50, 100]
        assert told.errors == []
