"""Who else scales what we scale: HorizontalPodAutoscalers of others, those that KEDA makes among them (C104).

Two that write one number take turns in undoing each other. Where another one scales a pool's Deployment, Paceline
leaves that count to it and says so; one that scales the InferenceService writes a field that nothing uses while the
count follows load, which is told as an Event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from paceline_crds.names import GROUP
from paceline_kube import ApiError, JsonObject, Key, KubeClient, KubeError, Resource

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 30.0
HPAS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
FORBIDDEN = 403


def by_target(hpas: Iterable[JsonObject]) -> dict[tuple[str, str, str], str]:
    """Names of the HPAs by what each scales: namespace, kind and name; of Deployments and InferenceServices alone."""
    found = {}
    for hpa in hpas:
        target = (hpa.get("spec") or {}).get("scaleTargetRef") or {}
        kind, group = target.get("kind"), str(target.get("apiVersion") or "").partition("/")[0]
        if (kind, group) in (("Deployment", "apps"), ("InferenceService", GROUP)):
            found[hpa["metadata"]["namespace"], str(kind), str(target.get("name"))] = str(hpa["metadata"]["name"])
    return found


@dataclass(slots=True)
class Rivals:
    """Looks for them now and then. Where that is not allowed none is known, which is said once."""

    client: KubeClient
    namespaces: Callable[[], Iterable[str]]
    """Of services that follow load."""
    interval: float = INTERVAL_SECONDS
    _found: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    _refused: bool = False

    async def look(self) -> None:
        """Once."""
        wanted = sorted(set(self.namespaces()))
        if not wanted:
            self._found = {}
            return
        try:
            hpas = await self._list(wanted)
        except KubeError as exc:
            if not self._refused:
                log.warning("whether an HPA of somebody else scales a pool too is not known: %s", exc)
            self._refused = True
            return
        self._refused = False
        self._found = by_target(hpas)

    async def _list(self, namespaces: Iterable[str]) -> list[JsonObject]:
        """All at once, or by namespace where the operator may see no more than its own."""
        try:
            return list((await self.client.list(HPAS)).items)
        except ApiError as exc:
            if exc.status != FORBIDDEN:
                raise
        return [hpa for namespace in namespaces for hpa in (await self.client.list(HPAS, namespace)).items]

    def of_deployment(self, namespace: str, name: str) -> str | None:
        """The HPA that scales a Deployment."""
        return self._found.get((namespace, "Deployment", name))

    def of_service(self, key: Key) -> str | None:
        """The HPA that scales an InferenceService."""
        return self._found.get((key[0], "InferenceService", key[1]))
