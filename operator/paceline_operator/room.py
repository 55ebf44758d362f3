"""A roll that has no room for both revisions, because every device is taken: old replicas go one by one. Pure.

Nothing is remembered of it: which new replicas had to wait for a place, and for how long, is written on the pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any

from paceline_crds.conditions import Reason
from paceline_crds.quantities import parse_quantity
from paceline_crds.revision import RevisionPool

from .failures import Problem
from .observed import DeploymentView, Observed, PodView

NO_ROOM_SECONDS = 300.0
"""A new node may come meanwhile, and then nothing old has to go early."""


def waits(pod: PodView, now: float) -> float:
    """Seconds for which a replica has waited for a place, or did before it got one; 0 where nothing is known."""
    if not pod.created or (not pod.placed and not _lacks_room(pod)):
        return 0.0
    return (_seconds(pod.placed) if pod.placed else now) - _seconds(pod.created)


def no_room(observed: Observed, pool_hash: str, now: float, patience: float) -> bool:
    """Whether replicas of a new hash had to wait for a place for so long that old ones go first."""
    return any(waits(pod, now) >= patience for pod in _living(observed, pool_hash))


def until_no_room(observed: Observed, pool_hash: str, now: float, patience: float) -> float | None:
    """Seconds until that is so if nothing changes; None where no replica waits for a place."""
    waiting = [waits(pod, now) for pod in _living(observed, pool_hash) if not pod.placed and _lacks_room(pod)]
    return max(patience - max(waiting), 0.0) if waiting else None


def keeps(
    observed: Observed,
    old: RevisionPool,
    new: RevisionPool,
    seen: DeploymentView,
    asked: int,
    now: float,
    patience: float,
) -> int:
    """How many replicas the old hash of a pool keeps while its new one has no room beside it: all, or one less.

    One goes when the place that was given before is taken, every new replica that has a place is ready, and no old one
    is still ending. So a new revision that does not get ready costs one replica and no more.

    Args:
        seen: the Deployment of the old hash.
        asked: replicas of the pool.
    """
    most = min(seen.replicas, asked)
    needs = places(old, new)
    pods = _living(observed, new.hash)
    placed = [pod for pod in pods if pod.placed]
    # Since the first of them had waited for so long, places were given; earlier ones were free.
    begun = min((_seconds(pod.created) + patience for pod in pods if waits(pod, now) >= patience), default=now)
    taken = sum(1 for pod in placed if _seconds(pod.placed) >= begun) * needs
    given = max(asked - seen.replicas, 0)
    holds = (
        not any(_lacks_room(pod) for pod in pods)
        or not all(pod.ready for pod in placed)
        or len(placed) >= most  # the traffic moves, and then all old ones go
        or given >= taken + needs  # it has a place, and the scheduler will say so
        or given + most < taken + needs  # all that is left would not be enough
        or seen.existing > seen.replicas
        or any(pod.terminating for pod in observed.pods_of(old.hash))
    )
    return most if holds else most - 1


def places(old: RevisionPool, new: RevisionPool) -> Fraction:
    """Old replicas that have to go so that one new one fits: by devices, and at least one."""
    before, after = _devices(old), _devices(new)
    return max([Fraction(1), *(after[name] / before[name] for name in after if before.get(name))])


def _devices(pool: RevisionPool) -> Mapping[str, Fraction]:
    found: dict[str, Fraction] = {}
    for container in pool.pod_template["spec"]["containers"]:
        limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
        for name, amount in limits.items():
            if "/" in name:
                found[name] = found.get(name, Fraction(0)) + Fraction(parse_quantity(str(amount)))
    return found


def _living(observed: Observed, pool_hash: str) -> list[PodView]:
    return [pod for pod in observed.pods_of(pool_hash) if not pod.terminating]


def lacks_room(problem: Problem | None) -> bool:
    """Whether the scheduler would place it if others went; not where no node is of the kind that it asks for."""
    return problem is not None and problem.reason is Reason.UNSCHEDULABLE and "Insufficient" in problem.message


def _lacks_room(pod: PodView) -> bool:
    return lacks_room(pod.problem)


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
