"""A control plane for one system under test: its CRDs, its rights, its service account, and the log of its calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from paceline_local.apiserver import ApiServer
from paceline_local.cluster import Cluster
from paceline_local.paths import checkout_root
from paceline_local.testing import temporary_cluster

HOME = "paceline-system"
FLEET = "fleet"
ACCOUNT = "paceline-operator"

NOTES = f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: notes, namespace: {FLEET}}}
rules:
  - apiGroups: [paceline.io]
    resources: [inferenceservices]
    verbs: [patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: notes, namespace: {FLEET}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: notes}}
subjects: [{{kind: ServiceAccount, name: {ACCOUNT}, namespace: {HOME}}}]
"""


@dataclass(frozen=True)
class Home:
    """Where the system under test lives.

    Attributes:
        environment: of a pod with the operator's service account.
        audit: the API server's log of what that account asked for.
    """

    cluster: Cluster
    environment: dict[str, str]
    audit: Path


@contextmanager
def home(folder: Path, say: Callable[[str], None], *, notes: bool) -> Iterator[Home]:
    """A control plane of its own for the time of a `with` block.

    The scheduler is held still: a pod is taken for running when the simulated kubelet says so, and without a node the
    scheduler would only write that there is none.
    """
    with temporary_cluster(progress=say) as cluster:
        audit = ApiServer(cluster).audit(HOME)
        _without_scheduler(cluster)
        for path in sorted((checkout_root() / "crds").glob("*.yaml")):
            cluster.apply(path.read_text(encoding="utf-8"))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        for namespace in (HOME, FLEET):
            cluster.kubectl("create", "namespace", namespace)
        chart = str(checkout_root() / "charts" / "paceline")
        cluster.apply(
            cluster.helm("template", "fleet", chart, "-n", HOME, "--show-only", "templates/operator-rbac.yaml")
        )
        if notes:
            cluster.apply(NOTES)
        yield Home(cluster, _service_account(cluster, folder), audit)


def _without_scheduler(cluster: Cluster) -> None:
    from paceline_local import processes
    from paceline_local.state import Instance

    instance = Instance(cluster.directory)
    processes.stop([instance.read_parts()["kube-scheduler"].process], 10.0)
    instance.forget_part("kube-scheduler")


def _service_account(cluster: Cluster, folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(cluster.certificate_authority.read_bytes())
    token = cluster.kubectl("create", "token", ACCOUNT, "-n", HOME, "--duration=12h")
    (folder / "token").write_text(token)
    (folder / "namespace").write_text(HOME)
    address = urlsplit(cluster.server)
    kept = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "POD_NAMESPACE")}
    return kept | {
        "KUBERNETES_SERVICE_HOST": address.hostname or "",
        "KUBERNETES_SERVICE_PORT": str(address.port),
        "PACELINE_SERVICEACCOUNT_DIR": str(folder),
        "PACELINE_RUNTIME_IMAGE": "paceline.io/runtime:0.1.0",
        "PACELINE_BIND_HOST": "127.0.0.1",
        "POD_NAME": "operator",
    }
