"""A handle on a running local cluster, for the commands, the demo and the tests."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline_local.errors import LocalError
from paceline_local.parts import api_server_url
from paceline_local.state import Instance, InstanceRecord

NAMESPACES = {"Paceline": "paceline-system", "Prometheus": "paceline-monitoring"}
ROUTER_SERVICE = "paceline-system/paceline-router"
ROUTER_PORT = "http"
PROMETHEUS_SERVICE = "paceline-monitoring/prometheus"
PROMETHEUS_PORT = "http"


class CommandError(LocalError):
    """kubectl or helm failed; has its exit status and what it wrote."""

    def __init__(self, command: list[str], status: int, stdout: str, stderr: str) -> None:
        super().__init__(f"`{' '.join(command)}` failed with status {status}:\n{stderr.strip() or stdout.strip()}")
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


@dataclass(frozen=True)
class Cluster:
    """Where a local cluster is and how to talk to it. Says nothing about whether it works: `lifecycle.status` does."""

    directory: Path
    server: str
    """URL of the API server."""
    kubeconfig: Path
    """The admin's kubeconfig."""
    certificate_authority: Path
    """CA certificate of every server in the cluster."""
    tools: Path
    """Folder with kubectl and helm."""

    @classmethod
    def of(cls, instance: Instance, record: InstanceRecord) -> Cluster:
        return cls(instance.directory, api_server_url(record), instance.kubeconfig, instance.authority, instance.tools)

    def environment(self) -> dict[str, str]:
        """This process's environment with `KUBECONFIG` and `PATH` for the cluster."""
        return os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{self.tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }

    def run(
        self, *command: str, stdin: str | None = None, check: bool = True, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, helm or anything else against the cluster.

        Raises:
            CommandError: It failed, and `check` is set.
            subprocess.TimeoutExpired: It took longer than `timeout` seconds.
        """
        argv = [str(self.tools / command[0]) if command[0] in ("kubectl", "helm") else command[0], *command[1:]]
        done = subprocess.run(
            argv,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env=self.environment(),
        )
        if check and done.returncode != 0:
            raise CommandError(list(command), done.returncode, done.stdout, done.stderr)
        return done

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 300.0) -> str:
        """Standard output of a kubectl command; raises as `run` does."""
        return self.run("kubectl", *arguments, stdin=stdin, timeout=timeout).stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get … -o json`, parsed; raises as `run` does."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, manifest: str) -> str:
        """Server-side apply of a manifest's text; raises as `run` does."""
        return self.kubectl(
            "apply", "--server-side", "--force-conflicts", "--field-manager=paceline-local", "-f", "-", stdin=manifest
        )

    def helm(self, *arguments: str, timeout: float = 600.0) -> str:
        """Standard output of a helm command; raises as `run` does."""
        return self.run("helm", *arguments, timeout=timeout).stdout

    def service_url(self, service: str, port: str | None = None) -> str | None:
        """Local URL of the Service `namespace/name`, or None where the Service proxy has none.

        The Service proxy keeps it stable for as long as the Service exists.

        Args:
            service: `namespace/name`.
            port: Name of the Service's port, its number where it has no name; None for the first port.
        """
        file = self.directory / "serviceproxy" / "services.json"
        try:
            found = json.loads(file.read_bytes()).get(service)
        except FileNotFoundError:
            return None
        if found is None:
            return None
        url = found["url"] if port is None else found["ports"].get(port)
        return None if url is None else str(url)

    @property
    def router_url(self) -> str | None:
        """URL at which Paceline's router takes requests, or None where it is not installed."""
        return self.service_url(ROUTER_SERVICE, ROUTER_PORT)

    @property
    def prometheus_url(self) -> str | None:
        """URL of Prometheus, or None where it is not installed."""
        return self.service_url(PROMETHEUS_SERVICE, PROMETHEUS_PORT)
