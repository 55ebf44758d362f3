"""Why a replica does not serve, in a word and a sentence, from what Kubernetes says of pods and Deployments. Pure.

What a pod's own status leaves open (`in_doubt`) is told by its Events: a volume that is not mounted, a probe's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from paceline_crds.conditions import EXIT_CONFIG, EXIT_MODEL_INVALID, EXIT_MODEL_NOT_FOUND, Reason
from paceline_crds.names import CONTAINER_RUNTIME
from paceline_kube import ApiError, Invalid, JsonObject

MESSAGE_LIMIT = 600
"""Characters of another part's message that are passed on."""

ADVICE: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.MODEL_NOT_FOUND: "correct spec.model.source, or put the model there",
        Reason.MODEL_INVALID: "put whole files there, or name another model in spec.model.source",
        Reason.OUT_OF_MEMORY: "raise spec.pod.resources.limits.memory, or lower spec.runtime.kvCache",
        Reason.IMAGE_PULL: "correct spec.runtime.image, or name the registry's Secret in spec.pod.imagePullSecrets",
        Reason.VOLUME_UNAVAILABLE: "make or free the volume, or name another one",
        Reason.CRASH_LOOP: "`kubectl logs --previous` of the pod tells more",
        Reason.QUOTA_EXCEEDED: "raise the quota, or ask for less; nothing else is needed then",
        Reason.UNSCHEDULABLE: "add a node that fits, or ask for less in spec.accelerator and spec.pod; nothing else is "
        "needed then",
        Reason.NODE_LOST: "bring the node back, or delete it so that its replicas are made elsewhere",
        Reason.FIELDS_MISSING: "bring the CRDs up (`paceline crds | kubectl apply --server-side -f -`, or the chart)",
        Reason.PROBE_FAILING: "`kubectl logs` of the pod tells more",
        Reason.EVICTED: "ask for what it really uses in spec.pod.resources, or free the node",
    }
)
"""What to do, where the message of the cause does not say it already."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A cause. `where` is the pod, Deployment or pool it was seen at; empty where the message says it."""

    reason: Reason
    message: str
    where: str = ""

    @property
    def sentence(self) -> str:
        """The message with its place and with what to do."""
        advice = ADVICE.get(self.reason, "")
        words = f"{self.where}: {self.message}" if self.where else self.message
        return f"{words.rstrip('.')}; {advice}" if advice else words


# What is told first where several things are wrong: what no waiting will cure, before what may.
_ORDER = (
    Reason.INVALID_SPEC,
    Reason.DOES_NOT_FIT,
    Reason.FIELDS_MISSING,
    Reason.MODEL_NOT_FOUND,
    Reason.MODEL_INVALID,
    Reason.CONFIG_ERROR,
    Reason.OUT_OF_MEMORY,
    Reason.IMAGE_PULL,
    Reason.VOLUME_UNAVAILABLE,
    Reason.CRASH_LOOP,
    Reason.PROBE_FAILING,
    Reason.QUOTA_EXCEEDED,
    Reason.POD_REFUSED,
    Reason.RESOURCE_CONFLICT,
    Reason.UNSCHEDULABLE,
    Reason.NODE_LOST,
    Reason.EVICTED,
)

_BY_EXIT_CODE = {
    EXIT_MODEL_NOT_FOUND: Reason.MODEL_NOT_FOUND,
    EXIT_MODEL_INVALID: Reason.MODEL_INVALID,
    EXIT_CONFIG: Reason.CONFIG_ERROR,
}

_WAITING = {
    "ErrImagePull": Reason.IMAGE_PULL,
    "ImagePullBackOff": Reason.IMAGE_PULL,
    "ErrImageNeverPull": Reason.IMAGE_PULL,
    "InvalidImageName": Reason.IMAGE_PULL,
    "ImageInspectError": Reason.IMAGE_PULL,
    "RegistryUnavailable": Reason.IMAGE_PULL,
    "CreateContainerConfigError": Reason.CONFIG_ERROR,
    "CreateContainerError": Reason.POD_REFUSED,
    "RunContainerError": Reason.POD_REFUSED,
}

