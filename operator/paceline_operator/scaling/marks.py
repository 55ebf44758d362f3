"""The marks of replicas that drain: read from the caches, written to the API server, and whether a replica is empty."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_crds.names import FIELD_MANAGER_OPERATOR
from paceline_kube import PODS, JsonObject, KubeClient, KubeError
from paceline_operator.drift.asking import ask
from paceline_operator.drift.replicas import port_of
from paceline_operator.routers import ROUTES_PATH

from .direct import ASK_TIMEOUT
from .drain import mark, marked, routers_left, said_empty

log = logging.getLogger(__name__)

LOAD_PATH = "/v1/paceline/load"
MAX_BODY = 16 * 1024
UNSEEN_SECONDS = 30.0
"""After which a mark of ours that no cache shows was undone by somebody."""

Routers = Callable[[str], Awaitable[tuple[int, list[Mapping[str, Any]]]]]
"""How many routers should answer at a path of their admin port, and what those say that do."""


@dataclass(slots=True)
class Marks:
    """Reads and writes marks. What was written counts until the caches show it."""

    client: KubeClient
    routers: Routers
    clock: Callable[[], float]
    _written: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """By uid, when, and since when the replica drains by it."""

    def of(self, pods: Iterable[JsonObject]) -> dict[str, float]:
        """Since when pods drain, by uid; of those that do."""
        found = {}
        for pod in pods:
            uid, since = str(pod["metadata"]["uid"]), marked(pod)
            wrote = self._written.get(uid)
            if wrote is not None:
                if (since is None) == (wrote[1] is None) or self.clock() - wrote[0] > UNSEEN_SECONDS:
                    del self._written[uid]
                else:
                    since = wrote[1]
            if since is not None:
                found[uid] = since
        return found

    async def write(self, pod: JsonObject, begin: bool) -> None:
        """Mark a pod, or take its mark away. What cannot be written is tried again at the next look."""
        metadata, now = pod["metadata"], float(int(self.clock()))
        body = {"metadata": {"uid": metadata["uid"], "annotations": mark(now if begin else None)}}
        where = f"{metadata['namespace']}/{metadata['name']}"
        try:
            await self.client.patch(
                PODS, metadata["name"], body, metadata["namespace"], field_manager=FIELD_MANAGER_OPERATOR
            )
        except KubeError as exc:
            log.warning("replica %s: its mark is not written: %s", where, exc)
            return
        log.info("replica %s %s", where, "drains" if begin else "takes requests again")
        self._written[str(metadata["uid"])] = now, now if begin else None

    async def empty(self, pods: Iterable[JsonObject]) -> set[str]:
        """Of pods that drain, the uids of those that have nothing left, by their own word and by every router's."""
        asked = list(pods)
        count, pages = await self.routers(ROUTES_PATH)
        said = await asyncio.gather(*(_says_empty(pod) for pod in asked))
        uids = [str(pod["metadata"]["uid"]) for pod in asked]
        return {uid for uid, empty in zip(uids, said, strict=True) if empty and routers_left(uid, count, pages)}


async def _says_empty(pod: JsonObject) -> bool:
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return False
    try:
        async with asyncio.timeout(ASK_TIMEOUT):
            answer = await ask(address, port_of(pod), LOAD_PATH, {}, MAX_BODY)
        load = json.loads(answer.body) if answer.status == 200 else None
    except (TimeoutError, OSError, ValueError):
        return False
    return isinstance(load, Mapping) and said_empty(load)
