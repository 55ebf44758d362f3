"""Drift on a real API server with the real Deployment controller; replicas are small servers that answer like ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from paceline_kube import CONFIGMAPS, DEPLOYMENTS, PODS, JsonObject

pytestmark = pytest.mark.cluster

Override = Callable[[JsonObject, dict[str, Any]], dict[str, Any] | None]


class Replicas:
    """For each pod a server on an address of its own that answers like the runtime, changed by `override`."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.override: Override = lambda pod, config: config
        self._addresses: dict[str, str] = {}
        self._runners: list[web.AppRunner] = []

    async def config(self, pod: JsonObject) -> dict[str, Any]:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        name = volumes["paceline-config"]["configMap"]["name"]
        stored = json.loads((await self.world.get(CONFIGMAPS, name))["data"]["config.json"])
        parameters = {
            key: {"value": value, "origin": stored["origins"].get(key, "default")}
            for key, value in stored["parameters"].items()
        }
        for variable in pod["spec"]["containers"][0]["env"]:
            if variable["name"] == "PACELINE_MAX_NUM_SEQS":
                parameters["maxNumSeqs"] = {"value": int(variable["value"]), "origin": "environment"}
        return {"model": stored["model"], "model_digest": "sha256:a", "parameters": parameters}

    async def serve(self, pod: JsonObject) -> str:
        """The address where a pod's server listens; started on first use."""
        uid = pod["metadata"]["uid"]
        if uid in self._addresses:
            return self._addresses[uid]

        config = await self.config(pod)

        async def answer(request: web.Request) -> web.Response:
            said = self.override(pod, json.loads(json.dumps(config)))
            return web.json_response(said) if said is not None else web.Response(status=404)

        application = web.Application()
        application.router.add_get("/v1/paceline/config", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        self._runners.append(runner)
        address = f"127.78.{len(self._addresses) // 250}.{len(self._addresses) % 250 + 1}"
        await web.TCPSite(runner, address, 8000).start()
        self._addresses[uid] = address
        return address

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@asynccontextmanager
async def running(world: Any, **settings: Any) -> AsyncIterator[tuple[Any, Replicas]]:
    """The operator with a quick look at drift, and a kubelet whose pods answer."""
    replicas = Replicas(world)

    async def kubelet() -> None:
        while True:
            for pod in await world.all(PODS):
                if pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("podIP"):
                    continue
                address = await replicas.serve(pod)
                status = {
                    "phase": "Running",
                    "podIP": address,
                    "podIPs": [{"ip": address}],
                    "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")],
                }
                await world.set_pod(pod, status)
            await asyncio.sleep(0.1)

    async with world.operator(drift_seconds=0.5, **settings) as operator:
        task = asyncio.create_task(kubelet())
        try:
            yield operator, replicas
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await replicas.stop()


def in_sync(world: Any, reason: str) -> Awaitable[Any]:
    async def check() -> bool:
        return bool((await world.condition("chat", "ConfigInSync")).get("reason") == reason)

    return world.until(check, f"ConfigInSync is {reason}", 30.0)


async def fields(world: Any) -> set[tuple[str, str, str]]:
    from paceline_kube import INFERENCESERVICES

    drift = (await world.get(INFERENCESERVICES, "chat"))["status"].get("drift") or {}
    return {(item["field"], item["desired"], item["actual"]) for item in drift.get("items") or ()}


async def edit_deployment(world: Any) -> JsonObject:
    """As `kubectl set env` does."""
    [deployment] = await world.all(DEPLOYMENTS)
    env = {"containers": [{"name": "runtime", "env": [{"name": "PACELINE_MAX_NUM_SEQS", "value": "4"}]}]}
    patch = {"spec": {"template": {"spec": env}}}
    name = deployment["metadata"]["name"]
    await world.client.patch(DEPLOYMENTS, name, patch, world.namespace, kind="strategic", field_manager="kubectl-set")
    return deployment


async def test_what_runs_as_recorded_is_in_sync_and_a_replica_that_says_nothing_is_not_known(
    world, make_service
) -> None:
    async with running(world) as (operator, replicas):
        await world.apply(make_service(replicas=2))
        await world.until_ready()
        await in_sync(world, "InSync")
        replicas.override = lambda pod, config: None
        await in_sync(world, "NotKnown")
        assert "it answered 404" in (await world.condition("chat", "ConfigInSync"))["message"]
        assert (await world.condition("chat", "Ready"))["status"] == "True", "what is not known does not page"
        replicas.override = lambda pod, config: config
        await in_sync(world, "InSync")
        assert operator.errors == []


