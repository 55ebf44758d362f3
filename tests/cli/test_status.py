"""`paceline status`, and what all commands that ask a cluster have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_cli.main import build
from paceline_cli.status import again_and_again
from paceline_cli.tables import middled
from paceline_kube import Unreachable
from paceline_kube.testing import FakeApiServer, Refusal

SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"
EVENTS = "/api/v1/events"


async def test_a_table_of_the_namespace_of_the_context(server: FakeApiServer, paceline: Any, stored: Any) -> None:
    await server.put(SERVICES, stored())
    await server.put(SERVICES, stored("other", "elsewhere"))
    done = await paceline("status")
    assert done.exit_code == 0
    heads, row = done.stdout.splitlines()
    assert heads.split() == ["NAME", "READY", "REASON", "TRAFFIC", "REPLICAS", "DRIFT", "SLO"]
    assert row.split() == ["chat", "True", "AsAsked", "chat-aaa", "1/1", "none", "-"]


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
    assert "(of an earlier spec)" in (await paceline("status", "-o", "wide")).stdout
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
    told = [line.split()[2] for line in out.split("Events:")[1].splitlines() if "Reason" in line]
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


async def test_a_name_that_another_namespace_has_is_told_with_what_to_write(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await server.put(SERVICES, stored())
    for command in ("status", "history", "skip"):
        done = await paceline(command, "chat", "-n", "other")
        assert done.exit_code == 1
        assert done.stderr == "error: no InferenceService other/chat: there is none in this namespace; write -n demo\n"
    done = await paceline("status", "chta", "-n", "other")
    assert "`paceline status -A` shows those of others" in done.stderr


async def test_other_namespaces_that_may_not_be_read_do_not_hide_that_it_is_not_there(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await server.put(SERVICES, stored())
    server.refuse(Refusal(403, "Forbidden", "no"), path="v1alpha1/inferenceservices")
    done = await paceline("status", "chat", "-n", "other")
    assert done.exit_code == 1
    assert done.stderr == "error: no InferenceService other/chat: there is none in this namespace\n"


async def test_no_services_is_no_fault(paceline: Any) -> None:
    done = await paceline("status")
    assert done.exit_code == 0
    assert done.stdout == "no InferenceServices in namespace demo (-A shows all namespaces)\n"


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
    assert done.stdout == "no InferenceServices in namespace demo (-A shows all namespaces)\n"


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
    assert "write table, wide or json, not 'yaml'" in done.stderr
    assert "Value error" not in done.stderr


SLO_WORDS = (
    "in the last 600 s; goodput 97.5 % of 200 requests; TTFT P90 (at most 800ms): kept by 97.5 % of 200; "
    "TTFT P99 (at most 2s): kept by 98 % of 200"
)


@pytest.fixture
def rolling(stored: Any, condition: Any) -> Any:
    """A service in the middle of everything, with long names."""

    def make(name: str = "a-service-with-quite-a-long-name", **status: Any) -> Any:
        entries = [
            {"pool": pool, "revision": f"{name}-{end}", "weight": weight}
            for pool in ("default", "long")
            for end, weight in (("7f3c9d0e", 75 if pool == "long" else 95), ("8d1e0aaa", 25 if pool == "long" else 5))
        ]
        sentence = "one of two replicas is not ready: it cannot be scheduled, since no node has two GPUs that are free"
        conditions = [
            condition("Ready", "False", "VolumeUnavailable", sentence),
            condition("TrafficReady", "True", "Serving", f"2 replicas take requests for {name}-7f3c9d0e"),
            condition("SLOMet", "True", "InnerLineCrossed", SLO_WORDS),
            condition("ConfigInSync", "False", "Drifted", "runtime.maxNumSeqs is 4 on one replica, recorded is 32"),
        ]
        decision = "two more for the queue: 14 requests wait and the first has waited for 9 s of the 2 s that it may"
        return stored(
            name,
            conditions=conditions,
            traffic={"generation": 7, "entries": entries},
            drift={"count": 1, "items": [{"pod": f"{name}-p", "field": "runtime.x", "desired": "32", "actual": "4"}]},
            rollout={
                "revision": f"{name}-8d1e0aaa", "phase": "Judging", "step": 2, "steps": 3, "weight": 25,
                "since": "2026-01-01T00:00:00Z", "verdict": "NotKnown", "reason": "TooFewRequests",
                "message": "TTFT P99 of 41 requests, 500 are needed",
            },
            scaling=[
                {"pool": "default", "desired": 4, "reason": "Queue", "message": decision, "since": "2026-01-01T00:00Z"}
            ],
            **status,
        )  # fmt: skip

    return make


@pytest.mark.parametrize("more", [[], ["-A"], ["a-service-with-quite-a-long-name"]])
async def test_what_is_seen_at_a_glance_fits_80_columns(
    server: FakeApiServer, paceline: Any, stored: Any, rolling: Any, more: list[str]
) -> None:
    await server.put(SERVICES, stored())
    kept = await server.put(SERVICES, rolling())
    event = {
        "metadata": {"name": "e", "namespace": "demo"},
        "involvedObject": {"name": kept["metadata"]["name"], "uid": kept["metadata"]["uid"]},
        "type": "Warning",
        "reason": "VolumeUnavailable",
        "message": "a long sentence that says what happened, to whom, and what to do about it, in so many words",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    await server.put(EVENTS, event)
    out = (await paceline("status", *more)).stdout
    assert [line for line in out.splitlines() if len(line) > 80] == []
    flat = " ".join(out.split())
    for words in ("one of two replicas is not ready", "Judging, step 2 of 3 at 25 %, verdict NotKnown", SLO_WORDS):
        assert words in flat
    assert "maxNumSeqs" in flat


async def test_wide_shows_names_and_shares_in_full(server: FakeApiServer, paceline: Any, rolling: Any) -> None:
    await server.put(SERVICES, rolling())
    _, row = (await paceline("status", "-o", "wide")).stdout.splitlines()
    name = "a-service-with-quite-a-long-name"
    assert f"{name}-7f3c9d0e 75-95% {name}-8d1e0aaa 5-25%" in row
    assert row.split()[:3] == [name, "False", "VolumeUnavailable"]
    said = json.loads((await paceline("status", "-o", "json")).stdout)[0]
    assert said["slo"] == {"status": "True", "reason": "InnerLineCrossed", "message": SLO_WORDS}
    assert said["rollout"]["phase"] == "Judging"
    assert {entry["weight"] for entry in said["traffic"]} == {75, 95, 25, 5}
    assert [one["reason"] for one in said["scaling"]] == ["Queue"]


@pytest.mark.parametrize(
    ("status", "reason", "word"),
    [
        ("True", "PromisesKept", "kept"),
        ("True", "InnerLineCrossed", "inner"),
        ("False", "PromiseMissed", "missed"),
        ("Unknown", "NotEnoughRequests", "?"),
    ],
)
async def test_the_slo_is_one_word(
    server: FakeApiServer, paceline: Any, stored: Any, condition: Any, status: str, reason: str, word: str
) -> None:
    conditions = [*stored()["status"]["conditions"], condition("SLOMet", status, reason, "words")]
    await server.put(SERVICES, stored(conditions=conditions))
    assert (await paceline("status")).stdout.splitlines()[1].split()[-1] == word


async def test_watching_goes_on_while_the_server_is_away_and_ends_with_the_last_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: list[Any] = [("first", 0), Unreachable("nobody there"), ("last", 1)]
    pauses: list[float] = []

    async def look() -> tuple[str, int]:
        one = found[len(pauses)]
        if isinstance(one, Exception):
            raise one
        return str(one[0]), int(one[1])

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    assert await again_and_again(look, 2.0, pause=pause) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[::2] == ["first", "the API server does not answer: nobody there", "last"]
    assert pauses == [2.0] * 3


@pytest.mark.parametrize(
    ("text", "limit", "seen"), [("short", 8, "short"), ("chat-7f3c9-0123456789", 10, "chat-…6789")]
)
def test_names_lose_their_middles(text: str, limit: int, seen: str) -> None:
    assert middled(text, limit) == seen
