"""What routers hold, by the pool that is to take it, and in which order what is at zero wakes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_autoscaler.samples import Absent, Sample, exactly
from paceline_crds.revision import RevisionPool
from paceline_kube import Key

from .fleet import Standing


@dataclass(frozen=True, slots=True)
class Pages:
    """What routers said of themselves at a moment.

    Attributes:
        count: routers that should have.
        pages: the bodies of `GET /v1/paceline/status` of those that did.
        at: seconds since the epoch.
    """

    count: int
    pages: Sequence[Mapping[str, Any]]
    at: float

    def held(self, key: Key, pool: str | None = None) -> Sample | None:
        """Requests that routers hold for a service, or for one pool of it; None where there is no router that could."""
        if not self.count:
            return None
        found = []
        for page in self.pages:
            try:
                service = page["services"]["/".join(key)]
                found.append(int(service["held"] if pool is None else service["heldByPool"].get(pool, 0)))
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
        if len(found) < self.count:
            return Absent(f"{len(found)} of {self.count} routers say what they hold")
        return exactly(float(sum(found)), self.at)

    def waited(self, key: Key) -> float:
        """Seconds for which the first of a service's requests has waited, as far as routers say."""
        found = [0.0]
        for page in self.pages:
            try:
                found.append(float(page["services"]["/".join(key)]["oldestWaitSeconds"]))
            except (KeyError, TypeError, ValueError):
                continue
        return max(found)


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A service at zero for which routers hold requests.

    Attributes:
        waited: seconds for which the first of them has.
        device: what its replicas need one of, such as nvidia.com/gpu; None: a CPU.
    """

    key: Key
    waited: float
    device: str | None


def to_wake(sleepers: Iterable[Sleeper], taken: Collection[str]) -> list[Key]:
    """Whose turn it is: of those that need the same device one at a time, whoever has waited longest.

    Args:
        taken: devices for which a service that was woken before still has no place. Whoever wakes now would only
            compete for the next free one with who is in front.
    """
    turn: list[Key] = []
    spoken_for = set(taken)
    for one in sorted(sleepers, key=lambda one: (-one.waited, one.key)):
        if one.device is None:
            turn.append(one.key)
        elif one.device not in spoken_for:
            spoken_for.add(one.device)
            turn.append(one.key)
    return turn


def may_rest(others: Iterable[tuple[int, float | None]], idle_after: float | None, now: float) -> bool:
    """Whether a pool may go to none, or stay there, for the other pools of its service.

    Routers send a request whose pool has no replica to another pool that has one, so that nobody would wake it: they
    rest together or not at all.

    Args:
        others: replicas that were decided for each of them, and since when the last one has had nothing to do.
        idle_after: seconds of idleness after which the last replica goes.
    """
    return all(
        count == 0 or (count == 1 and since is not None and idle_after is not None and now - since >= idle_after)
        for count, since in others
    )


def device_of(pool: RevisionPool) -> str | None:
    """The extended resource that a replica of a pool needs; None where it runs on the CPU."""
    for container in (pool.pod_template.get("spec") or {}).get("containers") or ():
        for name in (container.get("resources") or {}).get("limits") or ():
            if "/" in name:
                return str(name)
    return None


def has_no_place(where: Standing) -> bool:
    """Whether a pool that has just been woken still waits for a node. One whose pods are refused waits for nothing."""
    deployment = where.deployment
    refused = deployment is not None and deployment.problem is not None and not where.pods
    return not refused and not any(pod.placed or pod.ready for pod in where.pods)
