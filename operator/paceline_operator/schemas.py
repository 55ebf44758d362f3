"""Whether the CRDs of the cluster are those of this operator.

An API server drops fields that its schema lacks without a word: a limit that a user writes is no limit then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from paceline_crds.crd import inference_revision_crd, inference_service_crd
from paceline_kube import JsonObject, KubeError

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 3600.0
OUTDATED_SECONDS = 60.0
"""Between two looks while something is missing: somebody is about to mend it."""

NAMED = 5


def missing(ours: Mapping[str, Any], served: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Fields of one schema that another lacks, the outermost of each branch."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    there = served.get("properties") or {}
    for name, schema in (ours.get("properties") or {}).items():
        here = f"{path}.{name}" if path else name
        if name not in there:
            yield here
        else:
            yield from missing(schema, there[name], here)
    for part, mark in (("items", "[]"), ("additionalProperties", "{}")):
        inner, other = ours.get(part), served.get(part)
        if isinstance(inner, Mapping) and isinstance(other, Mapping):
            yield from missing(inner, other, path + mark)


def lacks(ours: JsonObject, served: JsonObject) -> tuple[str, ...]:
    """What a CRD of the cluster lacks of ours, as `InferenceService spec.x`; also a subresource, as `… /status`."""
    kind, version = ours["spec"]["names"]["kind"], ours["spec"]["versions"][0]
    there = next((v for v in served["spec"]["versions"] if v["name"] == version["name"]), None)
    if there is None:
        return (f"{kind} version {version['name']}",)
    schemas = [(v.get("schema") or {}).get("openAPIV3Schema") or {} for v in (version, there)]
    found = list(missing(schemas[0], schemas[1]))
    found += [f"/{name}" for name in version.get("subresources") or {} if name not in (there.get("subresources") or {})]
    return tuple(f"{kind} {field}" for field in found)


def words(found: tuple[str, ...]) -> str:
    """What to tell people."""
    named = ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    return (
        f"the CRDs of this cluster are older than the operator and lack {named}: what is written there is dropped "
        "without a word; bring them up with `paceline crds | kubectl apply --server-side -f -`, or with the chart "
        "(crds.install: true)"
    )


class SchemaKeeper:
    """Looks at the cluster's CRDs at the start and now and then."""

    def __init__(
        self,
        *,
        crd: Callable[[str], Awaitable[JsonObject]],
        changed: Callable[[], None],
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            crd: the CRD of a name.
            changed: told when other fields are missing than before.
            active: whether this process is the one that looks.
        """
        self._crd = crd
        self._changed = changed
        self._active = active
        self.lacks: tuple[str, ...] | None = None
        """Fields that are missing; None: not known yet."""

    async def run(self) -> None:
        """For ever."""
        while True:
            if not self._active():
                await asyncio.sleep(1.0)
                continue
            await self.look()
            await asyncio.sleep(INTERVAL_SECONDS if self.lacks == () else OUTDATED_SECONDS)

    async def look(self) -> None:
        """Look now. What cannot be read leaves things as they were known."""
        found: list[str] = []
        try:
            for ours in (inference_service_crd(), inference_revision_crd()):
                found += lacks(ours, await self._crd(ours["metadata"]["name"]))
        except KubeError as exc:
            log.info("the CRDs cannot be compared with what this operator knows: %s", exc)
            return
        before, self.lacks = self.lacks, tuple(found)
        if self.lacks and self.lacks != before:
            log.warning("%s", words(self.lacks))
        if self.lacks != (before or ()):
            self._changed()
