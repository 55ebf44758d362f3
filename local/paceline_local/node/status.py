"""The pod's status as the kubelet would write it. Pure: from what is known of the containers to JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline_local.node.env import Facts, Pod
from paceline_local.node.events import timestamp
from paceline_local.node.plan import ContainerSpec
from paceline_local.node.runtime import Termination

JsonObject = dict[str, Any]

OURS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "PodScheduled")
"""Condition types that the node owns; others are kept as their writers left them."""


@dataclass(frozen=True)
class ContainerFacts:
    """One container as far as its status goes.

    Attributes:
        restarts: attempts so far, less one.
        running_since: Unix seconds, None when it does not run.
        exit: how the latest attempt ended, when it does not run.
        previous: how the attempt before ended.
        waiting: (reason, message) of what it waits for, when it does not run and is to.
        started, ready: startup probe passed; readiness.
    """

    spec: ContainerSpec
    restarts: int = 0
    container_id: str = ""
    running_since: float | None = None
    exit: Termination | None = None
    previous: Termination | None = None
    waiting: tuple[str, str] | None = None
    started: bool = False
    ready: bool = False

    @property
    def completed(self) -> bool:
        """An init container that is done, or a sidecar that the next container may rely on."""
        if self.spec.role == "sidecar":
            return self.running_since is not None and self.started
        return self.exit is not None and self.exit.exit_code == 0 and self.waiting is None


def _terminated(end: Termination) -> JsonObject:
    body: JsonObject = {
        "exitCode": end.exit_code,
        "reason": end.reason,
        "startedAt": timestamp(end.started_at),
        "finishedAt": timestamp(end.finished_at),
        "containerID": end.container_id,
    }
    if end.signal:
        body["signal"] = end.signal
    if end.message:
        body["message"] = end.message
    return {"terminated": body}


def container_status(facts: ContainerFacts, default_waiting: str) -> JsonObject:
    """The entry of one container in `containerStatuses` or `initContainerStatuses`."""
    body = facts.spec.body
    last: JsonObject = {}
    if facts.running_since is not None:
        state: JsonObject = {"running": {"startedAt": timestamp(facts.running_since)}}
        last = _terminated(facts.previous) if facts.previous else {}
    elif facts.waiting is not None or facts.exit is None:
        reason, message = facts.waiting or (default_waiting, "")
        state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        end = facts.exit or facts.previous
        last = _terminated(end) if end else {}
    else:
        state = _terminated(facts.exit)
        last = _terminated(facts.previous) if facts.previous else {}
    known = bool(facts.container_id)
    return {
        "name": facts.spec.name,
        "image": body["image"],
        "imageID": f"paceline-local://{body['image']}" if known else "",
        "state": state,
        "lastState": last,
        "ready": facts.ready,
        "started": facts.started,
        "restartCount": facts.restarts,
        **({"containerID": facts.container_id} if known else {}),
    }


def initialized(containers: Sequence[ContainerFacts]) -> bool:
    """Whether the main containers may run: all init containers are done, or main ones have begun already."""
    mains = [c for c in containers if c.spec.role == "main"]
    if any(c.container_id for c in mains):
        return True
    return all(c.completed for c in containers if c.spec.role != "main")


def phase_of(containers: Sequence[ContainerFacts], outcome: str | None) -> str:
    """The pod's phase: `outcome` once that is settled, else Pending until every main container has begun."""
    if outcome is not None:
        return outcome
    mains = [c for c in containers if c.spec.role == "main"]
    if not initialized(containers) or any(not c.container_id for c in mains):
        return "Pending"
    return "Running"


def _names(containers: Sequence[ContainerFacts]) -> str:
    return " ".join(c.spec.name for c in containers)


def _condition(kind: str, good: bool, reason: str = "", message: str = "") -> JsonObject:
    body: JsonObject = {"type": kind, "status": "True" if good else "False"}
    if reason:
        body["reason"] = reason
    if message:
        body["message"] = message
    return body


