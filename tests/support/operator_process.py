"""Operator processes for tests, under the chart's RBAC and a service account."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

from paceline_local.cluster import Cluster

ROOT = Path(__file__).parents[2]


@dataclass
class Process:
    """One operator process and what it says of itself."""

    name: str
    popen: subprocess.Popen[bytes]
    health_url: str
    metrics_url: str
    log: Path

    async def health(self) -> dict[str, Any]:
        """The probe's answer; empty while there is none."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self.health_url) as response:
                return (await response.json())["operator"] if response.status == 200 else {}
        except aiohttp.ClientError:
            return {}

    async def leads(self) -> bool:
        return bool((await self.health()).get("leading"))

    async def metric(self, line: str) -> float:
        async with aiohttp.ClientSession() as session, session.get(self.metrics_url) as response:
            text = await response.text()
        return next(float(words.split()[-1]) for words in text.splitlines() if words.startswith(line + " "))

    def hold(self) -> None:
        """Stop it where it is, as a machine that hangs does."""
        self.popen.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(10)

    async def terminate(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.popen.wait, 60)


def rights(cluster: Cluster, namespace: str) -> None:
    """The chart's RBAC for an operator in `namespace`, under names of its own."""
    cluster.apply(
        cluster.helm(
            "template",
            namespace,
            str(ROOT / "charts/paceline"),
            "-n",
            namespace,
            "--show-only",
            "templates/operator-rbac.yaml",
        )
    )


async def until(check: Callable[[], Any], what: str, seconds: float = 30) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not await check():
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


def service_account(cluster: Cluster, namespace: str, folder: Path) -> dict[str, str]:
    """The environment and files of a pod with the operator's service account."""
    config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    server = config["clusters"][0]["cluster"]
    if "certificate-authority-data" in server:
        authority = base64.b64decode(server["certificate-authority-data"])
    else:
        authority = Path(server["certificate-authority"]).read_bytes()
    token = cluster.kubectl("create", "token", "paceline-operator", "-n", namespace)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(authority)
    (folder / "token").write_text(token)
    (folder / "namespace").write_text(namespace)
    address = urlsplit(server["server"])
    kept = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "POD_NAMESPACE")}
    return kept | {
        "KUBERNETES_SERVICE_HOST": address.hostname or "",
        "KUBERNETES_SERVICE_PORT": str(address.port),
        "PACELINE_SERVICEACCOUNT_DIR": str(folder),
        "PACELINE_RUNTIME_IMAGE": "paceline.io/runtime:0.1.0",
        "PACELINE_BIND_HOST": "127.0.0.1",
    }
