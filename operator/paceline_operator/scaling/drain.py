"""Which replica goes, and when the count may fall. Pure.

A replica that is to go is marked: routers send it nothing new, and the ReplicaSet controller deletes it before any
other that is ready. Its order is: without a node, pending, not ready, lowest `pod-deletion-cost`, youngest. So replicas
that are not ready go first, whatever is marked; they serve nobody and need no drain. The count falls once a marked
replica has nothing left, and by no more than those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from paceline_crds.names import ANNOTATION_DRAINING
from paceline_kube import JsonObject
from paceline_operator.observed import PodView

ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
DELETION_COST = "-1000"
"""Below that of every replica that is not marked, which is 0. With it a mark is known as one of scaling's."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is due now.

    Attributes:
        begin, cancel: replicas to mark, and those whose mark goes.
        count: replicas to ask for.
    """

    begin: tuple[PodView, ...]
    cancel: tuple[PodView, ...]
    count: int


def marked(pod: JsonObject) -> float | None:
    """Since when a pod drains by a mark of scaling's, in seconds since the epoch; None where it does not."""
    annotations = pod["metadata"].get("annotations") or {}
    stamp = annotations.get(ANNOTATION_DRAINING)
    if not stamp or annotations.get(ANNOTATION_DELETION_COST) != DELETION_COST:
        return None
    try:
        since = datetime.fromisoformat(stamp)
    except ValueError:
        return 0.0  # whoever wrote that: it has waited long enough
    return (since if since.tzinfo else since.replace(tzinfo=UTC)).timestamp()


def mark(now: float | None) -> dict[str, str | None]:
    """The annotations that mark a replica, or take its mark away."""
    if now is None:
        return {ANNOTATION_DRAINING: None, ANNOTATION_DELETION_COST: None}
    stamp = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {ANNOTATION_DRAINING: stamp, ANNOTATION_DELETION_COST: DELETION_COST}


def step(
    target: int,
    pods: Sequence[PodView],
    draining: Mapping[str, float],
    empty: Collection[str],
    busyness: Callable[[str], float | None],
    now: float,
    longest: float,
) -> Step:
    """What is due for a pool that should have `target` replicas.

    Args:
        pods: of its Deployment, neither over nor ending.
        draining: since when those drain that do, by uid.
        empty: uids of those of them that have nothing left.
        busyness: requests that a replica has; None where that is not known.
        longest: seconds after which a replica has drained for long enough, whatever it still has.
    """
    going = sorted((pod for pod in pods if pod.uid in draining), key=lambda pod: (draining[pod.uid], pod.name))
    ready = [pod for pod in pods if pod.ready and pod.uid not in draining]
    surplus = max(0, len(ready) + len(going) - target)

    def least_to_lose(pod: PodView) -> tuple[bool, float, bool, list[int], str]:
        requests = busyness(pod.uid)
        # Of equal ones the youngest: it has the fewest prompts in its cache.
        youngest = [-ord(letter) for letter in pod.ready_since]
        return requests is None, requests or 0.0, not pod.ready_since, youngest, pod.name

    kept, over = going[:surplus], going[surplus:]
    begin = sorted(ready, key=least_to_lose)[: surplus - len(kept)]
    gone = sum(1 for pod in kept if pod.uid in empty or now - draining[pod.uid] >= longest)
    return Step(tuple(begin), tuple(over), target + surplus - gone)


def said_empty(load: Mapping[str, Any]) -> bool:
    """Whether a replica's `/v1/paceline/load` says that nothing runs or waits."""
    return load.get("running") == 0 and load.get("waiting") == 0


def routers_left(uid: str, count: int, pages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every router sends a replica nothing new and waits for nothing from it.

    Args:
        count: routers that should say so.
        pages: the bodies of `GET /v1/paceline/routes` of those that answered.
    """
    for page in pages:
        services = page.get("services")
        if not page.get("synced") or not isinstance(services, Mapping):
            return False
        for service in services.values():
            for replica in service.get("replicas") or ():
                if replica.get("uid") == uid and not (replica.get("draining") is True and replica.get("inFlight") == 0):
                    return False
    return len(pages) >= count
