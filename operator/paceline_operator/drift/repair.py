"""What puts drift right, one step at a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_operator.actions import ApplyDeployment, Delete, child_name
from paceline_operator.observed import DeploymentView, Observed

from .compare import Drift

INTERVAL_SECONDS = 60.0
"""Between two repairs of one service that cost a replica."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The next step; `waiting` says in words why there is none yet."""

    action: ApplyDeployment | Delete | None = None
    waiting: str = ""

    @property
    def costs(self) -> bool:
        """Whether it replaces a replica: the next such step has to wait."""
        return self.action is not None and not (isinstance(self.action, Delete) and self.action.kind == "config")


def repair(observed: Observed, drift: Drift, now: float, last: float | None) -> Repair:
    """The next step towards what the revisions say, or why it has to wait.

    A ConfigMap is made anew at once: nothing runs differently until a pod starts. A Deployment that was edited is put
    back, which replaces its pods by its own rules (one more before one less). Pods are replaced one by one, and only
    while every other replica of their pool is ready: what is put right must not cost what still works.

    Args:
        now: seconds of any clock.
        last: when the last step was taken that cost a replica; None: not since the operator started.
    """
    subjects = list(dict.fromkeys(item.subject for item in drift.items))
    for subject in subjects:
        kind, _, name = subject.partition("/")
        if kind == "ConfigMap" and (config := observed.config_map(name)) is not None and not config.deleting:
            return Repair(Delete("config", name, config.uid, config.resource_version))
    if not subjects:
        return Repair()
    if last is not None and now - last < INTERVAL_SECONDS:
        return Repair(waiting=f"the next repair is in {INTERVAL_SECONDS - (now - last):.0f} s")
    for subject in subjects:
        kind, _, name = subject.partition("/")
        if kind == "Deployment" and (seen := observed.deployment(name)) is not None:
            return _reapply(observed, seen)
    for subject in subjects:
        if any(item.replace for item in drift.of(subject)):
            return _replace(observed, subject)
    return Repair()


def _reapply(observed: Observed, seen: DeploymentView) -> Repair:
    pool = next((p for r in observed.revisions for p in r.pools if child_name(observed.name, p) == seen.name), None)
    if pool is None:
        return Repair(waiting=f"nothing is recorded of {seen.name}")
    action = ApplyDeployment(seen.name, pool, seen.replicas, seen.replicas, seen.uid, seen.resource_version, force=True)
    return Repair(action)


def _replace(observed: Observed, name: str) -> Repair:
    pod = next((p for p in observed.pods if p.name == name), None)
    if pod is None:
        return Repair()
    others = [p for p in observed.pods_of(pod.hash) if p.name != name and not p.terminating]
    short = [p.name for p in others if not p.ready]
    ending = [p.name for p in observed.pods_of(pod.hash) if p.terminating]
    if short or ending:
        return Repair(waiting=f"{', '.join((short + ending)[:3])} of the same pool have to be ready or gone first")
    return Repair(Delete("pod", name, pod.uid, pod.resource_version))
