"""The processes of an instance and their command lines, as values."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from paceline_local import network
from paceline_local.processes import INSTANCE_VARIABLE
from paceline_local.state import Instance, InstanceRecord, Shape

SERVICE_RANGE = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"

# How long a node may be silent before its pods are taken for lost. Kubernetes' own 40 s is long for trying out what
# happens when a node dies; much shorter, a busy two-core machine loses nodes that are merely slow.
NODE_GRACE = "20s"

PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "PACELINE_CACHE",
    "KUBEBUILDER_ASSETS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
"""Variables of the caller that parts see; the rest of a shell's environment must not decide how they behave."""


@dataclass(frozen=True)
class Probe:
    """How to ask a part whether it works: a TLS endpoint, or a file or socket that it makes."""

    url: str = ""
    needs_client_certificate: bool = False
    path: Path | None = None


@dataclass(frozen=True)
class Part:
    """One process of an instance."""

    name: str
    argv: tuple[str, ...]
    probe: Probe
    environment: dict[str, str] = field(default_factory=dict)


def base_environment(instance: Instance, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment that all parts of the instance have in common."""
    passed = {name: environ[name] for name in PASSED_ON if name in environ}
    return passed | {INSTANCE_VARIABLE: str(instance.directory)}


def node_name(index: int) -> str:
    return f"node-{index}"


def _server_flags(instance: Instance, name: str) -> tuple[str, ...]:
    return (
        f"--tls-cert-file={instance.pki / f'{name}.crt'}",
        f"--tls-private-key-file={instance.pki / f'{name}.key'}",
        f"--client-ca-file={instance.authority}",
    )


def _request_header_flags(instance: Instance) -> tuple[str, ...]:
    """Flags by which a server accepts users that the aggregation layer has already identified."""
    return (
        f"--requestheader-client-ca-file={instance.pki / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    )


def etcd(instance: Instance, record: InstanceRecord, program: Path) -> Part:
    """The store. It listens on Unix sockets in the user's private folder only, so it needs no certificates."""
    client = f"unix://{instance.etcd_socket(record.octet)}"
    peer = f"unix://{instance.etcd_peer_socket(record.octet)}"
    return Part(
        "etcd",
        (
            str(program),
            "--name=default",
            f"--data-dir={instance.etcd_data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # A power cut may cost the data of a trial cluster; waiting for the disk at each write slows every one.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ),
        Probe(path=instance.etcd_socket(record.octet)),
    )


def api_server(instance: Instance, record: InstanceRecord, program: Path) -> Part:
    address = network.control_plane_address(record.octet)
    pki = instance.pki
    return Part(
        "kube-apiserver",
        (
            str(program),
            f"--etcd-servers=unix://{instance.etcd_socket(record.octet)}",
            f"--bind-address={address}",
            f"--secure-port={record.ports.api_server}",
            *_server_flags(instance, "kube-apiserver"),
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'service-account.pub'}",
            f"--service-account-signing-key-file={pki / 'service-account.key'}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            # The default reconciler would publish the server's address, which as a loopback address is refused.
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={instance.authority}",
            f"--kubelet-client-certificate={pki / 'kube-apiserver-kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kube-apiserver-kubelet-client.key'}",
            *_request_header_flags(instance),
            f"--proxy-client-cert-file={pki / 'front-proxy-client.crt'}",
            f"--proxy-client-key-file={pki / 'front-proxy-client.key'}",
            "--profiling=false",
        ),
        Probe(url=api_server_url(record) + "/readyz", needs_client_certificate=True),
    )


def api_server_url(record: InstanceRecord) -> str:
    return f"https://{network.control_plane_address(record.octet)}:{record.ports.api_server}"


def controller_manager(instance: Instance, record: InstanceRecord, program: Path) -> Part:
    address = network.control_plane_address(record.octet)
    identity = instance.identity("kube-controller-manager")
    return Part(
        "kube-controller-manager",
        (
            str(program),
            f"--kubeconfig={identity}",
            f"--authentication-kubeconfig={identity}",
            f"--authorization-kubeconfig={identity}",
            f"--bind-address={address}",
            f"--secure-port={record.ports.controller_manager}",
            *_server_flags(instance, "kube-controller-manager"),
            f"--requestheader-client-ca-file={instance.pki / 'front-proxy-ca.crt'}",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={instance.pki / 'service-account.key'}",
            f"--root-ca-file={instance.authority}",
            "--leader-elect=false",
            # At the default rate, making the pods of 60 Deployments takes 19 s instead of 1.3 s.
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--node-monitor-period=2s",
            f"--node-monitor-grace-period={NODE_GRACE}",
            "--horizontal-pod-autoscaler-sync-period=2s",
            "--profiling=false",
        ),
        Probe(url=f"https://{address}:{record.ports.controller_manager}/healthz"),
    )


def scheduler(instance: Instance, record: InstanceRecord, program: Path) -> Part:
    address = network.control_plane_address(record.octet)
    identity = instance.identity("kube-scheduler")
    return Part(
        "kube-scheduler",
        (
            str(program),
            f"--kubeconfig={identity}",
            f"--authentication-kubeconfig={identity}",
            f"--authorization-kubeconfig={identity}",
            f"--bind-address={address}",
            f"--secure-port={record.ports.scheduler}",
            *_server_flags(instance, "kube-scheduler"),
            f"--requestheader-client-ca-file={instance.pki / 'front-proxy-ca.crt'}",
            "--leader-elect=false",
            "--profiling=false",
        ),
        Probe(url=f"https://{address}:{record.ports.scheduler}/healthz"),
    )


def machine_cpus() -> str:
    """Processors that this process may use, as a Kubernetes quantity."""
    return str(len(os.sched_getaffinity(0)))


def machine_memory() -> str:
    """The machine's memory, as a Kubernetes quantity."""
    return f"{psutil.virtual_memory().total // 1024}Ki"


def node(instance: Instance, record: InstanceRecord, index: int) -> Part:
    """A node. Each claims the whole machine unless told otherwise, as the nodes of `kind` do."""
    name = node_name(index)
    address = network.node_address(record.octet, index)
    shape = record.shape
    return Part(
        name,
        (
            sys.executable,
            "-m",
            "paceline_local.node",
            f"--name={name}",
            f"--dir={instance.node(name)}",
            f"--kubeconfig={instance.identity(name)}",
            f"--address={address}",
            f"--pod-range={network.pod_range(record.octet, index)}",
            f"--cpus={shape.cpus_per_node or machine_cpus()}",
            f"--memory={shape.memory_per_node or machine_memory()}",
            f"--gpus={shape.gpus_per_node}",
            f"--tls-cert={instance.pki / f'{name}-server.crt'}",
            f"--tls-key={instance.pki / f'{name}-server.key'}",
            f"--client-ca={instance.authority}",
        ),
        Probe(),
    )


def service_proxy(instance: Instance, record: InstanceRecord) -> Part:
    """What gives each Service a stable local address."""
    return Part(
        "service-proxy",
        (
            sys.executable,
            "-m",
            "paceline_local.serviceproxy",
            f"--kubeconfig={instance.identity('service-proxy')}",
            f"--dir={instance.service_proxy}",
            f"--range={network.service_range(record.octet)}",
        ),
        Probe(path=instance.service_proxy / "services.json"),
    )


def node_parts(instance: Instance, record: InstanceRecord) -> list[Part]:
    """The nodes and, where there is a node, the Service proxy."""
    nodes = [node(instance, record, index) for index in range(record.shape.nodes)]
    return [*nodes, service_proxy(instance, record)] if nodes else []


def all_names(shape: Shape) -> list[str]:
    """Names of all parts, in the order they start in; `down` stops them in the reverse order."""
    nodes = [node_name(index) for index in range(shape.nodes)]
    control_plane = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    return control_plane + ([*nodes, "service-proxy"] if nodes else [])