async def test_a_deployment_edited_by_hand_is_told_and_left_under_report(world, make_service) -> None:
    async with running(world) as (operator, _):
        await world.apply(make_service())
        await world.until_ready()
        await in_sync(world, "InSync")
        await edit_deployment(world)
        await in_sync(world, "Drifted")

        async def effective_too() -> bool:
            return ("runtime.maxNumSeqs", "32", "4 (from environment)") in await fields(world)

        await world.until(effective_too, "the new pod's own report is told as well")
        assert any(field.endswith("env[PACELINE_MAX_NUM_SEQS]") for field, _, _ in await fields(world))
        [deployment] = await world.all(DEPLOYMENTS)
        names = [e["name"] for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]]
        assert "PACELINE_MAX_NUM_SEQS" in names, "Report changes nothing"
        assert "ConfigDrift" in operator.told.reasons()


async def test_a_deployment_edited_by_hand_is_put_right_under_repair(world, make_service) -> None:
    async with running(world) as (operator, _):
        await world.apply(make_service(driftPolicy="Repair"))
        await world.until_ready()
        await in_sync(world, "InSync")
        before = await edit_deployment(world)
        await in_sync(world, "Drifted")
        await in_sync(world, "InSync")
        [after] = await world.all(DEPLOYMENTS)
        assert after["spec"]["template"] == before["spec"]["template"]
        assert "DriftRepaired" in operator.told.reasons()
        assert operator.errors == []


async def test_a_config_map_that_was_made_anew_with_other_data_is_told_and_put_right(world, make_service) -> None:
    async with running(world) as (operator, _):
        await world.apply(make_service(replicas=2, driftPolicy="Repair"))
        await world.until_ready()
        await in_sync(world, "InSync")
        # While nothing is changed the operator does not make it anew at once.
        await world.apply(make_service(replicas=2, driftPolicy="Repair", suspend=True))
        await world.until_ready(reason="Suspended")
        [config] = await world.all(CONFIGMAPS)
        name = config["metadata"]["name"]
        await world.client.delete(CONFIGMAPS, name, world.namespace)
        other = {
            "metadata": {key: config["metadata"][key] for key in ("name", "labels", "ownerReferences")},
            "data": {"config.json": config["data"]["config.json"].replace('"maxNumSeqs": 32', '"maxNumSeqs": 64')},
        }
        await world.client.create(CONFIGMAPS, other, world.namespace)
        await in_sync(world, "Drifted")
        assert ("parameters.maxNumSeqs", "32", "64") in await fields(world)
        await world.apply(make_service(replicas=2, driftPolicy="Repair"))

        async def as_recorded() -> bool:
            made = [c for c in await world.all(CONFIGMAPS) if c["metadata"]["name"] == name]
            return bool(made) and made[0]["data"] == config["data"]

        await world.until(as_recorded, "the ConfigMap says what is recorded")
        await in_sync(world, "InSync")
        assert operator.errors == []


async def test_a_replica_that_reports_other_weights_is_replaced_under_repair_and_no_other(world, make_service) -> None:
    async with running(world) as (operator, replicas):
        await world.apply(make_service(replicas=3, driftPolicy="Repair"))
        await world.until_ready()
        await in_sync(world, "InSync")
        pods = await world.all(PODS)
        odd = pods[0]["metadata"]["uid"]

        def other_weights(pod: JsonObject, config: dict[str, Any]) -> dict[str, Any]:
            return config | {"model_digest": "sha256:b"} if pod["metadata"]["uid"] == odd else config

        replicas.override = other_weights
        await in_sync(world, "Drifted")
        assert ("model_digest", "sha256:a", "sha256:b") in await fields(world)

        async def gone() -> bool:
            return odd not in {pod["metadata"]["uid"] for pod in await world.all(PODS)}

        await world.until(gone, "the odd pod is replaced")
        await in_sync(world, "InSync")
        left = {pod["metadata"]["uid"] for pod in await world.all(PODS)}
        assert {pod["metadata"]["uid"] for pod in pods[1:]} <= left
        assert operator.errors == []


async def test_a_pod_of_an_older_revision_that_was_left_behind_is_told(world, make_service) -> None:
    async with running(world):
        await world.apply(make_service())
        await world.until_ready()
        [pod] = await world.all(PODS)
        left = {
            "metadata": {
                "name": "left-behind",
                "labels": {**pod["metadata"]["labels"], "paceline.io/pool-hash": "feedfeed00"},
            },
            "spec": {"containers": [{"name": "runtime", "image": "x", "env": []}], "volumes": pod["spec"]["volumes"]},
        }
        left["metadata"]["labels"].pop("pod-template-hash")
        await world.client.create(PODS, left, world.namespace)
        await in_sync(world, "Drifted")
        assert ("paceline.io/pool-hash", pod["metadata"]["labels"]["paceline.io/pool-hash"], "feedfeed00") in (
            await fields(world)
        )
