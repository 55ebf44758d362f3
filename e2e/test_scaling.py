"""A pool of real engines follows load down to zero and back, while Prometheus and the operator are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e_support import SYSTEM, Fleet, eventually, kill, restarts, system_pod, under_load

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

CHART = Path(__file__).parents[1] / "charts" / "paceline"
MONITORING = "paceline-monitoring"
PHASE = 240.0
"""Seconds that a phase may take on a machine that has much else to do."""


def count(fleet: Fleet) -> int:
    """Replicas that the Deployment asks for."""
    [deployment] = fleet.cluster.get("deployments", "-n", "scale")["items"]
    return int(deployment["spec"]["replicas"])


def ready(fleet: Fleet) -> int:
    return int(fleet.service("scale", "chat")["status"].get("readyReplicas", 0))


def decision(fleet: Fleet) -> dict[str, Any]:
    """What was decided about the pool, empty before it was."""
    decided = fleet.service("scale", "chat")["status"].get("scaling") or [{}]
    found: dict[str, Any] = decided[0]
    return found


def stop_prometheus(fleet: Fleet) -> None:
    """kill -9, and nobody starts it again."""
    fleet.cluster.kubectl("scale", "deployment/prometheus", "-n", MONITORING, "--replicas=0")
    fleet.cluster.kubectl("delete", "pods", "--all", "-n", MONITORING, "--force", "--grace-period=0")
    eventually(lambda: not fleet.pods(MONITORING), "Prometheus is gone")


def start_prometheus(fleet: Fleet) -> None:
    fleet.cluster.kubectl("scale", "deployment/prometheus", "-n", MONITORING, "--replicas=1")


def ask_prometheus_too(fleet: Fleet) -> None:
    """Tell the operator of the cluster's Prometheus, as an administrator does."""
    release = fleet.cluster.helm("list", "-A", "-q").strip()
    url = fleet.cluster.prometheus_url
    assert url is not None
    fleet.cluster.helm(
        *("upgrade", release, str(CHART), "-n", SYSTEM, "--reset-then-reuse-values", "--wait"),
        *("--set-string", f"operator.prometheusURL={url}"),
    )


def test_replicas_follow_load_to_zero_and_back_while_parts_are_killed_and_every_request_is_answered(
    fleet: Fleet,
) -> None:
    ask_prometheus_too(fleet)
    with fleet.namespace("scale"):
        scaling = {
            "maxReplicas": 2,
            "scaleDownWindow": "20s",
            "scaleToZero": {"after": "20s", "holdRequestsFor": "240s"},
        }
        # More is asked for than one replica carries: whoever waits for it is to be served, and not told to come back.
        tenancy = {"maxWait": f"{PHASE:.0f}s"}
        fleet.apply("scale", "chat", scaling=scaling, tenancy=tenancy, runtime={"maxNumSeqs": 4})
        fleet.wait_ready("scale", "chat", PHASE)
        with under_load(fleet, "scale/chat", clients=1, max_tokens=4, pause=1.0, seconds=800.0) as few:
            stop_prometheus(fleet)
            try:
                with under_load(fleet, "scale/chat", clients=7, seconds=600.0) as many:
                    eventually(lambda: count(fleet) == 2, "more load asks for another replica", PHASE)
                    before = restarts(system_pod(fleet, "operator"))
                    kill(system_pod(fleet, "operator"))
                    eventually(lambda: ready(fleet) == 2, "the second replica serves", PHASE)
                    eventually(lambda: restarts(system_pod(fleet, "operator")) > before, "the operator is back")
                    assert count(fleet) == 2, "an operator that begins goes on from there"
                # Down goes nothing while Prometheus is asked for and does not answer, and the status says why.
                eventually(
                    lambda: decision(fleet).get("reason") == "MetricsUnavailable" and decision(fleet)["inputs"],
                    "the count is held",
                    PHASE,
                )
                assert "wait_p99" in decision(fleet)["message"]
                active = fleet.condition("scale", "chat", "ScalingActive")
                assert active is not None
                assert active["status"] == "False"
                assert count(fleet) == 2
            finally:
                start_prometheus(fleet)
            eventually(lambda: count(fleet) == 1, "one replica is enough again", PHASE)
            eventually(lambda: len(fleet.pods("scale")) == 1, "the other one is gone")
            answered = few.answered
            eventually(lambda: few.answered > answered + 2, "the one that stays answers")
        eventually(lambda: count(fleet) == 0, "nobody asks: none is kept", PHASE)
        fleet.wait_reason("scale", "chat", "ScaledToZero")
        eventually(lambda: not fleet.pods("scale"), "the last replica is gone")
        woken = (
            fleet.client()
            .with_options(timeout=PHASE)
            .chat.completions.create(
                model="scale/chat", max_tokens=4, messages=[{"role": "user", "content": "Good morning."}]
            )
        )
        assert woken.choices[0].message.content, "a request that is held wakes it, and is answered"
    for load in (few, many):
        assert load.failures == []
        assert load.answered == load.sent > 0
