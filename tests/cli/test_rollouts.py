"""`paceline verdict`, and the orders about a rollout by steps, against a fake API server."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from paceline_cli.revisions import Kept
from paceline_cli.rollouts import follows, pause_words
from paceline_cli.tables import stamp_of
from paceline_cli.verdict import answer
from paceline_crds.rollout import OrderAction
from paceline_crds.service import InferenceService
from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator import children
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render
from paceline_shadow_traffic.verdict import Verdict

REVISIONS = "/apis/paceline.io/v1alpha1/inferencerevisions"
SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"
NOW = 1_800_000_000.0


def told(verdict: str = "Pass", generation: int = 7, step: int = 1, at: float = NOW) -> dict[str, Any]:
    gate = {
        "place": "default/Short",
        "signal": "TTFTP99",
        "outcome": "NoWorse",
        "reason": "WithinMargin",
        "message": "m",
    }
    said = {
        "verdict": verdict,
        "message": f"said {verdict}",
        "base": "chat-aaa",
        "generation": generation,
        "step": step,
    }
    foreseen = {"place": "default/Short", "signal": "TTFTP99", "seconds": 32401, "message": "it needs 9.0 h"}
    times = {"since": stamp_of(at - 600), "at": stamp_of(at)}
    return {**said, "weight": 5, **times, "gates": [gate], "prospects": [foreseen]}


def rollout(phase: str = "Judging", revision: str = "chat-bbb", **fields: Any) -> dict[str, Any]:
    common = {"revision": revision, "phase": phase, "step": 1, "steps": 3, "weight": 5, "reason": "Followed"}
    return {**common, "message": "why", **fields}


def kept(verdict: dict[str, Any] | None = None, last: str = "Followed", name: str = "chat-bbb") -> Kept:
    timeline = [{"reason": last, "message": "because", "by": "paceline"}]
    return Kept(name, "", None, None, "", "", verdict=verdict or {}, timeline=timeline)


@pytest.mark.parametrize(
    ("status", "verdict", "last", "expected"),
    [
        ({"rollout": rollout()}, told(), "Followed", Verdict.PASS),
        ({"rollout": rollout()}, told("Fail"), "Followed", Verdict.FAIL),
        ({"rollout": rollout()}, told("NotKnown"), "Followed", Verdict.NOT_KNOWN),
        ({"rollout": rollout()}, None, "Followed", Verdict.NOT_KNOWN),
        ({"rollout": rollout()}, told(generation=6), "Followed", Verdict.NOT_KNOWN),
        ({"rollout": rollout(step=2)}, told(), "Passed", Verdict.NOT_KNOWN),
        ({"rollout": rollout()}, told(at=NOW - 600), "Followed", Verdict.NOT_KNOWN),
        ({"rollout": rollout("Blocked")}, told(), "NoRoom", Verdict.NOT_KNOWN),
        ({"rollout": rollout("RollingBack")}, told(), "GateWorse", Verdict.FAIL),
        ({"rollout": rollout("Idle", reason="RolledBack")}, told("Fail"), "RolledBack", Verdict.FAIL),
        ({"rollout": rollout("Held")}, told(), "GateWorse", Verdict.FAIL),
        ({"rollout": rollout("Finishing", step=3)}, told(step=2, at=NOW - 9000), "Followed", Verdict.PASS),
        ({"currentRevision": "chat-bbb"}, told(step=2, at=NOW - 9000), "Finished", Verdict.PASS),
        ({"currentRevision": "chat-bbb"}, None, "Finished", Verdict.NOT_KNOWN),
        ({"currentRevision": "chat-ccc"}, told(), "RolledBack", Verdict.FAIL),
    ],
)
def test_the_answer_is_about_what_is_known_now(
    stored: Any, status: dict[str, Any], verdict: dict[str, Any] | None, last: str, expected: Verdict
) -> None:
    obj = stored(traffic={"generation": 7, "entries": []}, **status)
    assert answer(obj, kept(verdict, last), NOW).verdict is expected


@pytest.fixture
async def staged(server: FakeApiServer, stored: Any) -> str:
    """A service that rolls a revision out by steps, and has a verdict on it; gives the revision's name."""
    obj = stored(updatedRevision="chat-bbb", traffic={"generation": 7, "entries": []})
    obj["spec"]["rollout"] = {"strategy": "Canary"}
    service = await server.put(SERVICES, obj)
    desired = render(InferenceService.from_object({**service, "status": {}}), Carried(), "paceline.io/runtime:2")
    revision = children.revision(Observed("demo", "chat", service["metadata"]["uid"], 1), desired)
    event = {"at": stamp_of(time.time()), "phase": "Judging", "weight": 5, "by": "paceline", "reason": "Followed"}
    revision["status"] = {"rollout": {"verdict": told(at=time.time()), "timeline": [event]}}
    await server.put(REVISIONS, revision)
    service["status"] |= {"updatedRevision": desired.revision, "rollout": rollout(revision=desired.revision)}
    await server.put(SERVICES, service)
    return desired.revision


async def test_a_pipeline_reads_the_exit_code_and_people_the_gates(paceline: Any, staged: str) -> None:
    done = await paceline("verdict", "chat")
    assert done.exit_code == 0, done.output
    assert f"demo/chat {staged}: Pass: said Pass" in done.stdout
    assert "TTFTP99" in done.stdout
    assert "it needs 9.0 h" in done.stdout
    shown = json.loads((await paceline("verdict", "chat", "--revision", staged, "-o", "json")).stdout)
    assert (shown["verdict"], shown["judged"]["weight"], shown["timeline"][0]["reason"]) == ("Pass", 5, "Followed")
    unknown = await paceline("verdict", "chat", "--revision", "chat-zzz")
    assert (unknown.exit_code, staged in unknown.stderr) == (3, True)


