"""The API server of a running local cluster, to be taken away and given other options by tests and measurements."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from os import kill
from pathlib import Path

from paceline_local import parts, processes
from paceline_local.cluster import Cluster
from paceline_local.errors import LocalError
from paceline_local.probing import answer_of
from paceline_local.progress import ticks
from paceline_local.state import Instance
from paceline_local.status import clients, log_tail

PART = "kube-apiserver"
READY_SECONDS = 60.0
GRACE_SECONDS = 15.0

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:{namespace}"]
  - level: None
"""


class ApiServer:
    """Stops the API server of a temporary cluster and starts it again; `down` still finds it."""

    def __init__(self, cluster: Cluster) -> None:
        self._instance = Instance(cluster.directory)
        self._record = self._instance.read_parts()[PART]
        self._extra: tuple[str, ...] = ()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        kill(self._record.process.pid, signal.SIGKILL)
        processes.stop([self._record.process], GRACE_SECONDS)

    def stop(self) -> None:
        """Let it end in good order."""
        processes.stop([self._record.process], GRACE_SECONDS)

    def start(self, flags: Sequence[str] | None = None) -> None:
        """Start it and wait until it is ready.

        Args:
            flags: options beside its usual ones; None for those of the last start.

        Raises:
            LocalError: it is not ready in time.
        """
        if flags is not None:
            own = self._record.argv[: len(self._record.argv) - len(self._extra)]
            self._extra = tuple(flags)
            self._record = replace(self._record, argv=(*own, *self._extra))
        record = self._record
        process = processes.spawn(record.argv, record.environment, self._instance.log(PART))
        self._record = replace(record, process=process)
        self._instance.write_part(self._record)
        stored = self._instance.read()
        assert stored is not None, "a running cluster has its record"
        probe = parts.Probe(url=parts.api_server_url(stored) + "/readyz", needs_client_certificate=True)
        problem: str | None = None
        for _ in ticks(READY_SECONDS, 0.05):
            problem = answer_of(probe, *clients(self._instance))
            if problem is None:
                return
            if not processes.is_running(process):
                problem = "it ended"
                break
        log = "\n".join(log_tail(self._instance.log(PART)))
        raise LocalError(f"the API server does not come up: {problem}. The end of its log:\n{log}")

    def audit(self, namespace: str) -> Path:
        """Start it anew with an audit log of what the service accounts of one namespace ask for; gives its file."""
        policy = self._instance.directory / "logs" / "audit-policy.yaml"
        log = self._instance.directory / "logs" / "audit.jsonl"
        policy.write_text(AUDIT_POLICY.format(namespace=namespace))
        self.stop()
        self.start((f"--audit-policy-file={policy}", f"--audit-log-path={log}"))
        return log
