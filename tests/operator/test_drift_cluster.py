"""Drift on a real API server with the real Deployment controller; replicas are small servers that answer like ours."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from paceline_kube import CONFIGMAPS, DEPLOYMENTS, PODS, AlreadyExists, JsonObject

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
async def running(world: Any, drift_seconds: float = 0.5, **settings: Any) -> AsyncIterator[tuple[Any, Replicas]]:
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

    async with world.operator(drift_seconds=drift_seconds, **settings) as operator:
        task = asyncio.create_task(kubelet())
        try:
            yield operator, replicas
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await replicas.stop()


def in_sync(world: Any, reason: str, seconds: float = 30.0) -> Awaitable[Any]:
    async def check() -> bool:
        return bool((await world.condition("chat", "ConfigInSync")).get("reason") == reason)

    return world.until(check, f"ConfigInSync is {reason}", seconds)


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


@dataclass(frozen=True)
class Kind:
    """One way to drift: what is done, what the condition says then, and what the fleet is."""

    act: Callable[[Any, Replicas], Awaitable[None]]
    reason: str = "Drifted"
    repaired: bool = True


async def _edit(world: Any, replicas: Replicas) -> None:
    await edit_deployment(world)


async def _remake_config(world: Any, replicas: Replicas) -> None:
    """Under the operator's eyes it would be made anew before anybody could put other data there."""
    [config] = await world.all(CONFIGMAPS)
    data = {"config.json": config["data"]["config.json"].replace('"maxNumSeqs": 32', '"maxNumSeqs": 64')}
    other = {"metadata": {k: config["metadata"][k] for k in ("name", "labels", "ownerReferences")}, "data": data}
    while True:
        await world.client.delete(CONFIGMAPS, config["metadata"]["name"], world.namespace)
        try:
            await world.client.create(CONFIGMAPS, other, world.namespace)
            return
        except AlreadyExists:
            continue


async def _leave_behind(world: Any, replicas: Replicas) -> None:
    pod = (await world.all(PODS))[0]
    labels = {**pod["metadata"]["labels"], "paceline.io/pool-hash": "feedfeed00"}
    labels.pop("pod-template-hash")
    spec = {"containers": [{"name": "runtime", "image": "x", "env": []}], "volumes": pod["spec"]["volumes"]}
    await world.client.create(
        PODS, {"metadata": {"name": "left-behind", "labels": labels}, "spec": spec}, world.namespace
    )


async def _overridden_pod(world: Any, replicas: Replicas) -> None:
    """A pod of the pool with a setting of ours in its environment, as an admission webhook may put it there."""
    pod = (await world.all(PODS))[0]
    labels = {name: value for name, value in pod["metadata"]["labels"].items() if name != "pod-template-hash"}
    spec = copy.deepcopy(pod["spec"])
    for field in ("nodeName", "topologySpreadConstraints"):
        spec.pop(field, None)
    spec["containers"][0]["env"].append({"name": "PACELINE_MAX_NUM_SEQS", "value": "4"})
    await world.client.create(
        PODS, {"metadata": {"name": "overridden", "labels": labels}, "spec": spec}, world.namespace
    )


def _reports(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Callable[[Any, Replicas], Awaitable[None]]:
    async def act(world: Any, replicas: Replicas) -> None:
        odd = (await world.all(PODS))[0]["metadata"]["uid"]
        replicas.override = lambda pod, config: change(config) if pod["metadata"]["uid"] == odd else config

    return act


def _other_value(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"parameters": config["parameters"] | {"maxNumSeqs": {"value": 7, "origin": "flag"}}}


KINDS = {
    "a Deployment edited by hand": Kind(_edit),
    "a ConfigMap deleted and made anew with other data": Kind(_remake_config),
    "an environment variable of ours set in a pod": Kind(_overridden_pod),
    "a pod of an older revision left behind": Kind(_leave_behind),
    "a replica that reports other values": Kind(_reports(_other_value)),
    "a replica that reports other weights": Kind(_reports(lambda config: config | {"model_digest": "sha256:b"})),
    "a replica that reports nothing": Kind(_reports(lambda config: None), reason="NotKnown", repaired=False),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_drift_is_told_and_put_right_at_the_intervals_that_are_shipped(
    world: Any, make_service: Any, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """The table in docs/reference/drift-and-faults.md: run it with `-rP` to see the seconds."""
    async with running(world, drift_seconds=30.0, settle=2.0) as (operator, replicas):
        await world.apply(make_service(replicas=2, driftPolicy="Repair"))
        await world.until_ready()
        await in_sync(world, "InSync", 90.0)
        began = time.monotonic()
        await KINDS[kind].act(world, replicas)
        await in_sync(world, KINDS[kind].reason, 90.0)
        told = time.monotonic() - began
        record_property("told_s", round(told, 1))
        print(f"{kind}: told after {told:.1f} s")
        if KINDS[kind].repaired:
            await in_sync(world, "InSync", 180.0)
            print(f"{kind}: in sync again after {time.monotonic() - began:.1f} s")
            record_property("repaired_s", round(time.monotonic() - began, 1))
        assert operator.errors == []
