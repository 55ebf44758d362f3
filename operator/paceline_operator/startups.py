"""How long replicas take from a place on a node until they are ready; kept in the status of their revision.

Nothing hangs on it for safety: it is shown by `paceline history`, and a revision to come gets a start-up probe that is
long enough for what was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from paceline_kube import Key

from .measured import status_of
from .observed import Observed, Ownership, PodView, Range, RevisionView

MARGIN = 3
"""A slow day may be so many times slower than the slowest start that was seen."""

MOST_SECONDS = 4 * 3600
"""A replica that hangs is given up at last."""


class StartUps:
    """Sees replicas of every service get ready, each once.

    Kubernetes keeps only the last time that a pod became ready. So a replica counts when it is seen ready for the first
    time and has not been started anew; those that were ready before the first look at a service do not.
    """

    def __init__(self) -> None:
        self._ready: dict[Key, set[str]] = {}

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._ready.pop(key, None)

    def see(self, key: Key, pods: Iterable[PodView]) -> dict[str, Range]:
        """Starts that came to an end since the last look, by pool hash."""
        ready = {pod.uid: pod for pod in pods if pod.ready}
        before = self._ready.get(key)
        self._ready[key] = set(ready)
        if before is None:
            return {}
        found: dict[str, Range] = {}
        for uid in ready.keys() - before:
            if (seconds := seconds_of(ready[uid])) is not None:
                one = Range(seconds, seconds)
                found[ready[uid].hash] = _wider(found.get(ready[uid].hash), one)
        return found


def seconds_of(pod: PodView) -> int | None:
    """From its place on a node until ready, whole seconds as Kubernetes counts them; None where that is not known."""
    if not pod.placed or not pod.ready_since or pod.restarts:
        return None
    try:
        took = datetime.fromisoformat(pod.ready_since) - datetime.fromisoformat(pod.placed)
    except ValueError:
        return None
    return max(0, round(took.total_seconds()))


def recorded(observed: Observed, samples: Mapping[str, Range]) -> dict[str, dict[str, Any]]:
    """The statuses to write, by name of the revision: only where a start was faster or slower than all before.

    A pool hash may belong to several revisions: each of them says it.
    """
    found = {}
    for view in observed.revisions:
        if view.owner is not Ownership.OURS:
            continue
        known = {pool.hash: view.start_ups.get(pool.hash) for pool in view.pools}
        now = {h: _wider(before, samples[h]) if h in samples else before for h, before in known.items()}
        if now != known:
            ranges = {h: took for h, took in now.items() if took is not None}
            found[view.name] = status_of(replace(view, start_ups=ranges))
    return found


def budgets(revisions: Iterable[RevisionView], default: int) -> dict[str, int]:
    """Seconds that the next revision's replicas may take to start, by pool; only where the default is too short."""
    slowest: dict[str, int] = {}
    for view in revisions:
        for pool in view.pools:
            if (took := view.start_ups.get(pool.hash)) is not None:
                slowest[pool.name] = max(slowest.get(pool.name, 0), took.slowest)
    wanted = {pool: min(MARGIN * seconds, MOST_SECONDS) for pool, seconds in slowest.items()}
    return {pool: seconds for pool, seconds in wanted.items() if seconds > default}


def _wider(one: Range | None, other: Range) -> Range:
    return other if one is None else Range(min(one.fastest, other.fastest), max(one.slowest, other.slowest))
