"""`paceline status --scaling`: each decision with the numbers that made it, and what is not known as such."""

from __future__ import annotations

import json
from typing import Any

from paceline_kube.testing import FakeApiServer

SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"

DECIDED = {
    "pool": "default",
    "desired": 3,
    "reason": "MoreNeeded",
    "message": "3 are needed for the load in 40 s",
    "since": "2026-01-01T00:00:00Z",
    "sources": ["replicas", "routers"],
    "inputs": {"work": "1.9", "peak": "2.4", "needed": "3", "waiting": "12", "start_up": "40", "prefill_rate": "9000"},
}


def with_decision(obj: dict[str, Any], active: dict[str, Any], **changed: Any) -> dict[str, Any]:
    status = {**obj["status"], "scaling": [{**DECIDED, **changed}]}
    return {**obj, "status": {**status, "conditions": [*status["conditions"], active]}}


async def test_a_decision_stands_with_the_numbers_that_made_it(
    server: FakeApiServer, paceline: Any, stored: Any, condition: Any
) -> None:
    await server.put(SERVICES, with_decision(stored(), condition("ScalingActive", "True", "FollowsLoad")))
    await server.put(SERVICES, stored("still"))
    done = await paceline("status", "--scaling")
    assert done.exit_code == 0
    heads, row, _, words = done.stdout.splitlines()
    told = dict(zip(heads.split(), row.split(), strict=True))
    assert told["NAME"] == "chat"
    assert (told["DECIDED"], told["REASON"], told["WORK"], told["NEEDED"]) == ("3", "MoreNeeded", "1.9", "3")
    assert told["HELD"] == "?", "what was not known is no zero"
    assert words == "chat/default: 3 are needed for the load in 40 s (asked: replicas, routers)"


async def test_programs_get_all_of_it(server: FakeApiServer, paceline: Any, stored: Any, condition: Any) -> None:
    await server.put(SERVICES, with_decision(stored(), condition("ScalingActive", "True", "FollowsLoad")))
    [told] = json.loads((await paceline("status", "chat", "--scaling", "-o", "json")).stdout)
    assert told["namespace"] == "demo"
    assert told["inputs"] == DECIDED["inputs"]


async def test_a_count_that_is_only_held_is_not_known(
    server: FakeApiServer, paceline: Any, stored: Any, condition: Any
) -> None:
    held = condition("ScalingActive", "False", "MetricsUnavailable")
    await server.put(SERVICES, with_decision(stored(), held, reason="MetricsUnavailable"))
    assert (await paceline("status", "--scaling")).exit_code == 3


TUNED = {
    "pool": "default",
    "knobs": {"prefillChunkTokens": 352, "maxNumSeqs": 32},
    "started": {"prefillChunkTokens": 512, "maxNumSeqs": 32},
    "reason": "Tightened",
    "message": "prefillChunkTokens 512 → 352: TPOT is 90 ms, and 60 ms are promised",
    "since": "2026-01-01T00:00:00Z",
    "inputs": {"tpot": "0.09", "limit": "0.06", "waiting": "0", "requests": "4"},
}


async def test_each_knob_that_follows_load_stands_beside_what_it_was_started_with_and_the_numbers_that_moved_it(
    server: FakeApiServer, paceline: Any, stored: Any, condition: Any
) -> None:
    obj = stored()
    active = condition("TuningActive", "True", "FollowsLoad")
    status = {**obj["status"], "tuning": [TUNED], "conditions": [*obj["status"]["conditions"], active]}
    await server.put(SERVICES, {**obj, "status": status})
    done = await paceline("status", "--scaling")
    assert done.exit_code == 0
    heads, seqs, chunk, _, words = done.stdout.splitlines()
    told = dict(zip(heads.split(), seqs.split(), strict=True))
    assert (told["KNOB"], told["DECIDED"], told["STARTED"], told["REASON"]) == ("maxNumSeqs", "32", "32", "Tightened")
    assert (told["TPOT"], told["LIMIT"], told["RUNNING"]) == ("0.09", "0.06", "?")
    assert chunk.split()[2:] == ["prefillChunkTokens", "352", "512"]
    assert words == f"chat/default: {TUNED['message']}"
    [program] = json.loads((await paceline("status", "chat", "--scaling", "-o", "json")).stdout)
    assert program["tuning"]["knobs"] == TUNED["knobs"]


async def test_knobs_that_are_only_held_are_not_known(
    server: FakeApiServer, paceline: Any, stored: Any, condition: Any
) -> None:
    obj = stored()
    held = condition("TuningActive", "False", "MetricsUnavailable")
    status = {**obj["status"], "tuning": [TUNED], "conditions": [*obj["status"]["conditions"], held]}
    await server.put(SERVICES, {**obj, "status": status})
    assert (await paceline("status", "--scaling")).exit_code == 3


async def test_where_nothing_follows_load_it_says_what_to_write(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await server.put(SERVICES, stored())
    done = await paceline("status", "--scaling")
    advice = "no pool follows load: set spec.scaling.maxReplicas, or spec.runtime.autoRanges"
    assert (done.exit_code, done.stdout.strip()) == (0, advice)
    assert json.loads((await paceline("status", "--scaling", "-o", "json")).stdout) == []
