"""Going back with a real model: the kept revision whose Deployments were deleted, and the commands around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e_support import Fleet, eventually, under_load

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

ROLLBACK_SECONDS = 120.0


def kubectl_paceline(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`kubectl paceline …` as a user types it, with kubectl and the plugin on the PATH."""
    path = os.pathsep.join((str(fleet.cluster.tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = fleet.cluster.environment() | {"PATH": path}
    return subprocess.run(
        ["kubectl", "paceline", *arguments], capture_output=True, text=True, timeout=600, check=False, env=environment
    )


def answer(fleet: Fleet, *arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints."""
    done = kubectl_paceline(fleet, *arguments, "-o", "json")
    assert done.returncode == code, done
    return json.loads(done.stdout)


def names(fleet: Fleet, namespace: str, kind: str) -> set[str]:
    return {item["metadata"]["name"] for item in fleet.cluster.get(kind, "-n", namespace)["items"]}


def test_a_deleted_revision_serves_again_within_two_minutes_and_no_request_fails(
    fleet: Fleet, record_property: pytest.RecordProperty
) -> None:
    with fleet.namespace("back"):
        fleet.apply("back", "chat", replicas=2)
        first = fleet.wait_ready("back", "chat")["status"]["currentRevision"]
        old = names(fleet, "back", "deployments")
        fleet.apply("back", "chat", replicas=2, runtime={"maxNumSeqs": 4})
        second = fleet.wait_ready("back", "chat")["status"]["currentRevision"]
        eventually(lambda: not old & names(fleet, "back", "deployments"), "the old Deployment is deleted", 120)
        eventually(lambda: not old & names(fleet, "back", "configmaps"), "the old ConfigMap is deleted", 60)
        with under_load(fleet, "back/chat") as load:
            done = answer(fleet, "rollback", "chat", "-n", "back", "--reason", "first tokens come late")
            answered = load.answered
            eventually(lambda: load.answered > answered + 3, "answers from the revision that is back")
        print(f"rollback under load: {json.dumps(done)}")
        record_property("rollback_s", done["seconds"])
        assert done["seconds"] < ROLLBACK_SECONDS
        assert (done["revision"], done["servedBefore"]) == (first, second)
        assert load.failures == []
        assert (load.revisions[0], load.revisions[-1]) == (second, first)
        assert fleet.condition("back", "chat")["reason"] == "Pinned"  # type: ignore[index]

        newest, oldest = answer(fleet, "history", "chat", "-n", "back")
        assert (newest["revision"], oldest["revision"]) == (second, first)
        assert oldest["state"] == ["serving", "pinned"]
        assert newest["changes"] == [{"pool": "default", "field": "maxNumSeqs", "before": "8", "after": "4"}]
        undone = answer(fleet, "rollback", "chat", "-n", "back", "--undo")
        print(f"the order taken back, without load: {json.dumps(undone)}")
        assert undone["revision"] == second
        assert fleet.chat("back/chat")


def test_a_real_replica_is_asked_what_it_runs_with(fleet: Fleet) -> None:
    with fleet.namespace("asked"):
        fleet.apply("asked", "chat")
        fleet.wait_ready("asked", "chat")
        [found] = answer(fleet, "drift", "chat", "-n", "asked")
        assert (found["inSync"], found["checked"]) == (True, 1)
        said = answer(fleet, "status", "chat", "-n", "asked")
        assert said["reason"] == "AsAsked"
        assert {"RevisionCreated", "TrafficMoved"} <= {event["reason"] for event in said["events"]}
        (name,) = names(fleet, "asked", "deployments")
        # As somebody does at night. The pods follow, and the command sees it in the replica itself.
        fleet.cluster.kubectl("set", "env", f"deployment/{name}", "-n", "asked", "PACELINE_MAX_NUM_SEQS=2")
        fleet.cluster.kubectl("rollout", "status", f"deployment/{name}", "-n", "asked", "--timeout=180s")

        def effective() -> bool:
            done = kubectl_paceline(fleet, "drift", "chat", "-n", "asked", "-o", "json")
            items = json.loads(done.stdout)[0]["items"] if done.returncode == 1 else []
            return any(i["field"] == "runtime.maxNumSeqs" and i["actual"] == "2 (from environment)" for i in items)

        eventually(effective, "the replica's own report differs", 60)
        eventually(
            lambda: (fleet.condition("asked", "chat", "ConfigInSync") or {}).get("reason") == "Drifted",
            "the operator says the same",
            60,
        )
        assert kubectl_paceline(fleet, "status", "-n", "asked").returncode == 0, "it serves"
