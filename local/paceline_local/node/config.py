"""What a node is started with, and what its pods share."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import yaml

from paceline_kube import KubeClient
from paceline_local.node.env import Facts
from paceline_local.node.events import EventRecorder
from paceline_local.node.gpus import GpuPool
from paceline_local.node.objects import ObjectSource, TokenSource
from paceline_local.node.plan import Namespaces
from paceline_local.node.restart import MOST_BACKOFF

INSTANCE_VARIABLE = "PACELINE_LOCAL_INSTANCE"
"""Environment variable that marks every process of a local instance; handed on to pods where the node has it."""


@dataclass(frozen=True)
class NodeConfig:
    """Options of one node; durations in seconds, `memory` and `cpu` as Kubernetes quantities."""

    name: str
    directory: Path
    address: str
    pod_range: str
    cpu: str
    memory: str
    gpus: int = 0
    pods: int = 250
    max_backoff: float = MOST_BACKOFF
    volume_refresh: float = 10.0

    @property
    def capacity(self) -> dict[str, str]:
        """Resources of the node; all of them can be allocated."""
        found = {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods)}
        if self.gpus:
            found["nvidia.com/gpu"] = str(self.gpus)
        return found


@dataclass(frozen=True)
class NodeContext:
    """What every pod of the node uses."""

    config: NodeConfig
    client: KubeClient
    events: EventRecorder
    objects: ObjectSource
    tokens: TokenSource
    session: aiohttp.ClientSession
    gpus: GpuPool
    namespace: Namespaces
    api_server: tuple[str, int]
    instance: dict[str, str] = field(default_factory=dict)

    def facts(self, pod_ip: str) -> Facts:
        """What a pod with this address may be told."""
        return Facts(pod_ip, self.config.address, self.config.name, self.config.capacity)

    def base_env(self, pod_ip: str, pod_name: str, home: str, tmp: str, gpus: str) -> dict[str, str]:
        """Environment of every container before its own."""
        host, port = self.api_server
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
            "HOME": home,
            "TMPDIR": tmp,
            "HOSTNAME": pod_name,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "PYTHONUNBUFFERED": "1",
            "PACELINE_BIND_HOST": pod_ip,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
            "CUDA_VISIBLE_DEVICES": gpus,
            **self.instance,
        }


def api_server_of(kubeconfig: Path) -> tuple[str, int]:
    """Host and port of the API server in a kubeconfig's current context."""
    config = yaml.safe_load(kubeconfig.read_text())
    contexts = {entry["name"]: entry["context"] for entry in config["contexts"]}
    clusters = {entry["name"]: entry["cluster"] for entry in config["clusters"]}
    url = urlsplit(clusters[contexts[config["current-context"]]["cluster"]]["server"])
    if url.hostname is None:
        raise ValueError(f"{kubeconfig}: the server {url.geturl()!r} has no host")
    return url.hostname, url.port or 443