_NOT_MADE_YET = frozenset({"ContainerCreating", "PodInitializing"})

_FAILED = {
    "Evicted": Reason.EVICTED,
    "NodeLost": Reason.NODE_LOST,
    "NodeShutdown": Reason.NODE_LOST,
    "Terminated": Reason.NODE_LOST,  # an orderly shutdown of the node
}

_SAID = {
    "FailedMount": Reason.VOLUME_UNAVAILABLE,
    "FailedAttachVolume": Reason.VOLUME_UNAVAILABLE,
    "FailedMapVolume": Reason.VOLUME_UNAVAILABLE,
    "FailedCreatePodSandBox": Reason.POD_REFUSED,
    "NetworkNotReady": Reason.POD_REFUSED,
}

_ONE_NODE = (
    "its access mode lets one node have it: use ReadOnlyMany or ReadWriteMany, or one replica with "
    "spec.rollout.strategy: Recreate"
)

_SIGTERM, _SIGKILL = 143, 137
_RETRIED_NAME = re.compile(r'^pods "[^"]*" is forbidden: ')


def first_cause(problems: Iterable[Problem]) -> Problem | None:
    """The problem to tell; the same one for the same set, whatever its order."""
    return min(problems, key=lambda p: (_ORDER.index(p.reason), p.where, p.message), default=None)


def pod_problem(pod: JsonObject, said: Sequence[JsonObject] = ()) -> Problem | None:
    """Why this pod does not serve; None where it is ready, or simply not yet ready.

    Args:
        said: Events about the pod, where somebody asked for them.
    """
    status = pod.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    where = f"pod {pod['metadata']['name']}"
    if pod["metadata"].get("deletionTimestamp"):
        # Whatever else it says: it is to end. But that its node is lost may be why, and then it may never end.
        taint = conditions.get("DisruptionTarget") or {}
        if taint.get("reason") != "DeletionByTaintManager":
            return None
        return Problem(Reason.NODE_LOST, f"{_node(pod)} was lost and the replica is made elsewhere", where)
    ended = status.get("phase") in ("Failed", "Succeeded")
    if not ended and (conditions.get("Ready") or {}).get("status") == "True":
        return None
    found = [Problem(p.reason, p.message, where) for p in _container_problems(pod, said)]
    if found:
        return first_cause(found)
    if status.get("phase") == "Failed":
        words = ": ".join(w for w in (status.get("reason"), status.get("message")) if w)
        reason = _FAILED.get(status.get("reason") or "", Reason.POD_REFUSED)
        return Problem(reason, _cut(words or "the pod failed"), where)
    if status.get("phase") == "Unknown" or _unheard(pod, conditions):
        return Problem(Reason.NODE_LOST, f"{_node(pod)} does not report any more", where)
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        message = scheduled.get("message") or "no node fits"
        reason = Reason.VOLUME_UNAVAILABLE if "persistentvolumeclaim" in message.lower() else Reason.UNSCHEDULABLE
        return Problem(reason, _cut(message), where)
    return None


def in_doubt(pod: JsonObject) -> bool:
    """Whether the pod does not serve and its status does not say why, so that its Events should be asked for."""
    status = pod.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") in ("Failed", "Succeeded"):
        return False
    if (conditions.get("Ready") or {}).get("status") == "True":
        return False
    busy = any((c.get("state") or {}).get("running") for c in status.get("initContainerStatuses") or ())
    return any(
        (((c.get("state") or {}).get("waiting") or {}).get("reason") in _NOT_MADE_YET and not busy)
        or _fell(pod, c)
        or _was_stopped(c)
        for c in status.get("containerStatuses") or ()
    )


