"""Events of pods: equal ones are counted in one object instead of written again and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from paceline_kube import EVENTS, ApiError, KubeClient, KubeError

log = logging.getLogger(__name__)

REMEMBERED = 2000
REPEAT_SECONDS = 5.0
"""A repeated event's count is written at most this often; repetitions between are summed up."""


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds, as the API's `Time`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class _Seen:
    name: str
    count: int
    written: float


class EventRecorder:
    """Writes events from a queue of its own, so that nobody waits for them; a full queue drops, and says so."""

    def __init__(
        self, client: KubeClient, host: str, component: str = "kubelet", clock: Callable[[], float] = time.time
    ) -> None:
        self._client, self._host, self._component, self._clock = client, host, component, clock
        self._seen: OrderedDict[tuple[str, ...], _Seen] = OrderedDict()
        self._queue: asyncio.Queue[tuple[dict[str, Any], tuple[str, ...]]] = asyncio.Queue(maxsize=1000)

    def record(
        self,
        pod: Mapping[str, Any],
        kind: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        container: str | None = None,
        init: bool = False,
    ) -> None:
        """Note an event about `pod`, or about one of its containers."""
        metadata = pod["metadata"]
        involved = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        }
        if container is not None:
            involved["fieldPath"] = f"spec.{'initContainers' if init else 'containers'}{{{container}}}"
        body = {"type": kind, "reason": reason, "message": message[:1000], "involvedObject": involved}
        key = (metadata["uid"], container or "", kind, reason, message)
        try:
            self._queue.put_nowait((body, key))
        except asyncio.QueueFull:
            log.warning("event dropped, too many wait: %s %s", reason, message)

    async def run(self) -> None:
        """Write events until cancelled. A failed write is logged and dropped, as events are best effort."""
        while True:
            body, key = await self._queue.get()
            try:
                await self._write(body, key)
            except KubeError as error:
                log.info("event %s not written: %s", body["reason"], error)
            except Exception:
                # Whatever is wrong with one event is no reason to end the node.
                log.exception("event %s not written", body["reason"])

    async def flush(self, seconds: float = 2.0) -> None:
        """Give waiting events a last chance."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._queue.empty():
                    await asyncio.sleep(0.02)

    async def _write(self, body: dict[str, Any], key: tuple[str, ...]) -> None:
        now = self._clock()
        seen = self._seen.get(key)
        namespace = body["involvedObject"]["namespace"]
        if seen is not None:
            seen.count += 1
            if now - seen.written < REPEAT_SECONDS:
                return
            seen.written = now
            change = {"count": seen.count, "lastTimestamp": timestamp(now)}
            try:
                await self._client.patch(EVENTS, seen.name, change, namespace)
                return
            except ApiError as error:
                if error.status != 404:
                    raise
        name = f"{body['involvedObject']['name']}.{int(now * 1e9):x}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "count": 1,
            "firstTimestamp": timestamp(now),
            "lastTimestamp": timestamp(now),
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            **body,
        }
        await self._client.create(EVENTS, event, namespace)
        self._seen[key] = _Seen(name, 1, now)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