async def test_the_status_of_a_service_says_why_nothing_is_known_of_its_step(
    server: FakeApiServer, paceline: Any, staged: str
) -> None:
    [kept] = [obj for key, obj in server.objects.items() if key[0] == REVISIONS]
    words = "the last look: no recorder is ready: set recorder.enabled in the chart"
    kept["status"]["rollout"]["verdict"] |= {"verdict": "NotKnown", "message": words}
    await server.put(REVISIONS, kept)
    shown = (await paceline("status", "chat")).stdout
    assert f"its verdict: NotKnown: {words}" in " ".join(shown.split())
    assert json.loads((await paceline("status", "chat", "-o", "json")).stdout)["verdict"] == f"NotKnown: {words}"
    server.refuse(Refusal(403, "Forbidden", "no"), path="inferencerevisions")
    hidden = await paceline("status", "chat")
    assert (hidden.exit_code, "you may not read inferencerevisions here" in " ".join(hidden.stdout.split())) == (
        0,
        True,
    )


@pytest.mark.parametrize("action", ["promote", "skip", "abort"])
async def test_an_order_says_who_and_why_and_is_a_new_one_each_time(
    server: FakeApiServer, paceline: Any, staged: str, action: str
) -> None:
    ids = set()
    for _ in range(2):
        done = await paceline(action, "chat", "--reason", "night", "--no-wait")
        assert done.exit_code == 0, done.output
        [service] = [obj for key, obj in server.objects.items() if key[0] == SERVICES]
        order = service["spec"]["rollout"]["order"]
        ids.add(order["id"])
        assert (order["revision"], order["action"], order["why"]) == (staged, action.capitalize(), "night")
        assert "@" in order["by"] or order["by"]
    assert len(ids) == 2


async def test_a_pause_is_one_field_and_resume_gives_it_up(server: FakeApiServer, paceline: Any, staged: str) -> None:
    assert (await paceline("pause", "chat")).exit_code == 0
    [service] = [obj for key, obj in server.objects.items() if key[0] == SERVICES]
    assert service["spec"]["rollout"]["paused"] is True


async def test_a_pause_tells_programs_what_it_holds_up(paceline: Any, staged: str) -> None:
    assert json.loads((await paceline("pause", "chat", "-o", "json")).stdout)["revision"] == staged


@pytest.mark.parametrize(
    ("phase", "paused", "words"),
    [
        ("Judging", True, "chat-bbb stays at its step until `paceline resume chat`"),
        ("Blocked", True, "no new revision begins until `paceline resume chat`"),
        (None, True, "no new revision begins until `paceline resume chat`"),
        ("Judging", False, "chat-bbb goes on"),
        ("Blocked", False, "a new revision begins by itself again"),
    ],
)
def test_a_pause_says_what_it_holds_up_and_how_it_ends(
    stored: Any, phase: str | None, paused: bool, words: str
) -> None:
    obj = stored(**({"rollout": rollout(phase)} if phase else {}))
    obj["spec"]["rollout"] = {"strategy": "Canary", "paused": not paused}
    assert words in pause_words(obj, paused)


def test_a_resume_of_what_was_not_paused_says_so(stored: Any) -> None:
    obj = stored(rollout=rollout("Judging"))
    obj["spec"]["rollout"] = {"strategy": "Canary"}
    assert pause_words(obj, paused=False) == "it was not paused"


@pytest.mark.parametrize("command", ["promote", "skip", "abort", "pause", "resume"])
async def test_where_traffic_moves_at_once_nothing_is_ordered(
    server: FakeApiServer, paceline: Any, stored: Any, command: str
) -> None:
    await server.put(SERVICES, stored())
    done = await paceline(command, "chat")
    assert done.exit_code == 1
    assert "strategy: Canary" in done.stderr
    assert all(request.startswith("GET") for request in server.requests)


async def test_where_nothing_is_rolled_out_there_is_nothing_to_promote(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    obj = stored()
    obj["spec"]["rollout"] = {"strategy": "Canary"}
    await server.put(SERVICES, obj)
    done = await paceline("promote", "chat")
    assert (done.exit_code, "nothing to promote" in done.stderr) == (1, True)


def test_an_order_is_followed_when_the_status_says_so(stored: Any) -> None:
    before = stored(rollout=rollout(step=1))
    skip = follows(before, OrderAction.SKIP, "chat-bbb", 2)
    assert not skip(before)
    assert skip(stored(observedGeneration=2, rollout=rollout("Moving", step=2)))
    promote = follows(before, OrderAction.PROMOTE, "chat-bbb", 2)
    assert not promote(stored(observedGeneration=2, rollout=rollout("Moving", weight=100)))
    assert promote(stored(observedGeneration=2, rollout=rollout("Finishing", weight=100)))
    assert promote(stored(observedGeneration=2, currentRevision="chat-bbb"))
    abort = follows(before, OrderAction.ABORT, "chat-bbb", 2)
    assert not abort(stored(observedGeneration=2, rollout=rollout("RollingBack", weight=0)))
    assert abort(stored(observedGeneration=2, rollout=rollout("Idle", weight=0)))
