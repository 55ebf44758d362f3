"""Brings an instance up and takes it down. No daemon: records of processes, and the processes."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline_local import network, parts, processes, state
from paceline_local.build import control_plane_tools
from paceline_local.cluster import Cluster
from paceline_local.errors import LocalError, UnreachableError, UsageError
from paceline_local.kubeconfig import write_kubeconfig
from paceline_local.node.stop import stop_pods
from paceline_local.parts import Part
from paceline_local.pki import (
    FRONT_PROXY_CLIENT,
    Authority,
    control_plane_subjects,
    ensure_signing_key,
    node_subjects,
)
from paceline_local.probing import answer_of, asked
from paceline_local.progress import Progress, Waiting, silent, ticks
from paceline_local.state import Instance, InstanceRecord, PartRecord, Ports, Shape
from paceline_local.status import Status, account_problem, clients, log_tail, node_problem, status_of

READY_TIMEOUT = 120.0
POD_GRACE = 10.0
PART_GRACE = 10.0
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")


class PartError(LocalError):
    """A part does not come up; the message has the end of its log."""


def now() -> datetime.datetime:
    """The present, with its time zone."""
    return datetime.datetime.now(datetime.UTC)


class Lifecycle:
    """One instance, seen from the process that changes it, which holds the instance's lock."""

    def __init__(self, instance: Instance, progress: Progress = silent) -> None:
        self.instance = instance
        self.progress = progress

    # -- identities ------------------------------------------------------------------------------------------------

    def _make_identities(self, record: InstanceRecord) -> None:
        """Certificates and kubeconfigs of everything in the instance's shape."""
        instance, moment = self.instance, now()
        authority = Authority(instance.pki, "ca", moment)
        Authority(instance.pki, "front-proxy-ca", moment).issue(FRONT_PROXY_CLIENT)
        ensure_signing_key(instance.pki / "service-account.key", instance.pki / "service-account.pub")
        address = network.control_plane_address(record.octet)
        pairs = {
            subject.file: authority.issue(subject)
            for subject in control_plane_subjects(address, parts.KUBERNETES_SERVICE)
        }
        users = ["kube-controller-manager", "kube-scheduler", "service-proxy"]
        for index in range(record.shape.nodes):
            name = parts.node_name(index)
            identity, serving = node_subjects(name, network.node_address(record.octet, index))
            pairs[name] = authority.issue(identity)
            authority.issue(serving)
            users.append(name)
        server = parts.api_server_url(record)
        instance.identity("").mkdir(mode=0o700, exist_ok=True)
        for user in users:
            write_kubeconfig(instance.identity(user), server, instance.authority, pairs[user], user)
        write_kubeconfig(instance.kubeconfig, server, instance.authority, pairs["admin"], "admin")

    def _link_tools(self, tools: dict[str, Path]) -> None:
        self.instance.tools.mkdir(exist_ok=True)
        for tool in ("kubectl", "helm"):
            link = self.instance.tools / tool
            if link.is_symlink() and link.readlink() == tools[tool]:
                continue
            link.unlink(missing_ok=True)
            link.symlink_to(tools[tool])

    # -- processes -------------------------------------------------------------------------------------------------

    def _ensure_started(self, part: Part, running: dict[str, PartRecord]) -> bool:
        """Start the part unless it runs as it should; says whether a process was started."""
        environment = parts.base_environment(self.instance) | part.environment
        before = running.get(part.name)
        if before is not None and processes.is_running(before.process):
            if before.argv == part.argv:
                return False
            self.progress(f"restarting {part.name}, whose options or version changed")
            processes.stop([before.process], PART_GRACE)
        elif before is not None:
            self.progress(f"{part.name} had crashed; starting it again")
        if part.probe.path is not None:
            # What an earlier process left behind must not pass for the new one's answer.
            part.probe.path.unlink(missing_ok=True)
        process = processes.spawn(part.argv, environment, self.instance.log(part.name))
        record = PartRecord(part.name, part.argv, environment, process)
        self.instance.write_part(record)
        running[part.name] = record
        return True

    def adopt(self, record: InstanceRecord, tools: dict[str, Path]) -> None:
        """Take over processes that an `up` started and did not write down, because it was killed in between."""
        recorded = self.instance.read_parts()
        found = {processes.command_line(p): p for p in processes.of_instance(self.instance.directory)}
        for part in self._parts(record, tools):
            if part.name not in recorded and part.argv in found:
                environment = parts.base_environment(self.instance) | part.environment
                self.instance.write_part(PartRecord(part.name, part.argv, environment, found[part.argv]))

    def _control_plane(self, record: InstanceRecord, tools: dict[str, Path]) -> list[Part]:
        instance = self.instance
        return [
            parts.etcd(instance, record, tools["etcd"]),
            parts.api_server(instance, record, tools["kube-apiserver"]),
            parts.controller_manager(instance, record, tools["kube-controller-manager"]),
            parts.scheduler(instance, record, tools["kube-scheduler"]),
        ]

    def _parts(self, record: InstanceRecord, tools: dict[str, Path]) -> list[Part]:
        return [*self._control_plane(record, tools), *parts.node_parts(self.instance, record)]

    def _await(self, part: Part, running: dict[str, PartRecord], answer: Callable[[], str | None]) -> None:
        say = Waiting(self.progress)
        problem: str | None = None
        for waited in ticks(READY_TIMEOUT, 0.05):
            problem = answer()
            if problem is None:
                return
            if not processes.is_running(running[part.name].process):
                raise self._failed(part.name, "ended right after its start")
            say(waited, f"waiting for {part.name}: {problem}")
        raise self._failed(part.name, f"is not ready after {READY_TIMEOUT:.0f} s: {problem}")

    def _failed(self, name: str, what: str) -> PartError:
        log = self.instance.log(name)
        return PartError("\n".join([f"{name} {what}. The end of {log}:", *log_tail(log)]))

    def start(self, record: InstanceRecord, tools: dict[str, Path]) -> None:
        """Bring every part of the instance to run and answer; leaves alone what does."""
        instance = self.instance
        running = instance.read_parts()
        self._stop_surplus(record, running)
        control_plane = self._control_plane(record, tools)
        anonymous, admin = clients(self.instance)
        started = False
        # The last two fail at once without an API server, so they start after it answers.
        for wave in (control_plane[:1], control_plane[1:2], control_plane[2:]):
            for part in wave:
                started |= self._ensure_started(part, running)
            for part in wave:
                self._await(part, running, partial(answer_of, part.probe, anonymous, admin))
        server = parts.api_server_url(record)
        if started:
            self.progress(f"control plane answers at {server}")
        self._await(control_plane[2], running, partial(account_problem, admin, server))
        cluster = Cluster.of(instance, record)
        self._delete_surplus_nodes(cluster, record)
        workers = parts.node_parts(instance, record)
        if workers:
            cluster.apply(_manifest("service-proxy.yaml"))
        for part in workers:
            self._ensure_started(part, running)
        for part in workers:
            if part.name == "service-proxy":
                self._await(part, running, partial(answer_of, part.probe, anonymous, admin))
            else:
                self._await(part, running, partial(node_problem, admin, server, running[part.name]))

    def _stop_surplus(self, record: InstanceRecord, running: dict[str, PartRecord]) -> None:
        """Stop nodes that the instance is no longer asked to have."""
        wanted = parts.all_names(record.shape)
        for name in [name for name in running if name not in wanted]:
            self.progress(f"stopping {name}, which is no longer asked for")
            processes.stop([running[name].process], PART_GRACE)
            stop_pods(self.instance.node(name), POD_GRACE)
            self.instance.forget_part(name)
            del running[name]

    def _delete_surplus_nodes(self, cluster: Cluster, record: InstanceRecord) -> None:
        """Delete the Node objects of nodes that were stopped for good, so that their pods are made anew elsewhere."""
        listed = self._listed(f"{cluster.server}/api/v1/nodes")
        wanted = {parts.node_name(index) for index in range(record.shape.nodes)}
        for name in [node["metadata"]["name"] for node in listed["items"]]:
            if re.fullmatch(r"node-\d+", name) and name not in wanted:
                cluster.kubectl("delete", "node", name, "--ignore-not-found")
                # Their processes are gone, which nobody is left to report; pod garbage collection takes a minute.
                bound = f"--field-selector=spec.nodeName={name}"
                cluster.kubectl("delete", "pods", "--all-namespaces", bound, "--force", "--grace-period=0")

    def _listed(self, url: str) -> Any:
        """The list at `url`, asked for again while there is no answer.

        An API server says that it is ready and may yet leave reads unanswered for seconds: its connections to an etcd
        that was killed are found dead one by one.
        """
        _, admin = clients(self.instance)
        problem: str | None = None
        for _ in ticks(READY_TIMEOUT, 0.2):
            listed, problem = asked(admin, url)
            if problem is None:
                return listed
        raise UnreachableError(problem or f"{url} was not asked")

    def stop(self) -> None:
        """End every process of the instance: nodes first, then their pods, then the rest in reverse order."""
        running = self.instance.read_parts()
        nodes = [name for name in running if name.startswith("node-")]
        processes.stop([running[name].process for name in nodes], PART_GRACE)
        for folder in sorted(self.instance.node("").glob("*")):
            if count := stop_pods(folder, POD_GRACE):
                self.progress(f"stopped {count} containers of {folder.name}")
        for name in ("service-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            if name in running:
                processes.stop([running[name].process], PART_GRACE)
        # Whatever came to be meanwhile, or belongs to no record because its starter was killed before writing it.
        processes.stop(processes.of_instance(self.instance.directory), PART_GRACE)
        for name in running:
            self.instance.forget_part(name)


def _manifest(name: str) -> str:
    return (Path(__file__).parent / "manifests" / name).read_text()


def _settled_ports(instance: Instance, record: InstanceRecord) -> InstanceRecord:
    """The record, with other ports where a stopped instance's were taken by somebody else meanwhile."""
    running = instance.read_parts()
    address = network.control_plane_address(record.octet)

    def settled(part: str, port: int) -> int:
        if part in running and processes.is_running(running[part].process):
            return port
        return network.choose_port(address, port)

    ports = Ports(
        api_server=settled("kube-apiserver", record.ports.api_server),
        controller_manager=settled("kube-controller-manager", record.ports.controller_manager),
        scheduler=settled("kube-scheduler", record.ports.scheduler),
    )
    return replace(record, ports=ports)


def check_shape(shape: Shape) -> None:
    """Refuse what no instance can be.

    Raises:
        UsageError: The shape is impossible; the message says what is possible.
    """
    if not 0 <= shape.nodes <= network.MAX_NODES:
        raise UsageError(f"a local cluster has 0 to {network.MAX_NODES} nodes, not {shape.nodes}")
    if shape.gpus_per_node < 0:
        raise UsageError(f"a node has 0 or more GPUs, not {shape.gpus_per_node}")
    for what, amount in (("processors", shape.cpus_per_node), ("memory", shape.memory_per_node)):
        if amount and not QUANTITY.fullmatch(amount):
            raise UsageError(f"{what} of a node as a Kubernetes quantity, please (4, 500m, 16Gi), not {amount!r}")
    if shape.nodes == 0 and not shape.bare:
        raise UsageError("Paceline needs a node to run on: one or more nodes, or `--bare`")


def start_instance(
    directory: Path | None,
    shape: Callable[[Shape | None], Shape],
    progress: Progress = silent,
    *,
    temporary: bool = False,
) -> Cluster:
    """Bring up control plane, nodes and Service proxy; may be called again at any time, and repairs what crashed.

    Args:
        directory: The instance's folder; None for the default one.
        shape: Makes the wanted shape from the recorded one (None at first).
        progress: Told what is done.
        temporary: The instance is this process's and may be cleared away by others once the process is gone.

    Raises:
        LocalError: A part cannot be built or does not come up.
    """
    if platform.system() != "Linux":
        raise LocalError("local mode needs Linux (all of 127.0.0.0/8, /proc); use the chart on `kind` or any cluster")
    instance = Instance(directory)
    tools = control_plane_tools(progress)
    lifecycle = Lifecycle(instance, progress)
    with instance.lock("which starts or stops this local cluster", progress):
        before = instance.read()
        wanted = shape(before.shape if before else None)
        check_shape(wanted)
        if before is None:
            progress(f"making a local cluster in {instance.directory}")
            record = instance.create(wanted, state.current_process() if temporary else None)
        else:
            lifecycle.adopt(before, tools)
            record = _settled_ports(instance, replace(before, shape=wanted))
            instance.write(record)
        lifecycle._make_identities(record)
        lifecycle._link_tools(tools)
        lifecycle.start(record, tools)
    return Cluster.of(instance, record)


def down(directory: Path | None = None, progress: Progress = silent, *, keep_state: bool = False) -> bool:
    """Stop every process of the instance and delete its state; says whether there was an instance.

    Args:
        directory: The instance's folder; None for the default one.
        progress: Told what is done.
        keep_state: Keep data, certificates and logs, so that `up` continues where this stopped.
    """
    instance = Instance(directory)
    with instance.lock("which starts or stops this local cluster", progress):
        record = instance.read()
        if record is None:
            # Its folder may have been deleted by hand while it ran.
            left = processes.of_instance(instance.directory)
            processes.stop(left, PART_GRACE)
            return bool(left)
        progress(f"stopping the local cluster in {instance.directory}")
        Lifecycle(instance, progress).stop()
        if not keep_state:
            instance.remove(record)
    return True


def status(directory: Path | None = None) -> Status | None:
    """How the instance is; None where there is none."""
    instance = Instance(directory)
    record = instance.read()
    return None if record is None else status_of(instance, record)
