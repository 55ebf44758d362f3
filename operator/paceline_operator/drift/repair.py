"""What puts drift right, one step at a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline_operator.actions import ApplyDeployment, Delete, child_name
from paceline_operator.observed import DeploymentView, Observed

from .compare import Drift

INTERVAL_SECONDS = 60.0
"""Between two repairs of one service that cost a replica."""

MOST_SECONDS = 3600.0
"""Between two repairs of what comes back each time."""

TOLD_AFTER = 2
"""Times that a difference came back: once may be somebody who tried twice."""


@dataclass(frozen=True, slots=True)
class Last:
    """The last step that cost a replica.

    Attributes:
        at: seconds of the clock that `repair` is given.
        found: what differed, as (field, actual value).
        known: uids of the pods that there were when this difference was first put right.
        returns: how often it came back since, on a pod that was made anew or on the same Deployment.
    """

    at: float
    found: frozenset[tuple[str, str]] = frozenset()
    known: frozenset[str] = frozenset()
    returns: int = 0

    @property
    def interval(self) -> float:
        """Seconds until the next step: what admission or another controller sets each time is no use to fight."""
        return float(min(INTERVAL_SECONDS * 2**self.returns, MOST_SECONDS))

    @property
    def futile(self) -> str:
        """What to tell people of a difference that comes back each time; empty where it does not."""
        if self.returns < TOLD_AFTER:
            return ""
        named = "; ".join(f"{field} is {actual}" for field, actual in sorted(self.found)[:3])
        return (
            f"what was put right came back {self.returns} times ({named}): something else sets it, an admission "
            f"webhook, say, or another controller; the next try is in {self.interval / 60:.0f} min"
        )


@dataclass(frozen=True, slots=True)
class Repair:
    """The next step; `waiting` says in words why there is none yet, `subject` what it is about."""

    action: ApplyDeployment | Delete | None = None
    waiting: str = ""
    subject: str = ""

    @property
    def costs(self) -> bool:
        """Whether it replaces a replica: the next such step has to wait."""
        return self.action is not None and not (isinstance(self.action, Delete) and self.action.kind == "config")


def repair(observed: Observed, drift: Drift, now: float, last: Last | None) -> Repair:
    """The next step towards what the revisions say, or why it has to wait.

    A ConfigMap is made anew at once: nothing runs differently until a pod starts. A Deployment that was edited is put
    back, which replaces its pods by its own rules (one more before one less). Pods are replaced one by one, and only
    while every other replica of their pool is ready: what is put right must not cost what still works.

    Args:
        now: seconds of any clock.
        last: the last step that cost a replica; None: there was none since the operator started.
    """
    subjects = list(dict.fromkeys(item.subject for item in drift.items))
    for subject in subjects:
        kind, _, name = subject.partition("/")
        if kind == "ConfigMap" and (config := observed.config_map(name)) is not None and not config.deleting:
            return Repair(Delete("config", name, config.uid, config.resource_version))
    if not subjects:
        return Repair()
    if last is not None and now - last.at < last.interval:
        return Repair(waiting=f"the next repair is in {last.interval - (now - last.at):.0f} s")
    for subject in subjects:
        kind, _, name = subject.partition("/")
        if kind == "Deployment" and (seen := observed.deployment(name)) is not None:
            return replace(_reapply(observed, seen), subject=subject)
    for subject in subjects:
        if any(item.replace for item in drift.of(subject)):
            return replace(_replace(observed, subject), subject=subject)
    return Repair()


def after(step: Repair, observed: Observed, drift: Drift, now: float, last: Last | None) -> Last:
    """What to remember of a step that cost a replica, for the next one.

    Several replicas that differ alike are put right one after the other; that is no return. One that was made since
    the first of them, and differs again, is.
    """
    found = frozenset((item.field, item.actual) for item in drift.of(step.subject))
    if last is None or last.found != found:
        return Last(now, found, frozenset(pod.uid for pod in observed.pods))
    again = not isinstance(step.action, Delete) or step.action.uid not in last.known
    return replace(last, at=now, returns=min(last.returns + again, 16))


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
