"""What status says of parts and pods, from what Kubernetes and the records say."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from paceline_local.alerts import firing, read
from paceline_local.cluster import Cluster
from paceline_local.errors import UnreachableError
from paceline_local.state import Instance, InstanceRecord, Ports, Shape
from paceline_local.status import PartStatus, PodStatus, Status, log_tail, pod_words, ready_problem, status_of

HERE = Cluster(Path("/c"), "https://127.64.0.1:6443", Path("/c/kubeconfig"), Path("/c/ca.crt"), Path("/c/bin"))
RUNNING = PartStatus("etcd", "running", Path("/c/logs/etcd.log"), 1, 0.0)
READY = PodStatus("paceline-system", "router", True, "ready")


def test_an_instance_works_when_all_its_parts_and_pods_do() -> None:
    assert Status(HERE, (RUNNING,)).works
    assert Status(HERE, (RUNNING,), (READY,)).works
    assert not Status(HERE, (RUNNING, PartStatus("kube-scheduler", "crashed", Path("/log")))).works
    assert not Status(HERE, (RUNNING,), (READY, PodStatus("paceline-system", "operator", False, "running"))).works
    assert not Status(HERE, (RUNNING,), (), "Paceline is not installed").works


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (pod(phase="Pending"), "Pending"),
        (
            pod(
                phase="Pending",
                conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}],
            ),
            "0/1 nodes are available",
        ),
        (
            pod(
                phase="Pending",
                containerStatuses=[{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}],
            ),
            "ErrImagePull no such image",
        ),
        (
            pod(
                phase="Running",
                containerStatuses=[{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
            ),
            "CrashLoopBackOff",
        ),
        (
            pod(phase="Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 3}}}]),
            "ended with status 3",
        ),
        (pod(phase="Running", containerStatuses=[{"state": {"running": {}}, "ready": False}]), "running, not ready"),
        (pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}]), "ready"),
        (
            {"metadata": {"name": "p", "deletionTimestamp": "2030-01-01T00:00:00Z"}, "status": {"phase": "Running"}},
            "stopping",
        ),
    ],
)
def test_a_pod_is_described_by_what_it_waits_for(found: dict[str, Any], words: str) -> None:
    assert pod_words(found) == words


def test_a_node_is_ready_only_when_it_says_so() -> None:
    def node(**condition: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": "MemoryPressure", "status": "False"}, condition]}}

    assert ready_problem(node(type="Ready", status="True")) is None
    assert ready_problem(node(type="Ready", status="Unknown", message="silent")) == "it is not ready: silent"
    assert ready_problem({"status": {}}) == "it has not said that it is ready"


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ()
    log.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert log_tail(log, 3) == ("line 99997", "line 99998", "line 99999")
    log.write_bytes(b"\xff not text\n")
    assert log_tail(log) == ("\N{REPLACEMENT CHARACTER} not text",)


def alert(name: str, state: str, severity: str) -> dict[str, Any]:
    return {
        "labels": {"alertname": name, "severity": severity, "service": "chat"},
        "annotations": {"summary": f"demo/chat: {name}", "runbook_url": f"docs/runbooks/{name}.md"},
        "state": state,
        "activeAt": "2030-01-01T00:00:00Z",
    }


def test_alerts_that_fire_are_told_those_that_wake_somebody_first() -> None:
    told = [alert("A", "firing", "warning"), alert("B", "pending", "critical"), alert("C", "firing", "critical")]
    found = read({"data": {"alerts": told}})
    assert [(one.name, one.summary, one.runbook) for one in found] == [
        ("C", "demo/chat: C", "docs/runbooks/C.md"),
        ("A", "demo/chat: A", "docs/runbooks/A.md"),
    ]
    assert read({"data": {"alerts": []}}) == ()


def test_a_prometheus_that_does_not_answer_is_no_silence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(UnreachableError):
        firing(f"http://127.0.0.1:{port}")


def test_an_instance_without_certificates_has_a_status_all_the_same(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "i")
    record = InstanceRecord(64, Ports(1, 2, 3), Shape())
    found = status_of(instance, record)
    assert {part.state for part in found.parts} == {"stopped"}
    assert "certificates are missing" in found.pods_problem
    assert not found.works
