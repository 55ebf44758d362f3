"""Why a replica does not serve, from the words Kubernetes has for it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_crds.conditions import Reason
from paceline_operator.failures import ADVICE, Problem, deployment_problem, first_cause, in_doubt, pod_problem, refusal


def pod(*, ready: bool = False, phase: str = "Running", containers: Any = (), init: Any = (), **status: Any) -> Any:
    conditions = [{"type": "Ready", "status": str(ready)}, *status.pop("conditions", [])]
    return {
        "metadata": {"name": "p"},
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": list(containers),
            "initContainerStatuses": list(init),
            **status,
        },
    }


def container(state: Any = None, last: Any = None, *, ready: bool = False, name: str = "runtime") -> Any:
    return {"name": name, "ready": ready, "state": state or {}, "lastState": last or {}}


def ended(code: int, message: str = "", reason: str = "Error") -> Any:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


def waiting(reason: str, message: str = "") -> Any:
    return {"waiting": {"reason": reason, "message": message}}


BACK_OFF = waiting("CrashLoopBackOff", "back-off 20s restarting failed container")


@pytest.mark.parametrize(
    ("container_", "reason", "words"),
    [
        (container(ended(66, "nothing at file:///x")), Reason.MODEL_NOT_FOUND, "nothing at file:///x"),
        (container(BACK_OFF, ended(66, "nothing")), Reason.MODEL_NOT_FOUND, "nothing"),
        (container(BACK_OFF, ended(65, "bad magic")), Reason.MODEL_INVALID, "bad magic"),
        (container(BACK_OFF, ended(78, "KV cache")), Reason.CONFIG_ERROR, "KV cache"),
        (container({"running": {}}, ended(66, "nothing")), Reason.MODEL_NOT_FOUND, "nothing"),
        (container(BACK_OFF, ended(137, reason="OOMKilled")), Reason.OUT_OF_MEMORY, "resources.limits.memory"),
        (container(BACK_OFF, ended(1, "Traceback: boom")), Reason.CRASH_LOOP, "exit code 1: Traceback: boom"),
        (container(BACK_OFF, ended(139)), Reason.CRASH_LOOP, "exit code 139 (signal 11)"),
        (container(BACK_OFF, ended(0, reason="Completed")), Reason.CRASH_LOOP, "again and again"),
        (container(waiting("ErrImagePull", "manifest unknown")), Reason.IMAGE_PULL, "manifest unknown"),
        (container(waiting("ImagePullBackOff", "back-off")), Reason.IMAGE_PULL, "back-off"),
        (container(waiting("InvalidImageName", "no reference")), Reason.IMAGE_PULL, "no reference"),
        (
            container(waiting("CreateContainerConfigError", 'secret "s" not found')),
            Reason.CONFIG_ERROR,
            'secret "s" not found',
        ),
    ],
)
def test_a_container_tells_the_cause(container_: Any, reason: Reason, words: str) -> None:
    problem = pod_problem(pod(containers=[container_]))
    assert problem is not None
    assert problem.reason is reason
    assert words in problem.sentence
    assert problem.where == "pod p"


@pytest.mark.parametrize(
    "fine",
    [
        pod(ready=True, containers=[container({"running": {}}, ended(66), ready=True)]),
        pod(containers=[container({"running": {}})]),
        pod(containers=[container(waiting("ContainerCreating"))]),
        pod(phase="Pending"),
        {"metadata": {"name": "new"}},
        pod(init=[container(ended(0, reason="Completed"), name="init")], containers=[container()]),
    ],
)
def test_a_pod_that_is_ready_or_only_starting_has_no_problem(fine: Any) -> None:
    assert pod_problem(fine) is None


def test_an_init_container_counts_as_well() -> None:
    problem = pod_problem(pod(init=[container(BACK_OFF, ended(1, "no space"), name="fetch")]))
    assert problem is not None
    assert problem.message == "init container fetch exit code 1: no space"


def test_a_pod_that_no_node_takes() -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    assert pod_problem(pod(phase="Pending", conditions=[unscheduled])) == Problem(
        Reason.UNSCHEDULABLE, message, "pod p"
    )
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    assert pod_problem(pod(phase="Pending", conditions=[gated])) is None


def test_a_pod_that_a_node_refused() -> None:
    failed = pod(phase="Failed", reason="UnexpectedAdmissionError", message="not enough devices")
    assert pod_problem(failed) == Problem(Reason.POD_REFUSED, "UnexpectedAdmissionError: not enough devices", "pod p")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "p" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=1, limited: cpu=2', "QuotaExceeded"),
        ('pods "p" is forbidden: violates PodSecurity "restricted:latest"', "PodRefused"),
    ],
)
def test_a_deployment_that_may_not_make_pods(message: str, reason: str) -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    deployment = {"metadata": {"name": "d"}, "status": {"conditions": [condition]}}
    problem = deployment_problem(deployment)
    assert problem is not None
    assert (problem.reason, problem.message) == (reason, message.removeprefix('pods "p" is forbidden: '))
    assert deployment_problem({"metadata": {"name": "d"}}) is None


def test_a_refused_write_tells_what_was_tried() -> None:
    assert refusal("create deployment d with 1", "exceeded quota: q").sentence == (
        f"cannot create deployment d with 1: exceeded quota: q; {ADVICE[Reason.QUOTA_EXCEEDED]}"
    )


def test_the_cause_that_is_told_does_not_depend_on_the_order() -> None:
    found = [
        Problem(Reason.UNSCHEDULABLE, "no node", "pod a"),
        Problem(Reason.CRASH_LOOP, "x", "pod b"),
        Problem(Reason.MODEL_NOT_FOUND, "y", "pod d"),
        Problem(Reason.MODEL_NOT_FOUND, "y", "pod c"),
    ]
    assert first_cause(found) == first_cause(reversed(found)) == found[3]
    assert first_cause([]) is None


def test_a_log_is_cut_at_its_beginning_and_a_message_at_its_end() -> None:
    log = "x" * 5000 + "ValueError: the end"
    problem = pod_problem(pod(containers=[container(ended(1, log))]))
    assert problem is not None
    assert problem.message.endswith("ValueError: the end")
    assert len(problem.message) < 700
    long = pod_problem(pod(containers=[container(waiting("ErrImagePull", "begin" + "x" * 5000))]))
    assert long is not None
    assert "begin" in long.message
    assert len(long.message) < 700


def event(reason: str, message: str, at: str = "2026-01-01T00:00:09Z") -> Any:
    return {"metadata": {"creationTimestamp": at}, "reason": reason, "message": message, "lastTimestamp": at}


CREATING = pod(phase="Pending", containers=[container(waiting("ContainerCreating"))])


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("FailedMount", Reason.VOLUME_UNAVAILABLE),
        ("FailedAttachVolume", Reason.VOLUME_UNAVAILABLE),
        ("FailedCreatePodSandBox", Reason.POD_REFUSED),
    ],
)
def test_what_only_events_tell_is_told(reason: str, expected: Reason) -> None:
    assert in_doubt(CREATING)
    said = [event("Scheduled", "to n1", "2026-01-01T00:00:01Z"), event(reason, "Multi-Attach error for volume v")]
    problem = pod_problem(CREATING, said)
    assert problem is not None
    assert problem.reason is expected
    assert problem.message.startswith("Multi-Attach error for volume v (its access mode lets one node have it: use")


def test_a_failure_that_newer_events_have_overcome_is_not_told() -> None:
    said = [event("FailedMount", "not yet", "2026-01-01T00:00:01Z"), event("Pulling", "pulling the image")]
    assert pod_problem(CREATING, said) is None


def running(*, started: bool, since: str, restarted: Any = None) -> Any:
    state = {"running": {"startedAt": "2026-01-01T00:01:00Z"}}
    runs = container(state, restarted) | {"started": started}
    unready = {"type": "ContainersReady", "status": "False", "lastTransitionTime": since}
    return pod(containers=[runs], conditions=[unready])


def test_a_replica_that_was_ready_and_is_not_fails_its_probe() -> None:
    fell = running(started=True, since="2026-01-01T00:05:00Z")
    assert in_doubt(fell)
    problem = pod_problem(fell)
    assert problem is not None
    assert problem.reason is Reason.PROBE_FAILING
    said = pod_problem(fell, [event("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")])
    assert said is not None
    assert said.message == (
        "container runtime runs and is not ready any more: Readiness probe failed: HTTP probe failed with statuscode: "
        "503"
    )


@pytest.mark.parametrize("started", [False, True])
def test_a_replica_that_loads_its_model_or_has_just_done_so_has_no_problem(started: bool) -> None:
    loading = running(started=started, since="2026-01-01T00:00:30Z")
    assert pod_problem(loading) is None
    assert not in_doubt(loading)


@pytest.mark.parametrize("code", [0, 137, 143])
def test_a_replica_that_its_liveness_probe_stops_is_told_by_the_events(code: int) -> None:
    stopped = running(started=False, since="2026-01-01T00:00:30Z", restarted=ended(code))
    assert in_doubt(stopped)
    problem = pod_problem(stopped, [event("Unhealthy", "Liveness probe failed: context deadline exceeded")])
    assert problem is not None
    assert problem.reason is Reason.PROBE_FAILING
    assert problem.message.endswith("stopped again and again: Liveness probe failed: context deadline exceeded")


def test_a_node_that_is_not_heard_of_takes_readiness_from_the_pod_alone() -> None:
    fine = container({"running": {}}, ready=True)
    lost = pod(containers=[fine], conditions=[{"type": "ContainersReady", "status": "True"}]) | {
        "spec": {"nodeName": "n7"}
    }
    assert pod_problem(lost) == Problem(Reason.NODE_LOST, "node n7 does not report any more", "pod p")
    gated = {**lost, "spec": {"nodeName": "n7", "readinessGates": [{"conditionType": "x"}]}}
    assert pod_problem(gated) is None


def test_a_pod_that_ends_tells_only_that_its_node_was_lost() -> None:
    ending = pod(containers=[container(BACK_OFF, ended(1))])
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_problem(ending) is None
    assert not in_doubt(ending)
    ending["status"]["conditions"].append({"type": "DisruptionTarget", "reason": "DeletionByTaintManager"})
    problem = pod_problem(ending)
    assert problem is not None
    assert problem.reason is Reason.NODE_LOST


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("Evicted", Reason.EVICTED), ("NodeShutdown", Reason.NODE_LOST), ("OutOfcpu", Reason.POD_REFUSED)],
)
def test_a_pod_that_failed_says_how(reason: str, expected: Reason) -> None:
    problem = pod_problem(pod(phase="Failed", reason=reason, message="The node was low on resource: memory."))
    assert problem is not None
    assert problem.reason is expected


def test_a_claim_that_is_not_there_is_a_volume_not_a_node() -> None:
    message = '0/1 nodes are available: persistentvolumeclaim "models" not found.'
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    problem = pod_problem(pod(phase="Pending", conditions=[unscheduled]))
    assert problem is not None
    assert problem.reason is Reason.VOLUME_UNAVAILABLE


def test_exit_codes_mean_something_for_the_runtime_only() -> None:
    problem = pod_problem(pod(containers=[container(BACK_OFF, ended(66, "x"), name="proxy")]))
    assert problem is not None
    assert problem.reason is Reason.CRASH_LOOP


def test_the_memory_that_was_too_little_is_named() -> None:
    killed = pod(containers=[container(BACK_OFF, ended(137, reason="OOMKilled"))])
    killed["spec"] = {"containers": [{"name": "runtime", "resources": {"limits": {"memory": "4Gi"}}}]}
    problem = pod_problem(killed)
    assert problem is not None
    assert "its limit of 4Gi" in problem.message