def pod_conditions(
    pod: Pod,
    containers: Sequence[ContainerFacts],
    phase: str,
    has_address: bool,
    now: float,
    told: Sequence[JsonObject] | None = None,
) -> list[JsonObject]:
    """All conditions: the node's own, with the time of their last change, and those of others untouched.

    `told` are the conditions last written: the watch may still bring older states of them.
    """
    previous = {c["type"]: c for c in pod.get("status", {}).get("conditions") or ()}
    previous |= {c["type"]: c for c in told or () if c["type"] in OURS}
    serving = [c for c in containers if c.spec.role != "init"]
    unready = [c for c in serving if not c.ready]
    pending = [c for c in containers if c.spec.role != "main" and not c.completed]
    if phase == "Succeeded":
        ready_words, init_words = ("PodCompleted", ""), ("PodCompleted", "")
    elif phase == "Failed":
        ready_words, init_words = ("PodFailed", ""), ("PodFailed", "")
    else:
        ready_words = ("ContainersNotReady", f"containers with unready status: [{_names(unready)}]")
        init_words = ("ContainersNotInitialized", f"containers with incomplete status: [{_names(pending)}]")
    is_init = initialized(containers)
    all_ready = not unready and phase not in ("Succeeded", "Failed")
    gates = [g["conditionType"] for g in pod["spec"].get("readinessGates") or ()]
    closed = [g for g in gates if previous.get(g, {}).get("status") != "True"]
    ours = [
        _condition("PodReadyToStartContainers", has_address),
        _condition("Initialized", True, "PodCompleted" if phase == "Succeeded" else "")
        if is_init
        else _condition("Initialized", False, *init_words),
        _condition("ContainersReady", True) if all_ready else _condition("ContainersReady", False, *ready_words),
    ]
    if all_ready and closed:
        words = f"the status of pod readiness gate {closed[0]!r} is not True"
        ours.append(_condition("Ready", False, "ReadinessGatesNotReady", words))
    else:
        ours.append(_condition("Ready", True) if all_ready else _condition("Ready", False, *ready_words))
    ours.append(_condition("PodScheduled", True))
    result = []
    for condition in ours:
        before = previous.get(condition["type"])
        changed = before is None or before.get("status") != condition["status"] or not before.get("lastTransitionTime")
        since = timestamp(now) if changed else (before or {})["lastTransitionTime"]
        generation = pod["metadata"].get("generation")
        extra = {"observedGeneration": generation} if generation else {}
        result.append({**condition, "lastProbeTime": None, "lastTransitionTime": since, **extra})
    result += [c for kind, c in previous.items() if kind not in OURS]
    return result


def pod_status(
    pod: Pod,
    containers: Sequence[ContainerFacts],
    facts: Facts,
    *,
    outcome: str | None,
    started_at: float,
    now: float,
    told: Sequence[JsonObject] | None = None,
    reason: str = "",
    message: str = "",
) -> JsonObject:
    """The whole status, as a merge patch of the `status` subresource.

    Args:
        outcome: the final phase, once nothing of the pod will run again.
        started_at: when the node took the pod, Unix seconds.
        told: the conditions as last written, if they were.
        reason, message: why the pod failed as a whole.
    """
    phase = phase_of(containers, outcome)
    has_init = any(c.spec.role != "main" for c in containers)
    default = "PodInitializing" if has_init else "ContainerCreating"
    generation = pod["metadata"].get("generation")
    return {
        **({"observedGeneration": generation} if generation else {}),
        "phase": phase,
        "reason": reason or None,
        "message": message or None,
        "conditions": pod_conditions(pod, containers, phase, bool(facts.pod_ip), now, told),
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "podIP": facts.pod_ip,
        "podIPs": [{"ip": facts.pod_ip}],
        "startTime": timestamp(started_at),
        "initContainerStatuses": [container_status(c, default) for c in containers if c.spec.role != "main"] or None,
        "containerStatuses": [container_status(c, default) for c in containers if c.spec.role == "main"],
    }


def overwritten(pod: Pod, sent: JsonObject, version: int) -> bool:
    """Whether somebody else has changed the node's own conditions since it wrote them.

    The node controller does so for all pods of a node that it takes for lost, and only the node takes that back.

    Args:
        pod: as the watch brought it last, which may be older than what was sent.
        sent: the status that the node wrote last.
        version: the resource version that this write made.
    """
    if int(pod["metadata"].get("resourceVersion") or 0) <= version:
        return False
    now = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions") or ()}
    return any(now.get(c["type"]) != c["status"] for c in sent["conditions"] if c["type"] in OURS)
