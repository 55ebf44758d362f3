"""Asking replicas for the configuration they run with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_crds.names import CONTAINER_RUNTIME, REPLICA_PORT, REPLICA_PORT_NAME
from paceline_kube import JsonObject, Key

from .asking import ask
from .compare import Report

CONFIG_PATH = "/v1/paceline/config"
ASK_TIMEOUT = 3.0
MAX_BODY = 256 * 1024
AT_A_TIME = 64


Containers = tuple[str | tuple[str, int], ...]
"""A pod's address, and the id and starts of each of its containers."""


@dataclass(slots=True)
class _Known:
    """The last answer of a pod. It is sent again only when it changes."""

    etag: str
    report: Report
    containers: Containers
    """The pod's then: one that starts anew is another one."""


class Replicas:
    """Asks pods over HTTP; one instance for the operator's life."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[Key, dict[str, _Known]] = {}
        self._gate = asyncio.Semaphore(AT_A_TIME)

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
        uid, containers = _uid(pod), containers_of(pod)
        last = known.get(uid)
        if last is not None and last.containers == containers and self._clock() - last.report.at < fresh:
            return last.report
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            return Report(None, "it has no address", self._clock())
        try:
            async with self._gate, asyncio.timeout(ASK_TIMEOUT):
                etag, config = await _get(address, port_of(pod), last)
        except (TimeoutError, OSError, ValueError) as exc:
            words = f"it did not answer within {ASK_TIMEOUT:g} s" if isinstance(exc, TimeoutError) else str(exc)
            return Report(None, words or type(exc).__name__, self._clock())
        # Replicas of one service mostly say the same, which is kept once.
        config = next((k.report.config for k in known.values() if k.report.config == config), config) or config
        known[uid] = _Known(etag, Report(config, "", self._clock()), containers)
        return known[uid].report


async def _get(address: str, port: int, last: _Known | None) -> tuple[str, Mapping[str, Any]]:
    headers = {"if-none-match": last.etag} if last is not None and last.etag else {}
    answer = await ask(address, port, CONFIG_PATH, headers, MAX_BODY)
    if answer.status == 304 and last is not None and last.report.config is not None:
        return last.etag, last.report.config
    if answer.status != 200:
        raise ValueError(f"it answered {answer.status}")
    config = json.loads(answer.body)
    if not isinstance(config, dict):
        raise ValueError("its answer is no object")
    return answer.headers.get("etag", ""), config


def _uid(pod: JsonObject) -> str:
    return str(pod["metadata"]["uid"])


def containers_of(pod: JsonObject) -> Containers:
    """Which containers a pod runs; another one where one of them has started anew."""
    status = pod.get("status") or {}
    return (
        str(status.get("podIP") or ""),
        *(
            (str(one.get("containerID") or ""), int(one.get("restartCount") or 0))
            for one in status.get("containerStatuses") or ()
        ),
    )


def port_of(pod: JsonObject) -> int:
    """The port that the pod names for it."""
    for container in pod["spec"].get("containers") or ():
        if container.get("name") != CONTAINER_RUNTIME:
            continue
        for port in container.get("ports") or ():
            if port.get("name") == REPLICA_PORT_NAME:
                return int(port["containerPort"])
    return REPLICA_PORT
