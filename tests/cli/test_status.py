"""`paceline status`, and what all commands that ask a cluster have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_cli.main import build
from paceline_kube.testing import FakeApiServer, Refusal

SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"
EVENTS = "/api/v1/events"


async def test_a_table_of_the_namespace_of_the_context(server: FakeApiServer, paceline: Any, stored: Any) -> None:
    await server.put(SERVICES, stored())
    await server.put(SERVICES, stored("other", "elsewhere"))
    done = await paceline("status")
    assert done.exit_code == 0
    heads, row = done.stdout.splitlines()
    assert heads.split() == ["NAME", "READY", "REASON", "REVISION", "REPLICAS", "DRIFT", "MESSAGE"]
    assert row.split()[:6] == ["chat", "True", "AsAsked", "chat-aaa", "1/1", "none"]


async def test_all_namespaces_and_the_namespace_of_another_context(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await server.put(SERVICES, stored())
    await server.put(SERVICES, stored("talk", "other"))
    everywhere = await paceline("status", "-A")
    assert [line.split()[:2] for line in everywhere.stdout.splitlines()[1:]] == [["demo", "chat"], ["other", "talk"]]
    there = await paceline("status", "--context", "elsewhere", "-o", "json")
    assert [found["name"] for found in json.loads(there.stdout)] == ["talk"]


async def test_nothing_serves_is_the_answer_no(
    server: FakeApiServer, paceline: Any, stored: Any, condition: Any
) -> None:
    down = [condition("Ready", "False", "CrashLoop", "it ends"), condition("TrafficReady", "False", "CrashLoop")]
    await server.put(SERVICES, stored())
    await server.put(SERVICES, stored("down", conditions=down))
    await server.put(SERVICES, {**stored("fresh"), "status": {}})
    assert (await paceline("status")).exit_code == 1
    assert (await paceline("status", "chat")).exit_code == 0


async def test_ready_is_false_but_requests_are_taken_does_not_page(
    server: FakeApiServer, paceline: Any, stored: Any, condition: Any
) -> None:
    rolling = [condition("Ready", "False", "RollingOut"), condition("TrafficReady", "True", "Serving")]
    await server.put(SERVICES, stored(conditions=rolling))
    assert (await paceline("status")).exit_code == 0


async def test_a_service_without_a_status_is_not_known_and_never_zero(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    fresh = stored()
    del fresh["status"]
    await server.put(SERVICES, fresh)
    table = await paceline("status")
    assert table.exit_code == 3
    assert "?/?" in table.stdout
    said = json.loads((await paceline("status", "-o", "json")).stdout)[0]
    assert said["ready"] is said["drift"] is said["replicas"]["ready"] is said["replicas"]["wanted"] is None
    one = await paceline("status", "chat")
    assert one.exit_code == 3
    assert "the operator has not written a status" in one.stdout


async def test_drift_that_is_not_known_is_said_so(
    server: FakeApiServer, paceline: Any, stored: Any, condition: Any
) -> None:
    conditions = [
        condition("Ready", "True", "AsAsked"),
        condition("TrafficReady", "True", "Serving"),
        condition("ConfigInSync", "Unknown", "NotKnown"),
    ]
    await server.put(SERVICES, stored(conditions=conditions))
    assert json.loads((await paceline("status", "-o", "json")).stdout)[0]["drift"] is None


async def test_a_status_of_an_earlier_spec_is_marked(server: FakeApiServer, paceline: Any, stored: Any) -> None:
    old = stored(observedGeneration=0)
    await server.put(SERVICES, old)
    assert "(of an earlier spec)" in (await paceline("status")).stdout
    assert "has not seen the latest change" in (await paceline("status", "chat")).stdout


async def test_one_service_with_everything(server: FakeApiServer, paceline: Any, stored: Any) -> None:
    obj = stored(
        drift={"count": 12, "items": [{"pod": "p", "field": "runtime.x", "desired": "32", "actual": "4"}]},
        upgrade={"image": "paceline.io/runtime:9", "hashVersion": 2},
    )
    obj["spec"]["rollout"] = {"order": {"revision": "chat-aaa", "action": "Pin"}}
    kept = await server.put(SERVICES, obj)
    for number in range(12):
        event = {
            "metadata": {"name": f"e{number}", "namespace": "demo"},
            "involvedObject": {"name": "chat", "uid": kept["metadata"]["uid"]},
            "type": "Warning",
            "reason": f"Reason{number}",
            "message": "words",
            "lastTimestamp": f"2026-01-01T00:00:{number:02}Z",
        }
        await server.put(EVENTS, event)
    stranger = {"name": "chat", "uid": "of-a-service-before"}
    await server.put(EVENTS, {"metadata": {"name": "s", "namespace": "demo"}, "involvedObject": stranger})
    out = (await paceline("status", "chat")).stdout
    for words in (
        "demo/chat: ready (AsAsked), chat-aaa serves",
        "Pin chat-aaa, until `paceline rollback chat --undo`",
        "Traffic (generation 1):",
        "100%",
        "runtime.x",
        "and 11 more: paceline drift chat",
        "paceline upgrade chat --dry-run",
    ):
        assert words in out
    told = [line.split()[2] for line in out.split("Events:")[1].splitlines()[2:]]
    assert told == [f"Reason{number}" for number in range(11, 1, -1)]
    said = json.loads((await paceline("status", "chat", "-o", "json")).stdout)
    assert said["status"]["upgrade"]["hashVersion"] == 2
    assert len(said["events"]) == 10


async def test_events_that_may_not_be_read_do_not_hide_the_rest(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await server.put(SERVICES, stored())
    server.refuse(Refusal(403, "Forbidden", "no"), path="/events")
    done = await paceline("status", "chat")
    assert done.exit_code == 0
    assert "Events: not known (you may not read events here)" in done.stdout


async def test_a_name_that_is_not_there_is_told_with_those_that_are(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await server.put(SERVICES, stored())
    done = await paceline("status", "chta")
    assert done.exit_code == 1
    assert done.stderr == "error: no InferenceService demo/chta: there are chat\n"


async def test_no_services_is_no_fault(paceline: Any) -> None:
    done = await paceline("status")
    assert done.exit_code == 0
    assert done.stdout == "no InferenceServices in namespace demo\n"


async def test_a_cluster_without_paceline_says_so(server: FakeApiServer, paceline: Any) -> None:
    server.refuse(
        Refusal(404, "NotFound", "the server could not find the requested resource"), path="inferenceservices"
    )
    done = await paceline("status")
    assert done.exit_code == 1
    assert "Paceline is not installed" in done.stderr


@pytest.mark.parametrize("name", ["status", "drift", "history chat", "rollback chat", "upgrade chat"])
def test_a_cluster_that_cannot_be_reached_is_four(tmp_path: Path, name: str) -> None:
    config = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    arguments = [*name.split(), "--kubeconfig", str(tmp_path / "config")]
    done = CliRunner().invoke(build(arguments), arguments)
    assert done.exit_code == 4, done.output
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--kubeconfig", "/no/such/file"], "/no/such/file"), (["--context", "nowhere"], "nowhere")],
)
async def test_a_kubeconfig_that_is_not_there_is_four(paceline: Any, options: list[str], words: str) -> None:
    done = await paceline("status", *options)
    assert done.exit_code == 4
    assert words in done.stderr


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_cannot_answer_now_is_four(server: FakeApiServer, paceline: Any, status: int) -> None:
    server.refuse(Refusal(status, "", "busy"))
    assert (await paceline("status")).exit_code == 4


async def test_credentials_that_are_refused_are_four(server: FakeApiServer, paceline: Any) -> None:
    server.refuse(Refusal(401, "Unauthorized", "Unauthorized", times=9))
    assert (await paceline("status")).exit_code == 4


async def test_a_slow_api_server_is_waited_for_with_words(
    server: FakeApiServer, paceline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_cli.waiting.INTERVAL_SECONDS", 0.05)
    server.delay(lambda method: 0.5)
    done = await paceline("status")
    assert "waiting for the API server: the services" in done.stderr
    assert done.stdout == "no InferenceServices in namespace demo\n"


@pytest.mark.parametrize("command", ["status", "drift"])
@pytest.mark.parametrize("more", [["chat"], ["-n", "demo"]])
async def test_one_and_all_is_wrong_use(paceline: Any, command: str, more: list[str]) -> None:
    done = await paceline(command, "-A", *more)
    assert done.exit_code == 2
    assert "every namespace" in done.stderr


async def test_an_unknown_form_of_output_is_wrong_use(paceline: Any) -> None:
    assert (await paceline("status", "-o", "yaml")).exit_code == 2


async def test_another_form_of_output_is_refused_with_what_to_write(paceline: Any) -> None:
    done = await paceline("status", "-o", "yaml")
    assert done.exit_code == 2
    assert "write table or json, not 'yaml'" in done.stderr
    assert "Value error" not in done.stderr
