"""ConfigMaps of the user that pods take environment variables from: when their content was last written.

A container reads its environment once, when it starts. Secrets are left out: the operator may not read them, and a
right to see when one was written is a right to read it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from paceline_kube import JsonObject, Key, KubeError

INTERVAL_SECONDS = 600.0
"""Between two looks at a ConfigMap: it is nobody's child, so nothing tells of a change."""


def config_maps_of(template: Mapping[str, Any]) -> frozenset[str]:
    """Names of the ConfigMaps in a pod template that environment variables come from."""
    names = set()
    for container in template["spec"]["containers"]:
        for variable in container.get("env") or ():
            reference = (variable.get("valueFrom") or {}).get("configMapKeyRef") or {}
            if reference.get("name"):
                names.add(str(reference["name"]))
    return frozenset(names)


def written_at(obj: JsonObject) -> str:
    """When a ConfigMap's data was last written, by the record of its writers: RFC 3339 in UTC; empty: not known.

    A writer's time is that of its last change of anything it owns: where it also changed a label, that counts.
    """
    metadata = obj["metadata"]
    times = [
        str(entry.get("time") or "")
        for entry in metadata.get("managedFields") or ()
        if {"f:data", "f:binaryData"} & (entry.get("fieldsV1") or {}).keys()
    ]
    return max([*times, str(metadata.get("creationTimestamp") or "")])


class Contents:
    """Looks at ConfigMaps, each of them seldom."""

    def __init__(
        self,
        get: Callable[[str, str], Awaitable[JsonObject]],
        clock: Callable[[], float],
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """
        Args:
            get: (namespace, name) → the ConfigMap, with the record of its writers.
            clock: monotonic seconds.
        """
        self._get = get
        self._clock = clock
        self._interval = interval
        self._known: dict[Key, dict[str, tuple[float, str]]] = {}

    def forget(self, owner: Key) -> None:
        """The service is gone."""
        self._known.pop(owner, None)

    async def ask(self, owner: Key, names: Iterable[str]) -> Mapping[str, str]:
        """When each ConfigMap of a service was last written; one that cannot be read is not known, and left out."""
        wanted = set(names)
        if not wanted:
            self.forget(owner)
            return {}
        known = {name: found for name, found in self._known.get(owner, {}).items() if name in wanted}
        self._known[owner] = known
        for name in sorted(wanted):
            if name in known and self._clock() - known[name][0] < self._interval:
                continue
            try:
                at = written_at(await self._get(owner[0], name))
            except KubeError:
                at = known[name][1] if name in known else ""
            known[name] = self._clock(), at
        return {name: at for name, (_, at) in known.items() if at}
