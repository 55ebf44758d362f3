"""How an instance is: its own processes, and the pods that make up Paceline in it."""

from __future__ import annotations

import datetime
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline_local import parts, processes
from paceline_local.alerts import FiringAlert, firing
from paceline_local.cluster import NAMESPACES, Cluster
from paceline_local.errors import UnreachableError
from paceline_local.parts import Part
from paceline_local.pki import KeyPair
from paceline_local.probing import Client, answer_of, asked
from paceline_local.state import Instance, InstanceRecord, PartRecord

LOG_LINES = 10
LOG_TAIL_BYTES = 16_384

PartState = Literal["running", "not answering", "crashed", "stopped"]


@dataclass(frozen=True)
class PartStatus:
    """How one process of the instance is."""

    name: str
    state: PartState
    log: Path
    pid: int | None = None
    since: float | None = None
    """Start of the process, in seconds since the epoch."""
    problem: str = ""
    last_lines: tuple[str, ...] = ()
    """End of the log of a part that does not work."""


@dataclass(frozen=True)
class PodStatus:
    """How one of Paceline's own pods is."""

    namespace: str
    name: str
    ready: bool
    words: str
    """`ready`, or what it waits for."""


@dataclass(frozen=True)
class Status:
    """How an instance is."""

    cluster: Cluster
    parts: tuple[PartStatus, ...]
    pods: tuple[PodStatus, ...] = ()
    """Pods of Paceline, and of Prometheus; none in a bare cluster."""
    pods_problem: str = ""
    """Why the pods are not known, or not there although they should be."""
    alerts: tuple[FiringAlert, ...] | None = None
    """Those that fire; None where that is not known: without Prometheus, or where it does not answer."""

    @property
    def works(self) -> bool:
        """Whether every part runs and answers, and every pod of Paceline is ready. Alerts are about what runs in it."""
        ready = all(pod.ready for pod in self.pods) and not self.pods_problem
        return ready and all(part.state == "running" for part in self.parts)


