"""The node's own objects: Node with its capacity and conditions, and the Lease that says it is alive."""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline_kube import LEASES, NODES, AlreadyExists, KubeClient, KubeError, NotFound
from paceline_local.node.config import NodeConfig
from paceline_local.node.events import timestamp
from paceline_local.node.shim import boot_id

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 10
RENEW_SECONDS = 2.5
LOOK_SECONDS = 10.0
STATUS_SECONDS = 60.0
FAILURES_PER_LINE = 20
VERSION = "v1.37.2"


def node_object(config: NodeConfig) -> dict[str, Any]:
    """The Node as it is created."""
    labels = {
        "kubernetes.io/hostname": config.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": config.name, "labels": labels},
        "spec": {},
    }


def node_status(config: NodeConfig, port: int, now: float, since: str) -> dict[str, Any]:
    """The Node's status; `port` of the kubelet API, `since` the time of the last change to Ready."""

    def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
        times = {"lastHeartbeatTime": timestamp(now), "lastTransitionTime": since}
        return {"type": kind, "status": status, "reason": reason, "message": message, **times}

    release = platform.freedesktop_os_release() if hasattr(platform, "freedesktop_os_release") else {}
    machine_id = Path("/etc/machine-id")
    return {
        "capacity": config.capacity,
        "allocatable": config.capacity,
        "conditions": [
            condition("Ready", "True", "KubeletReady", "this machine runs pods as processes"),
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "not measured in local mode"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "not measured in local mode"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "not measured in local mode"),
        ],
        "addresses": [
            {"type": "InternalIP", "address": config.address},
            {"type": "Hostname", "address": config.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        "nodeInfo": {
            "architecture": platform.machine(),
            "bootID": boot_id(),
            "containerRuntimeVersion": "paceline-local://0.1.0",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": VERSION,
            "machineID": machine_id.read_text().strip() if machine_id.exists() else "",
            "operatingSystem": "linux",
            "osImage": release.get("PRETTY_NAME", platform.system()),
            "systemUUID": "",
        },
    }


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


class Heartbeat:
    """Registers the node and keeps it alive; makes Node or Lease anew where somebody deleted them."""

    def __init__(self, client: KubeClient, config: NodeConfig, port: int) -> None:
        self._client, self._config, self._port = client, config, port
        self._since = timestamp(time.time())

    async def register(self) -> None:
        """Create or update the Node.

        Raises:
            KubeError: The API server refuses or does not answer.
        """
        try:
            await self._client.create(NODES, node_object(self._config))
        except AlreadyExists:
            labels = node_object(self._config)["metadata"]["labels"]
            await self._client.patch(NODES, self._config.name, {"metadata": {"labels": labels}}, kind="merge")
        await self._write_status()

    async def _keep_status(self, due: bool) -> bool:
        """Write the Node's status where that is due or where it says that the node is lost; whether it was written.

        A control plane that had no sign of life marks the node, and only the node itself takes that back.
        """
        if not due and _is_ready(await self._client.get(NODES, self._config.name)):
            return False
        await self._write_status()
        return True

    async def _write_status(self) -> None:
        status = node_status(self._config, self._port, time.time(), self._since)
        await self._client.patch(NODES, self._config.name, {"status": status}, kind="strategic", subresource="status")

    async def run(self) -> None:
        """Renew the Lease, and now and then the Node's status, until cancelled."""
        now = time.monotonic()
        look_due, status_due = now + LOOK_SECONDS, now + STATUS_SECONDS
        known: dict[str, Any] | None = None
        failures = 0
        while True:
            try:
                known = await self._renew(known)
                now = time.monotonic()
                if now >= look_due:
                    if await self._keep_status(now >= status_due):
                        status_due = now + STATUS_SECONDS
                    look_due = now + LOOK_SECONDS
            except NotFound:
                known, look_due, status_due = None, 0.0, 0.0
                try:
                    await self.register()
                except KubeError as error:
                    log.warning("node not registered: %s", error)
            except KubeError as error:
                failures += 1
                look_due = 0.0
                if failures % FAILURES_PER_LINE == 1:
                    log.warning("lease not renewed (%d times now): %s", failures, error)
            else:
                if failures:
                    log.info("lease renewed again")
                failures = 0
            await asyncio.sleep(RENEW_SECONDS)

    async def _renew(self, known: dict[str, Any] | None) -> dict[str, Any]:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        name = self._config.name
        if known is not None:
            body = {"spec": {"renewTime": moment, "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS}}
            return await self._client.patch(LEASES, name, body, LEASE_NAMESPACE)
        node = await self._client.get(NODES, name)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": LEASE_NAMESPACE,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}],
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": moment},
        }
        try:
            return await self._client.create(LEASES, lease, LEASE_NAMESPACE)
        except AlreadyExists:
            return lease
