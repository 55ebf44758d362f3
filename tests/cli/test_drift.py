"""`paceline drift` where replicas cannot be asked, and how it asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from paceline_crds.service import InferenceService
from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator import children
from paceline_operator.actions import child_name
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render

REVISIONS = "/apis/paceline.io/v1alpha1/inferencerevisions"
SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"
PODS = "/api/v1/pods"
DEPLOYMENTS = "/apis/apps/v1/deployments"
PROXY = "/api/v1/namespaces/demo/pods/{}:8000/proxy/v1/paceline/config"

Fill = Callable[..., Any]


@pytest.fixture
def fill(server: FakeApiServer, stored: Any) -> Fill:
    """A service with its objects as the operator makes them, and pods on addresses that are not of this machine."""

    async def run(pods: int = 2, name: str = "chat") -> dict[str, Any]:
        service = await server.put(SERVICES, stored(name))
        desired = render(InferenceService.from_object(service), Carried(), "paceline.io/runtime:1")
        observed = Observed("demo", name, service["metadata"]["uid"], 1)
        [pool] = desired.pools
        await server.put(REVISIONS, children.revision(observed, desired))
        deployment = children.deployment(observed, child_name(name, pool), pool, pods)
        await server.put(DEPLOYMENTS, deployment)
        template = deployment["spec"]["template"]
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        for number in range(pods):
            metadata = {**template["metadata"], "name": f"{name}-{number}", "namespace": "demo"}
            status = {**ready, "podIP": f"10.0.0.{number + 1}"}
            await server.put(PODS, {"metadata": metadata, "spec": template["spec"], "status": status})
        service["status"]["updatedRevision"] = desired.revision
        await server.put(SERVICES, service)
        config = pool.config.model_dump(mode="json")
        parameters = {k: {"value": v, "origin": config["origins"][k]} for k, v in config["parameters"].items()}
        return {"model": config["model"], "model_digest": "sha256:a", "parameters": parameters}

    return run


async def test_replicas_are_asked_through_the_api_server(server: FakeApiServer, paceline: Any, fill: Fill) -> None:
    config = await fill()
    server.documents |= {PROXY.format(f"chat-{number}"): config for number in range(2)}
    done = await paceline("drift", "chat")
    assert done.exit_code == 0, done.output
    assert done.stdout == "demo/chat: in sync; 2 replicas say what they run with\n"


async def test_a_replica_that_differs_is_told_by_name(server: FakeApiServer, paceline: Any, fill: Fill) -> None:
    config = await fill()
    odd = json.loads(json.dumps(config))
    odd["parameters"]["maxNumSeqs"] = {"value": 4, "origin": "environment"}
    server.documents |= {PROXY.format("chat-0"): config, PROXY.format("chat-1"): odd}
    done = await paceline("drift", "-o", "json")
    assert done.exit_code == 1
    [found] = json.loads(done.stdout)
    assert found["items"] == [
        {"object": "chat-1", "field": "runtime.maxNumSeqs", "recorded": "32", "actual": "4 (from environment)"}
    ]
    assert found["checked"] == 2


async def test_who_may_not_use_the_proxy_is_told_so_and_other_drift_is_found(
    server: FakeApiServer, paceline: Any, fill: Fill
) -> None:
    await fill()
    server.refuse(Refusal(403, "Forbidden", "no", times=9), path="/proxy/")
    done = await paceline("drift")
    assert done.exit_code == 3
    assert "not known for 2 of 2 ready replicas" in done.stdout
    assert "not known: chat-0 (you may not use the pod proxy here (get on pods/proxy))" in done.stdout


async def test_what_drifted_outweighs_what_is_not_known(server: FakeApiServer, paceline: Any, fill: Fill) -> None:
    config = await fill()
    await fill(1, "silent")
    config["model_digest"] = "sha256:b"
    other = {**config, "model": {**config["model"], "source": "package://other"}}
    server.documents |= {PROXY.format("chat-0"): config, PROXY.format("chat-1"): other}
    server.refuse(Refusal(502, "", "no route", times=9), path="/silent-0")
    done = await paceline("drift")
    assert done.exit_code == 1
    assert "demo/silent: not known for 1 of 1 ready replicas" in done.stdout
    assert "silent-0 (it answered 502: no route)" in done.stdout


async def test_a_service_none_of_whose_replicas_is_ready_is_not_known(
    server: FakeApiServer, paceline: Any, fill: Fill
) -> None:
    await fill(1)
    [pod] = [obj for key, obj in server.objects.items() if key[0] == PODS]
    await server.put(PODS, {**pod, "status": {"phase": "Running", "conditions": []}})
    done = await paceline("drift")
    assert done.exit_code == 3
    assert done.stdout == "demo/chat: not known: no replica is ready, so none could be asked\n"


async def test_a_status_that_is_away_does_not_hide_the_revision_that_serves(
    server: FakeApiServer, paceline: Any, fill: Fill
) -> None:
    config = await fill(1)
    server.documents |= {PROXY.format("chat-0"): config}
    [revision] = [obj for key, obj in server.objects.items() if key[0] == REVISIONS]
    weights = [{"pool": "default", "revision": revision["metadata"]["name"], "weight": 100}]
    record = {"generation": 1, "movedAt": 1.0, "weights": weights}
    revision["metadata"]["annotations"] = {"paceline.io/rollout": json.dumps(record)}
    await server.put(REVISIONS, revision)
    [service] = [obj for key, obj in server.objects.items() if key[0] == SERVICES]
    await server.put(SERVICES, {**service, "status": {}})
    done = await paceline("drift")
    assert done.exit_code == 0, done.output
    assert "the operator has not seen the latest change" in done.stdout
