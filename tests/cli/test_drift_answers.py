"""`paceline drift` tells which replica answers otherwise: as the operator found, or asked now."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_cli import answers
from paceline_crds.service import InferenceService
from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator import children
from paceline_operator.actions import child_name
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render

REVISIONS = "/apis/paceline.io/v1alpha1/inferencerevisions"
SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"
PODS = "/api/v1/pods"
PROXY = "/api/v1/namespaces/demo/pods/{}:8000/proxy/v1/paceline/{}"
GOOD = {"v": 1, "prompt": "p1", "cold": "a1", "warm": "a1", "text": "t1", "cachedTokens": 96}
RECORDED = {"prompt": "p1", "answer": "a1", "text": "t1"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "AGAIN_SECONDS", 0.0)


async def fill(server: FakeApiServer, stored: Any, said: list[dict[str, Any]], recorded: bool = True) -> None:
    """A service whose replicas run as recorded and say `said`."""
    service = await server.put(SERVICES, stored("chat"))
    desired = render(InferenceService.from_object(service), Carried(), "paceline.io/runtime:1")
    observed = Observed("demo", "chat", service["metadata"]["uid"], 1)
    [pool] = desired.pools
    revision = children.revision(observed, desired)
    if recorded:
        revision["status"] = {"pools": [{"name": pool.name, "hash": pool.hash, "canary": RECORDED}]}
    await server.put(REVISIONS, revision)
    template = children.deployment(observed, child_name("chat", pool), pool, len(said))["spec"]["template"]
    config = pool.config.model_dump(mode="json")
    parameters = {k: {"value": v, "origin": config["origins"][k]} for k, v in config["parameters"].items()}
    for number, answer in enumerate(said):
        name = f"chat-{number}"
        ready = {"phase": "Running", "podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {**template["metadata"], "name": name, "namespace": "demo"}
        await server.put(PODS, {"metadata": metadata, "spec": template["spec"], "status": ready})
        server.documents[PROXY.format(name, "config")] = {
            "model": config["model"],
            "model_digest": "sha256:a",
            "parameters": parameters,
        }
        server.documents[PROXY.format(name, "canary")] = answer
    service["status"]["updatedRevision"] = desired.revision
    await server.put(SERVICES, service)


@pytest.mark.parametrize(
    ("odd", "field", "recorded", "actual"),
    [
        ({"cold": "a2", "warm": "a2", "text": "t2"}, "answer (computed)", "a1", "a2"),
        ({"warm": "a3"}, "answer (from cache)", "a1", "a3"),
        ({"prompt": "p2"}, "answer (tokeniser)", "p1 t1", "p2 t1"),
    ],
)
async def test_asked_now_a_replica_that_answers_otherwise_is_a_row_with_both_hashes(
    server: FakeApiServer, paceline: Any, stored: Any, odd: dict[str, Any], field: str, recorded: str, actual: str
) -> None:
    await fill(server, stored, [GOOD, {**GOOD, **odd}])
    done = await paceline("drift", "chat", "--answers", "-o", "json")
    assert done.exit_code == 1, done.output
    [found] = json.loads(done.stdout)
    assert found["items"] == []
    assert found["answers"]["agree"] is False
    assert found["answers"]["items"] == [{"object": "chat-1", "field": field, "recorded": recorded, "actual": actual}]
    assert "chat-1" in (await paceline("drift", "chat", "--answers")).stdout


async def test_replicas_that_agree_are_in_sync_and_one_that_cannot_be_asked_is_not_known(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await fill(server, stored, [GOOD, GOOD], recorded=False)
    done = await paceline("drift", "--answers")
    assert done.exit_code == 0, done.output
    assert "answers: 2 replicas give the recorded answer, computed and from the cache" in done.stdout
    del server.documents[PROXY.format("chat-1", "canary")]
    server.refuse(Refusal(502, "", "no route", times=9), path="/chat-1:8000/proxy/v1/paceline/canary")
    done = await paceline("drift", "--answers")
    assert done.exit_code == 0, "its configuration is known, and nothing is known to differ"
    assert "chat-1: it answered 502: no route" in done.stdout


async def test_without_being_told_to_no_replica_is_asked_and_the_operators_finding_is_shown(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await fill(server, stored, [GOOD])
    assert (await paceline("drift", "chat")).stdout == "demo/chat: in sync; 1 replica says what it runs with\n"
    [service] = [obj for key, obj in server.objects.items() if key[0] == SERVICES]
    said = {"type": "OutputsAgree", "status": "False", "reason": "CacheContaminated", "message": "chat-0: its cache"}
    service["status"].setdefault("conditions", []).append(said)
    await server.put(SERVICES, service)
    done = await paceline("drift", "chat")
    assert done.exit_code == 1
    assert "answers: chat-0: its cache" in done.stdout
    assert not [request for request in server.requests if request.endswith("/canary")]
