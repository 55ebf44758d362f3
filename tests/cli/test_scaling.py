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


async def test_where_nothing_follows_load_it_says_what_to_write(
    server: FakeApiServer, paceline: Any, stored: Any
) -> None:
    await server.put(SERVICES, stored())
    done = await paceline("status", "--scaling")
    assert (done.exit_code, done.stdout.strip()) == (0, "no pool follows load: set spec.scaling.maxReplicas")
    assert json.loads((await paceline("status", "--scaling", "-o", "json")).stdout) == []
