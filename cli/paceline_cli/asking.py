"""Asking replicas for the configuration they run with, from outside the cluster."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

from paceline_kube import AioKubeClient, ApiError, Forbidden, JsonObject, KubeError
from paceline_local.progress import StreamProgress, Waiting
from paceline_operator.drift.compare import Report
from paceline_operator.drift.replicas import ASK_TIMEOUT, CONFIG_PATH, Replicas, port_of

AT_A_TIME = 32


async def ask(client: AioKubeClient, pods: Iterable[JsonObject]) -> dict[str, Report]:
    """What each pod says of itself, by uid; a pod that cannot be asked says why.

    The way is the API server's pod proxy, which needs no route to the pods. It refuses loopback addresses, as the local
    mode has them: such pods are asked directly, and only where the API server is on this machine too.
    """
    gate = asyncio.Semaphore(AT_A_TIME)
    asked = list(pods)
    direct = Replicas(time.monotonic)

    tell, began, answered = Waiting(StreamProgress()), time.monotonic(), 0

    async def one(pod: JsonObject) -> Report:
        nonlocal answered
        async with gate:
            report = await _one(client, pod, direct)
        answered += 1
        tell(time.monotonic() - began, f"asked {answered} of {len(asked)} replicas")
        return report

    reports = await asyncio.gather(*(one(pod) for pod in asked))
    return {pod["metadata"]["uid"]: report for pod, report in zip(asked, reports, strict=True)}


async def _one(client: AioKubeClient, pod: JsonObject, direct: Replicas) -> Report:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:{port_of(pod)}/proxy{CONFIG_PATH}"
    try:
        return Report(await client.request("GET", path, timeout=ASK_TIMEOUT))
    except KubeError as exc:
        if on_this_machine(client.server, (pod.get("status") or {}).get("podIP")):
            return (await direct.ask((metadata["namespace"], metadata["name"]), [pod]))[metadata["uid"]]
        return Report(None, why(exc))


def on_this_machine(server: str, address: str | None) -> bool:
    """Whether a pod's address is reached from here: that of the local mode, where the API server is here as well."""
    return _loopback(address or "") and _loopback(urlsplit(server).hostname or "")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def why(error: KubeError) -> str:
    """Why a replica could not be asked, in words."""
    if isinstance(error, Forbidden) and error.reason == "Forbidden":
        return "you may not use the pod proxy here (get on pods/proxy)"
    if isinstance(error, ApiError):
        return f"it answered {error.status}" + (f": {error.message}" if error.message else "")
    return str(error)
