"""What `paceline history` shows of a revision: who, when, why, its baseline and its verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline_cli.history import shown
from paceline_cli.revisions import Kept, read
from paceline_crds.revision import Baseline, InferenceRevision, InferenceRevisionSpec, Percentiles
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_operator.children import revision as revision_object
from paceline_operator.observed import Observed, Range, Traffic
from paceline_operator.render import Carried, render

NOW = 2000.0
SERVICE: dict[str, Any] = {
    "metadata": {"name": "chat", "namespace": "demo", "uid": "u", "generation": 2},
    "spec": {"model": {"source": "package://m"}},
    "status": {"observedGeneration": 2, "currentRevision": "chat-b", "updatedRevision": "chat-b"},
}
TIMES = Percentiles(p50="412ms", p90="1.02s", p99="2.4s")
MEASURED = Baseline(
    since="2026-01-01T00:00:00Z",
    until="2026-01-01T04:00:00Z",
    requests=12_034,
    failed=2,
    prompt_tokens=900_000,
    output_tokens=300_000,
    ttft=TIMES,
    tpot=Percentiles(p50="9.42ms", p90="12.1ms", p99="41.6ms"),
)
VERDICT = {
    "verdict": "Fail",
    "message": "TTFT P99 is 34 % slower (interval 21 to 48 %), 15 % are allowed",
    "base": "chat-a",
    "generation": 4,
    "step": 2,
    "weight": 25,
    "since": "2026-01-01T00:00:00Z",
    "at": "2026-01-01T00:30:00Z",
}


def spec_of(**spec: Any) -> InferenceRevisionSpec:
    obj = {**SERVICE, "spec": {**SERVICE["spec"], **spec}}
    pools = render(InferenceService.from_object(obj), Carried(), "paceline.io/runtime:1").pools
    return InferenceRevisionSpec(service="chat", pools=list(pools))


def kept(name: str, generation: int | None = 1, **more: Any) -> Kept:
    parsed = InferenceRevision(metadata=ObjectMeta(name=name), spec=more.pop("spec", None) or spec_of())
    traffic = None if generation is None else Traffic(generation, name, (), NOW - 600)
    return replace(Kept(name, "2026-01-01T00:00:00Z", parsed, traffic, "ann@example.test", ""), **more)


def said(*revisions: Kept) -> str:
    return " ".join(shown(revisions, SERVICE, NOW).split())


def test_all_that_is_recorded_of_a_revision_is_shown_in_80_columns() -> None:
    one = kept(
        "chat-d919e63f75",
        4,
        why="smaller batches for the traffic of the night, since the first tokens of long prompts came late",
        start_ups={"default": Range(9, 12)},
        baselines={"default": MEASURED},
        verdict=VERDICT,
        timeline=(
            {"at": "2026-01-01T00:30:02Z", "phase": "RollingBack", "weight": 0, "by": "paceline", "message": "worse"},
        ),
    )
    text = shown([one, kept("chat-3639091641")], SERVICE, NOW)
    assert max(map(len, text.splitlines())) <= 80, text
    flat = " ".join(text.split())
    for words in (
        "10m ago (generation 4)",
        "ann@example.test",
        "first tokens of long prompts came late",
        "9 to 12 s",
        "TTFT 412ms/1.02s/2.4s, TPOT 9.42ms/12.1ms/41.6ms (P50/P90/P99), 12,034 requests in 4h until",
        "2 failed",
        "Fail against chat-a at 25 % of the requests, 2026-01-01T00:30:00Z: TTFT P99 is 34 % slower",
        "decided 2026-01-01T00:30:02Z RollingBack at 0 %, by paceline: worse",
    ):
        assert words in flat


def test_what_is_not_known_is_said_with_the_reason() -> None:
    assert "baseline not known (it never served)" in said(kept("chat-c", None))
    served = said(kept("chat-b"))
    assert "baseline not known (routers have measured no request of it" in served
    assert "verdict not known (no rollout by steps has judged it)" in served
    assert "start-up not known" in served


def test_requests_without_times_have_no_percentiles_and_are_counted() -> None:
    untimed = MEASURED.model_copy(update={"ttft": None, "tpot": None, "failed": 0})
    words = said(kept("chat-b", baselines={"default": untimed}))
    assert "baseline 12,034 requests in 4h" in words
    assert "P50" not in words
    assert "none failed" in words


def test_a_verdict_that_knows_nothing_is_called_so() -> None:
    words = said(kept("chat-b", verdict={**VERDICT, "verdict": "NotKnown", "message": "12 of 500 requests"}))
    assert "verdict not known against chat-a" in words


def test_pools_are_named_where_there_are_several() -> None:
    many = spec_of(pools=[{"name": "long"}])
    starts = {"default": Range(9, 9), "long": Range(9, 40)}
    words = said(kept("chat-b", spec=many, start_ups=starts, baselines={"default": MEASURED, "long": MEASURED}))
    assert "start-up default 9 s, long 9 to 40 s" in words
    assert "baseline default: TTFT" in words
    assert "baseline long: TTFT" in words


@pytest.mark.parametrize("status", [None, {}, {"pools": "x"}, {"pools": [{"name": "default", "baseline": {"p": 1}}]}])
def test_a_status_that_is_absent_or_of_another_form_is_nothing_known(status: Any) -> None:
    desired = render(InferenceService.from_object(SERVICE), Carried(), "r")
    made = revision_object(Observed("demo", "chat", "u", 1), desired)
    [one] = read(SERVICE, [made if status is None else {**made, "status": status}])
    assert (one.baselines, one.verdict, one.timeline) == ({}, {}, ())


def test_what_the_operator_wrote_is_read() -> None:
    desired = render(InferenceService.from_object(SERVICE), Carried(), "r")
    pool = {"name": "default", "hash": desired.pools[0].hash, "baseline": MEASURED.model_dump(mode="json")}
    made = revision_object(Observed("demo", "chat", "u", 1), desired)
    [one] = read(SERVICE, [{**made, "status": {"pools": [pool], "rollout": {"verdict": VERDICT}}}])
    assert one.baselines == {"default": MEASURED}
    assert one.verdict == VERDICT
