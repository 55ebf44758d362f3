"""The status of a pod, as the kubelet would write it."""

from __future__ import annotations

from paceline_local.node.env import Facts
from paceline_local.node.plan import ContainerSpec
from paceline_local.node.runtime import Termination
from paceline_local.node.status import ContainerFacts, container_status, overwritten, pod_status

FACTS = Facts("127.64.1.2", "127.64.1.1", "node-0", {})
MAIN = ContainerSpec("main", "Always", {"name": "main", "image": "paceline.io/shell:1"})
INIT = ContainerSpec("init", "OnFailure", {"name": "init", "image": "paceline.io/shell:1"})
POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3}, "spec": {}, "status": {}}


def end(code: int, reason: str = "Error") -> Termination:
    return Termination(code, reason, "", 0, 10.0, 20.0, "paceline://u/main/0")


def status(*containers: ContainerFacts, pod: dict = POD, outcome: str | None = None, now: float = 100.0, **more):
    return pod_status(pod, containers, FACTS, outcome=outcome, started_at=1.0, now=now, **more)


def conditions(found: dict) -> dict[str, str]:
    return {c["type"]: c["status"] for c in found["conditions"]}


RUNNING = ContainerFacts(MAIN, 0, "paceline://u/main/0", running_since=10.0, started=True, ready=True)


def test_a_new_pod_is_pending_and_creating() -> None:
    found = status(ContainerFacts(MAIN))
    assert found["phase"] == "Pending"
    assert found["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert found["podIP"] == "127.64.1.2"
    assert found["observedGeneration"] == 3
    assert conditions(found) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "ContainersReady": "False",
        "Ready": "False",
        "PodScheduled": "True",
    }


def test_main_containers_wait_for_initialisation() -> None:
    init = ContainerFacts(INIT, 0, "paceline://u/init/0", running_since=10.0)
    found = status(init, ContainerFacts(MAIN))
    assert found["phase"] == "Pending"
    assert found["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"
    initialized = next(c for c in found["conditions"] if c["type"] == "Initialized")
    assert initialized["message"] == "containers with incomplete status: [init]"


def test_a_ready_pod() -> None:
    found = status(RUNNING)
    assert found["phase"] == "Running"
    assert conditions(found)["Ready"] == "True"
    assert found["containerStatuses"][0]["state"] == {"running": {"startedAt": "1970-01-01T00:00:10Z"}}


def test_a_crash_loop_shows_what_it_waits_for_and_how_it_ended() -> None:
    facts = ContainerFacts(
        MAIN, 4, "paceline://u/main/4", exit=end(3), previous=end(2), waiting=("CrashLoopBackOff", "back-off 10s")
    )
    found = status(facts)
    entry = found["containerStatuses"][0]
    assert found["phase"] == "Running"
    assert entry["restartCount"] == 4
    assert entry["state"]["waiting"] == {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    assert entry["lastState"]["terminated"]["exitCode"] == 3
    assert not entry["ready"]


def test_an_image_error_before_the_first_start_keeps_the_pod_pending() -> None:
    found = status(ContainerFacts(MAIN, waiting=("ErrImagePull", "no such image")))
    assert found["phase"] == "Pending"
    assert found["containerStatuses"][0]["imageID"] == ""
    assert found["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImagePull"


def test_ended_containers_keep_reason_signal_and_message() -> None:
    killed = Termination(137, "OOMKilled", "last words", 9, 10.0, 20.0, "paceline://u/main/0")
    entry = container_status(ContainerFacts(MAIN, 0, "paceline://u/main/0", exit=killed), "ContainerCreating")
    terminated = entry["state"]["terminated"]
    assert terminated["exitCode"] == 137
    assert terminated["reason"] == "OOMKilled"
    assert terminated["signal"] == 9
    assert terminated["message"] == "last words"
    assert terminated["finishedAt"] == "1970-01-01T00:00:20Z"


def test_a_finished_pod_says_so_in_its_conditions() -> None:
    done = ContainerFacts(MAIN, 0, "paceline://u/main/0", exit=end(0, "Completed"))
    found = status(done, outcome="Succeeded")
    ready = next(c for c in found["conditions"] if c["type"] == "Ready")
    assert found["phase"] == "Succeeded"
    assert (ready["status"], ready["reason"]) == ("False", "PodCompleted")


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    def since(found: dict, kind: str) -> str:
        return next(c for c in found["conditions"] if c["type"] == kind)["lastTransitionTime"]

    first = status(ContainerFacts(MAIN), now=100.0)
    told = first["conditions"]
    second = status(ContainerFacts(MAIN), now=200.0, told=told)
    assert second["conditions"] == told
    third = status(RUNNING, now=300.0, told=told)
    assert since(third, "Ready") == "1970-01-01T00:05:00Z"
    assert since(third, "PodScheduled") == since(first, "PodScheduled")


def test_conditions_of_others_are_kept_and_readiness_gates_count() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "x"}
    pod = {
        **POD,
        "spec": {"readinessGates": [{"conditionType": "example.com/gate"}]},
        "status": {"conditions": [target]},
    }
    found = status(RUNNING, pod=pod)
    assert target in found["conditions"]
    assert conditions(found)["ContainersReady"] == "True"
    assert conditions(found)["Ready"] == "False"
    gate = {"type": "example.com/gate", "status": "True"}
    pod = {**pod, "status": {"conditions": [target, gate]}}
    assert conditions(status(RUNNING, pod=pod))["Ready"] == "True"


def watched(version: int, **changed: str) -> dict:
    conditions = [{**c, "status": changed.get(c["type"], c["status"])} for c in status(RUNNING)["conditions"]]
    return {"metadata": {**POD["metadata"], "resourceVersion": str(version)}, "status": {"conditions": conditions}}


def test_a_condition_of_the_node_that_somebody_else_changed_is_seen_and_an_older_state_is_not_one() -> None:
    sent = status(RUNNING)
    assert overwritten(watched(12, Ready="False"), sent, 11)
    assert not overwritten(watched(12), sent, 11)
    assert not overwritten(watched(11, Ready="False"), sent, 11)
    assert not overwritten(watched(9, Ready="False"), sent, 11)
    assert overwritten({"metadata": {"resourceVersion": "12"}, "status": {}}, sent, 11)
