"""Asking replicas for the configuration they run with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from paceline_crds.names import CONTAINER_RUNTIME, REPLICA_PORT, REPLICA_PORT_NAME
from paceline_kube import JsonObject, Key

from .compare import Report

CONFIG_PATH = "/v1/paceline/config"
ASK_TIMEOUT = 3.0
MAX_BODY = 256 * 1024
AT_A_TIME = 64


@dataclass(slots=True)
class _Known:
    """The last answer of a pod. It is sent again only when it changes."""

    etag: str
    report: Report
    version: str
    """The pod's resourceVersion then: a container that starts anew changes it."""


class Replicas:
    """Asks pods over HTTP; one instance for the operator's life. `close` it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[Key, dict[str, _Known]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._gate = asyncio.Semaphore(AT_A_TIME)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def forget(self, owner: Key) -> None:
        """The service is gone."""
        self._known.pop(owner, None)

    async def ask(self, owner: Key, pods: Iterable[JsonObject], fresh: float = 0.0) -> dict[str, Report]:
        """The report of each pod of a service, by uid. A pod that cannot be asked says why.

        Args:
            owner: the service; of its other pods nothing is kept.
            fresh: seconds; a report as young as that still counts where the pod has not changed since.
        """
        asked = list(pods)
        known = self._known.get(owner, {})
        self._known[owner] = {uid: known[uid] for pod in asked if (uid := _uid(pod)) in known}
        reports = await asyncio.gather(*(self._ask(self._known[owner], pod, fresh) for pod in asked))
        return {_uid(pod): report for pod, report in zip(asked, reports, strict=True)}

    async def _ask(self, known: dict[str, _Known], pod: JsonObject, fresh: float) -> Report:
        uid, version = _uid(pod), str(pod["metadata"].get("resourceVersion") or "")
        last = known.get(uid)
        if last is not None and last.version == version and self._clock() - last.report.at < fresh:
            return last.report
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            return Report(None, "it has no address", self._clock())
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._gate:
                etag, config = await self._get(f"http://{host}:{port_of(pod)}{CONFIG_PATH}", last)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            words = f"it did not answer within {ASK_TIMEOUT:g} s" if isinstance(exc, TimeoutError) else str(exc)
            return Report(None, words or type(exc).__name__, self._clock())
        # Replicas of one service mostly say the same, which is kept once.
        config = next((k.report.config for k in known.values() if k.report.config == config), config) or config
        known[uid] = _Known(etag, Report(config, "", self._clock()), version)
        return known[uid].report

    async def _get(self, url: str, last: _Known | None) -> tuple[str, Mapping[str, Any]]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT)
            # A proxy from the environment is not between the operator and the pods.
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        headers = {"if-none-match": last.etag} if last is not None and last.etag else {}
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status == 304 and last is not None and last.report.config is not None:
                return last.etag, last.report.config
            if response.status != 200:
                raise ValueError(f"it answered {response.status}")
            body = await response.content.read(MAX_BODY + 1)
            if len(body) > MAX_BODY:
                raise ValueError(f"its answer is longer than {MAX_BODY} bytes")
            config = json.loads(body)
            if not isinstance(config, dict):
                raise ValueError("its answer is no object")
            return response.headers.get("etag", ""), config


def _uid(pod: JsonObject) -> str:
    return str(pod["metadata"]["uid"])


def port_of(pod: JsonObject) -> int:
    """The port that the pod names for it."""
    for container in pod["spec"].get("containers") or ():
        if container.get("name") != CONTAINER_RUNTIME:
            continue
        for port in container.get("ports") or ():
            if port.get("name") == REPLICA_PORT_NAME:
                return int(port["containerPort"])
    return REPLICA_PORT
