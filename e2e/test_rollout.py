"""Rollouts by steps on a real fleet, under a load that counts every request: one that goes through, one that cannot
start, and one that a person takes back; and the operator killed in the middle.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from typing import Any

import httpx
import pytest
from e2e_support import Fleet, Load, eventually, kill, restarts, system_pod, under_load
from prometheus_client.parser import text_string_to_metric_families

from paceline_crds.names import ROUTER_ADMIN_PORT

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

SPACE, NAME = "steps", "chat"
PHASE = 300.0
"""Seconds that an edge may take on a machine that has much else to do."""

ROLLOUT = {
    "strategy": "Canary",
    # A person says when it goes on, so that no step hangs on how fast this machine is.
    "steps": [{"weight": 25, "hold": "1h"}, {"weight": 75, "hold": "1h"}, {"weight": 100, "hold": "1h"}],
    "gates": [{"signal": "ErrorRate", "maxRegressionPercent": 100}],
}
REQUESTS = 40
"""That a share is looked at over; a router's own split is exact to one of them."""


def apply(fleet: Fleet, **runtime: Any) -> None:
    fleet.apply(SPACE, NAME, rollout=ROLLOUT, runtime=runtime)


def order(fleet: Fleet, *arguments: str) -> None:
    """As a person types it."""
    command = [sys.executable, "-m", "paceline_cli", *arguments, "-n", SPACE]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=fleet.cluster.environment()
    )
    assert done.returncode == 0, done


def rollout(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = (fleet.service(SPACE, NAME).get("status") or {}).get("rollout") or {}
    return found


def until(fleet: Fleet, phase: str, weight: int) -> str:
    """Wait for a phase at a weight; the revision that is rolled out."""

    def there() -> bool:
        said = rollout(fleet)
        return (said.get("phase"), said.get("weight")) == (phase, weight)

    eventually(there, f"the rollout is {phase} at {weight} %", PHASE)
    return str(rollout(fleet)["revision"])


def served(fleet: Fleet) -> Counter[str]:
    """Requests that the routers had answered by a revision, by their own counters."""
    address = system_pod(fleet, "router")["status"]["podIP"]
    text = httpx.get(f"http://{address}:{ROUTER_ADMIN_PORT}/metrics", timeout=30).text
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            ours = sample.name == "paceline_router_placed_requests_total" and labels["namespace"] == SPACE
            if ours and labels["outcome"] == "2xx":
                found[labels["revision"]] += int(sample.value)
    return found


def share(fleet: Fleet, load: Load, revision: str) -> float:
    """Percent of the next requests that a revision answers."""
    before, answered = served(fleet), load.answered
    eventually(lambda: load.answered >= answered + REQUESTS, "more requests are answered", PHASE)
    more = served(fleet) - before
    return 100 * more[revision] / more.total()


def replicas(fleet: Fleet, revision: str) -> tuple[int, int]:
    """Pods of a revision, and how many of them are ready."""
    [pool] = fleet.cluster.get("prev", revision, "-n", SPACE)["spec"]["pools"]
    pods = fleet.pods(SPACE, f"paceline.io/pool-hash={pool['hash']}")
    ready = [all(status["ready"] for status in pod["status"].get("containerStatuses", [])) for pod in pods]
    return len(pods), sum(ready)


def weights(fleet: Fleet, revision: str) -> list[int]:
    """What it was to get, decision by decision."""
    kept = fleet.cluster.get("prev", revision, "-n", SPACE)["status"]["rollout"]["timeline"]
    return [weight for weight, _ in itertools.groupby(one["weight"] for one in kept)]


def test_versions_take_over_or_go_back_by_steps_while_the_operator_is_killed_and_every_request_is_answered(
    fleet: Fleet,
) -> None:
    with fleet.namespace(SPACE):
        apply(fleet)
        base = fleet.wait_ready(SPACE, NAME, PHASE)["status"]["currentRevision"]
        with under_load(fleet, f"{SPACE}/{NAME}", clients=3, max_tokens=4, seconds=800.0) as load:
            # A good one.
            apply(fleet, maxNumSeqs=4)
            good = until(fleet, "Judging", 25)
            assert share(fleet, load, good) == pytest.approx(25, abs=12)
            operator = system_pod(fleet, "operator")
            order(fleet, "skip", NAME, "--no-wait", "--reason", "it is a test")
            kill(operator)
            eventually(lambda: restarts(system_pod(fleet, "operator")) > restarts(operator), "the operator is back")
            until(fleet, "Judging", 75)
            assert share(fleet, load, good) == pytest.approx(75, abs=12)
            order(fleet, "skip", NAME)
            until(fleet, "Finishing", 100)
            assert share(fleet, load, good) == pytest.approx(100, abs=10)
            assert replicas(fleet, base) == (1, 1), "the old one is warm until the last hold ends"
            order(fleet, "skip", NAME)
            assert fleet.wait_ready(SPACE, NAME, PHASE)["status"]["currentRevision"] == good
            eventually(lambda: replicas(fleet, base) == (0, 0), "the old one is let go", PHASE)
            assert weights(fleet, good) == [0, 25, 75, 100]

            # One that cannot start.
            apply(fleet, kvCache={"memory": "4096Gi"})
            assert "kvCache" in fleet.wait_reason(SPACE, NAME, "RolledBack", PHASE)["message"]
            broken = rollout(fleet)["revision"]
            assert weights(fleet, broken) == [0]

            # One that somebody takes back.
            apply(fleet, maxNumSeqs=2)
            bad = until(fleet, "Judging", 25)
            assert share(fleet, load, bad) == pytest.approx(25, abs=12)
            order(fleet, "abort", NAME, "--reason", "wrong language")
            assert share(fleet, load, bad) == pytest.approx(0, abs=10)
            assert "wrong language" in fleet.wait_reason(SPACE, NAME, "RolledBack", PHASE)["message"]
            eventually(lambda: replicas(fleet, bad) == (0, 0), "it has no replica", PHASE)
            assert replicas(fleet, good) == (1, 1)
            assert weights(fleet, bad) == [0, 25, 0]
        assert load.failures == []
        assert load.answered == load.sent
        eventually(lambda: served(fleet).total() == load.answered, "each was answered once, by one of them")
        assert served(fleet).keys() == {base, good, bad}