def log_tail(path: Path, lines: int = LOG_LINES) -> tuple[str, ...]:
    """The last lines of a log; none where there is no log."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - LOG_TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    return tuple(text.splitlines()[-lines:])


def clients(instance: Instance) -> tuple[Client, Client]:
    """HTTPS clients that check the instance's CA: one without an identity, one as the admin.

    Raises:
        FileNotFoundError: The instance has no certificates.
    """
    admin = KeyPair(instance.pki / "admin.crt", instance.pki / "admin.key")
    return Client(instance.authority), Client(instance.authority, admin)


def account_problem(admin: Client, server: str) -> str | None:
    """None once pods can be made in the default namespace, which needs its service account."""
    _, problem = asked(admin, f"{server}/api/v1/namespaces/default/serviceaccounts/default")
    return problem


def _missing(admin: Client, url: str) -> tuple[Any, str | None]:
    """As `asked`, with the words for a node that has not been there."""
    try:
        return admin.get_json(url), None
    except urllib.error.HTTPError as error:
        return None, "it has not registered" if error.code == 404 else f"{url} answers {error.code}"
    except UnreachableError as error:
        return None, str(error)


def node_problem(admin: Client, server: str, part: PartRecord) -> str | None:
    """None where the node's present process reports and the API server has it as Ready, else what is wrong.

    The condition alone would do for a process that has just died, until the node's grace period has passed.
    """
    lease, problem = _missing(
        admin, f"{server}/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{part.name}"
    )
    if problem is not None:
        return problem
    renewed = datetime.datetime.fromisoformat(lease["spec"]["renewTime"])
    if renewed.timestamp() < processes.started_at(part.process):
        return "it has not reported since its start"
    node, problem = _missing(admin, f"{server}/api/v1/nodes/{part.name}")
    return problem or ready_problem(node)


def ready_problem(node: dict[str, Any]) -> str | None:
    """None where a Node object says that it is Ready, else what it says."""
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            if condition["status"] == "True":
                return None
            return f"it is not ready: {condition.get('message') or condition.get('reason')}"
    return "it has not said that it is ready"


def pod_words(pod: dict[str, Any]) -> str:
    """A few words about a pod: `ready`, or what its first unready container waits for."""
    status = pod.get("status", {})
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for container in statuses:
        state = container.get("state", {})
        if waiting := state.get("waiting"):
            return f"{waiting.get('reason', 'waiting')} {waiting.get('message', '')}".strip()
        if (ended := state.get("terminated")) and ended.get("exitCode"):
            return f"ended with status {ended['exitCode']} {ended.get('message', '')}".strip()
    if pod["metadata"].get("deletionTimestamp"):
        return "stopping"
    if pod_is_ready(pod):
        return "ready"
    if status.get("phase") == "Running":
        return "running, not ready"
    scheduled = [c for c in status.get("conditions", []) if c["type"] == "PodScheduled" and c["status"] == "False"]
    return str(scheduled[0].get("message", "not scheduled") if scheduled else status.get("phase", "Pending"))


def pod_is_ready(pod: dict[str, Any]) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def status_of(instance: Instance, record: InstanceRecord) -> Status:
    """How each part and each pod of Paceline is. Asks every running part; changes nothing."""
    running = instance.read_parts()
    cluster = Cluster.of(instance, record)
    try:
        anonymous, admin = clients(instance)
    except FileNotFoundError as error:
        nobody = tuple(_unasked(instance, name, running) for name in parts.all_names(record.shape))
        return Status(cluster, nobody, pods_problem=f"certificates are missing: {error.filename}")
    probes = {part.name: part.probe for part in _parts_for_probing(instance, record)}
    found = []
    for name in parts.all_names(record.shape):
        part = running.get(name)
        if part is None or not processes.is_running(part.process):
            found.append(_unasked(instance, name, running))
            continue
        if name.startswith("node-"):
            problem = node_problem(admin, cluster.server, part)
        else:
            problem = answer_of(probes[name], anonymous, admin)
        found.append(_running(instance, part, problem))
    return Status(cluster, tuple(found), *_pods(record, admin, cluster.server), alerts=_alerts(cluster))


def _unasked(instance: Instance, name: str, running: dict[str, PartRecord]) -> PartStatus:
    """Status of a part that cannot be asked."""
    log, part = instance.log(name), running.get(name)
    if part is None:
        return PartStatus(name, "stopped", log, problem="it was not started")
    if not processes.is_running(part.process):
        return PartStatus(name, "crashed", log, problem="its process is gone", last_lines=log_tail(log))
    return _running(instance, part, f"{instance.pki} lacks the certificates to ask it with")


def _running(instance: Instance, part: PartRecord, problem: str | None) -> PartStatus:
    log, since = instance.log(part.name), processes.started_at(part.process)
    if problem is None:
        return PartStatus(part.name, "running", log, part.process.pid, since)
    return PartStatus(part.name, "not answering", log, part.process.pid, since, problem, log_tail(log))


def _pods(record: InstanceRecord, admin: Client, server: str) -> tuple[tuple[PodStatus, ...], str]:
    if record.shape.bare:
        return (), ""
    found: list[PodStatus] = []
    missing = []
    for title, namespace in NAMESPACES.items():
        if title == "Prometheus" and not record.shape.prometheus:
            continue
        listed, problem = asked(admin, f"{server}/api/v1/namespaces/{namespace}/pods")
        if problem is not None:
            return (), f"the pods of Paceline are not known: {problem}"
        pods = [
            PodStatus(namespace, pod["metadata"]["name"], pod_is_ready(pod), pod_words(pod))
            for pod in listed["items"]
            # One that is on its way out is neither needed nor in the way.
            if not pod["metadata"].get("deletionTimestamp")
        ]
        if not pods:
            missing.append(f"{title} is not installed: there is no pod in {namespace}")
        found += pods
    return tuple(found), "; ".join(missing)


def _alerts(cluster: Cluster) -> tuple[FiringAlert, ...] | None:
    url = cluster.prometheus_url
    try:
        return None if url is None else firing(url)
    except UnreachableError:
        return None


def _parts_for_probing(instance: Instance, record: InstanceRecord) -> list[Part]:
    """The parts, whose programs do not matter here."""
    nowhere = Path("/")
    return [
        parts.etcd(instance, record, nowhere),
        parts.api_server(instance, record, nowhere),
        parts.controller_manager(instance, record, nowhere),
        parts.scheduler(instance, record, nowhere),
        *parts.node_parts(instance, record),
    ]
