"""Events about pods that do not serve and whose status does not say why.

Events are not watched: there are far too many of them, and nearly all concern pods that say it themselves. Only a pod
that has been in doubt for a while is asked about, and not often.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline_kube import EVENTS, JsonObject, Key, KubeClient, KubeError

from .failures import in_doubt

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""A container takes a moment to be made, and a volume may be mounted at the second attempt."""

AGAIN_SECONDS = 15.0

MOST_PODS = 3
"""Asked about in one pass: replicas of one service that wait mostly wait for the same thing."""


@dataclass(slots=True)
class _Doubt:
    since: float
    asked: float | None = None
    said: Sequence[JsonObject] = ()


class PodEvents:
    """What was said of pods, by service."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        """`clock` gives seconds; it only has to move forward."""
        self._client = client
        self._clock = clock
        self._doubts: dict[Key, dict[str, _Doubt]] = {}

    def said(self, service: Key, uid: str) -> Sequence[JsonObject]:
        """The Events of a pod as they were when asked for last; empty where nobody had to ask."""
        doubt = self._doubts.get(service, {}).get(uid)
        return doubt.said if doubt is not None else ()

    def forget(self, service: Key) -> None:
        """The service is gone."""
        self._doubts.pop(service, None)

    async def ask(self, service: Key, pods: Iterable[JsonObject]) -> float | None:
        """Ask about the pods of a service that are in doubt, where it is time.

        Returns:
            Seconds until the next question is due; None: nothing is in doubt.
        """
        known = self._doubts.pop(service, {})
        now = self._clock()
        doubts: dict[str, _Doubt] = {}
        for pod in pods:
            if in_doubt(pod):
                uid = str(pod["metadata"]["uid"])
                doubts[uid] = known.get(uid) or _Doubt(now)
        if not doubts:
            return None
        self._doubts[service] = doubts
        due = sorted((uid for uid, d in doubts.items() if _due(d) <= now), key=lambda uid: _due(doubts[uid]))
        for uid in due[:MOST_PODS]:
            doubts[uid].asked = now
            try:
                listed = await self._client.list(EVENTS, service[0], field_selector=f"involvedObject.uid={uid}")
                doubts[uid].said = listed.items
            except KubeError as exc:
                log.info("%s/%s: events of a pod cannot be read: %s", *service, exc)
        return max(min(map(_due, doubts.values())) - now, 1.0)


def _due(doubt: _Doubt) -> float:
    return doubt.since + PATIENCE_SECONDS if doubt.asked is None else doubt.asked + AGAIN_SECONDS