def deployment_problem(deployment: JsonObject) -> Problem | None:
    """Why a Deployment could not make its pods: a quota, a policy, a wrong template."""
    for condition in (deployment.get("status") or {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = condition.get("message") or condition.get("reason") or "pods cannot be created"
            # Every attempt has a pod name of its own, which says nothing and would make each message a new one.
            return _no_pod(_RETRIED_NAME.sub("", message), f"deployment {deployment['metadata']['name']}")
    return None


_TOO_LARGE = ("entity too large", "request is too large", "larger than max")
"""In the words of the API server, of etcd, and of the way to etcd."""

_NO_TO_THE_OBJECT = ("denied the request", "denied request", "failed calling webhook", *_TOO_LARGE)
"""How admission says no, with whatever status a webhook or a policy likes, and etcd."""


def is_refusal(error: ApiError) -> bool:
    """Whether the API server said no to the object itself, so that only somebody who mends it, or the rule, helps.

    A value of a wrong type is a 500 in server-side apply; a webhook may say 409 or 429 and mean no.
    """
    if isinstance(error, Invalid) or error.status in (400, 403, 413):
        return True
    return any(words in error.message for words in ("failed to create typed patch object", *_NO_TO_THE_OBJECT))


def refusal(attempt: str, message: str) -> Problem:
    """The API server refused what the operator tried; `attempt` says what that was."""
    if any(words in message for words in _TOO_LARGE):
        words = (
            f"{message}: what the spec renders to has to fit in one object; write less under spec.pod, or fewer pools"
        )
        return Problem(Reason.POD_REFUSED, _cut(words), f"cannot {attempt}")
    if 'is forbidden: User "' in message:
        words = f"{_cut(message)}; give the operator this right (the chart's ClusterRole has it)"
        return Problem(Reason.POD_REFUSED, words, f"cannot {attempt}")
    if "strict decoding error: unknown field" in message:
        # A record that lacks what was rendered would be no record; see the condition CRDOutdated.
        return Problem(Reason.FIELDS_MISSING, _cut(message), f"cannot {attempt}")
    return _no_pod(message, f"cannot {attempt}")


def _no_pod(message: str, where: str) -> Problem:
    reason = Reason.QUOTA_EXCEEDED if "exceeded quota" in message else Reason.POD_REFUSED
    return Problem(reason, _cut(message), where)


def _node(pod: JsonObject) -> str:
    return f"node {(pod.get('spec') or {}).get('nodeName') or '?'}"


def _unheard(pod: JsonObject, conditions: Mapping[str, JsonObject]) -> bool:
    """Whether not the kubelet but the controller of nodes took the pod's readiness away: it changes `Ready` alone."""
    ready, containers = conditions.get("Ready") or {}, conditions.get("ContainersReady") or {}
    gates = (pod.get("spec") or {}).get("readinessGates")
    return ready.get("status") == "False" and containers.get("status") == "True" and not gates


def _fell(pod: JsonObject, container: JsonObject) -> bool:
    """Whether a container runs, was ready in this life, and is not any more."""
    started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
    if container.get("ready") or not container.get("started") or not started:
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    since = next((c.get("lastTransitionTime") for c in conditions if c["type"] == "ContainersReady"), None)
    return bool(since and since > started)


def _was_stopped(container: JsonObject) -> bool:
    """Whether a container is between or after two starts, and ended like one that was told to."""
    last = (container.get("lastState") or {}).get("terminated") or {}
    stopped = last.get("exitCode") in (0, _SIGTERM, _SIGKILL) and last.get("reason") != "OOMKilled"
    return bool(last) and stopped and not container.get("ready")


def _container_problems(pod: JsonObject, said: Sequence[JsonObject]) -> Iterator[Problem]:
    status = pod.get("status") or {}
    runs_first = [("init container", c) for c in status.get("initContainerStatuses") or ()]
    for kind, container in (*runs_first, *(("container", c) for c in status.get("containerStatuses") or ())):
        if container.get("ready"):
            continue
        name = f"{kind} {container['name']}"
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        if reason := _WAITING.get(waiting.get("reason", "")):
            message = waiting.get("message") or waiting["reason"]
            yield Problem(reason, _cut(f"{name}: {message}"))
            continue
        if waiting.get("reason") in _NOT_MADE_YET and (newest := _newest(said)) is not None:
            # Newer words, such as that an image is pulled, say that an earlier failure is over.
            if reason := _SAID.get(newest.get("reason", "")):
                message = _cut(newest.get("message") or newest["reason"])
                yield Problem(reason, f"{message} ({_ONE_NODE})" if "Multi-Attach" in message else message)
            continue
        if _was_stopped(container) and (words := _probe_words(said, "Liveness")):
            yield Problem(Reason.PROBE_FAILING, f"{name} is stopped again and again: {words}")
            continue
        # A container between two starts still has the cause in its last state: told until it is ready, so that the
        # condition does not flap with every restart.
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
        if ended:
            problem = _end_problem(pod, name, container["name"], ended)
            if problem is not None:
                yield problem
                continue
        if waiting.get("reason") == "CrashLoopBackOff":
            yield Problem(Reason.CRASH_LOOP, f"{name} ends again and again, with exit code 0")
        elif _fell(pod, container):
            words = _probe_words(said, "Readiness")
            message = f"{name} runs and is not ready any more"
            yield Problem(Reason.PROBE_FAILING, f"{message}: {words}" if words else message)


def _end_problem(pod: JsonObject, words_for: str, name: str, ended: JsonObject) -> Problem | None:
    code = ended.get("exitCode", 0)
    if ended.get("reason") == "OOMKilled":
        limit = _memory_limit(pod, name)
        most = f"its limit of {limit}" if limit else "there was"
        return Problem(Reason.OUT_OF_MEMORY, f"{words_for} was killed for using more memory than {most}")
    if code == 0:
        # An init container that is through, or a replica that was asked to stop.
        return None
    # Exit codes of other containers mean something else.
    reason = _BY_EXIT_CODE.get(code, Reason.CRASH_LOOP) if name == CONTAINER_RUNTIME else Reason.CRASH_LOOP
    said = (ended.get("message") or "").strip()
    words = _tail(said) if said else f"ended with {ended.get('reason') or 'an error'}, and left no message"
    by = f" (signal {code - 128})" if 128 < code < 160 else ""
    return Problem(reason, f"{words_for} exit code {code}{by}: {words}")


def _memory_limit(pod: JsonObject, name: str) -> str:
    spec = pod.get("spec") or {}
    every = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    of: JsonObject = next((c for c in every if c.get("name") == name), {})
    return str(((of.get("resources") or {}).get("limits") or {}).get("memory") or "")


def _newest(said: Sequence[JsonObject]) -> JsonObject | None:
    """The last word since the pod has a node."""
    later = [event for event in said if event.get("reason") not in ("Scheduled", "FailedScheduling")]
    return max(later, key=_event_time, default=None)


def _event_time(event: JsonObject) -> str:
    """RFC 3339 in UTC, which sorts as text down to the second."""
    series = (event.get("series") or {}).get("lastObservedTime")
    made = event["metadata"].get("creationTimestamp")
    return str(event.get("lastTimestamp") or series or event.get("eventTime") or made or "")[:19]


def _probe_words(said: Sequence[JsonObject], kind: str) -> str:
    """The newest words of a failing probe."""
    failed = [e for e in said if e.get("reason") == "Unhealthy" and str(e.get("message") or "").startswith(kind)]
    newest = _newest(failed)
    return _cut(newest["message"].strip()) if newest else ""


def _tail(text: str) -> str:
    """The end of a log is where the error stands."""
    return text if len(text) <= MESSAGE_LIMIT else "…" + text[-MESSAGE_LIMIT:]


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_LIMIT else text[:MESSAGE_LIMIT] + "…"
