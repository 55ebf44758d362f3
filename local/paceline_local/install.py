"""Puts Paceline and Prometheus into a local cluster: the real chart by the real helm, and a manifest."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import subprocess
import tempfile
from pathlib import Path

import yaml

from paceline_local import build, network, paths, processes
from paceline_local.cluster import (
    NAMESPACES,
    PROMETHEUS_PORT,
    PROMETHEUS_SERVICE,
    ROUTER_PORT,
    ROUTER_SERVICE,
    Cluster,
)
from paceline_local.errors import LocalError
from paceline_local.progress import INTERVAL_SECONDS, Progress, Waiting, silent, ticks
from paceline_local.status import pod_is_ready, pod_words

RELEASE = "paceline"
RULES = "paceline.rules.yaml"
"""Of the chart's ConfigMap of alerts the key, and the file that Prometheus reads."""
NAMESPACE = NAMESPACES["Paceline"]
HELM_TIMEOUT_SECONDS = 180
HELM_GRACE_SECONDS = 10.0
ROUTER_SERVICE_PORT = 8080
SERVICE_TIMEOUT_SECONDS = 60.0


class InstallError(LocalError):
    """Something installed into the cluster does not become ready; the message has the pods' own words."""


def pods_in_words(cluster: Cluster, namespace: str) -> list[str]:
    """One line for each pod of a namespace."""
    return [
        f"{pod['metadata']['name']}: {pod_words(pod)}" for pod in cluster.get("pods", "--namespace", namespace)["items"]
    ]


def _failure(cluster: Cluster, namespace: str, what: str) -> InstallError:
    lines = [what, *pods_in_words(cluster, namespace)]
    for pod in cluster.get("pods", "--namespace", namespace)["items"]:
        if not pod_is_ready(pod):
            name = pod["metadata"]["name"]
            logs = cluster.run(
                "kubectl", "logs", "--namespace", namespace, name, "--all-containers", "--tail=10", check=False
            )
            lines += [f"--- the end of {name}'s log:", logs.stdout.strip() or logs.stderr.strip()]
    return InstallError("\n".join(lines))


def install_paceline(cluster: Cluster, progress: Progress = silent) -> None:
    """Install or upgrade Paceline from the checkout's chart, and wait until operator and router are ready.

    Raises:
        InstallError: helm refuses the chart, or its pods do not become ready.
    """
    chart = paths.checkout_root() / "charts" / "paceline"
    if not (chart / "Chart.yaml").exists():
        raise InstallError(f"there is no chart in {chart}; `--bare` brings the cluster up without Paceline")
    progress(f"installing Paceline from {chart}")
    clear_interrupted(cluster, RELEASE, NAMESPACE)
    expected = cluster.router_url or expected_router_url(cluster)
    _helm_upgrade(cluster, chart, expected, progress)
    url = _await_service(cluster, ROUTER_SERVICE, ROUTER_PORT, progress)
    if url != expected:
        # The operator writes this address into status.address.url of every service.
        progress(f"telling the operator that the router is at {url}")
        _helm_upgrade(cluster, chart, url, progress)


def clear_interrupted(cluster: Cluster, release: str, namespace: str) -> None:
    """Undo what a killed helm left: a release marked as pending, which makes every later helm refuse to work on it.

    Only for a release that nobody else works on now. A helm of ours that outlived its `up` is ended first. What it had
    applied stays, and the next upgrade takes it over.
    """
    helm = str(cluster.tools / "helm")
    left = [p for p in processes.of_instance(cluster.directory) if processes.command_line(p)[:1] == (helm,)]
    processes.stop(left, HELM_GRACE_SECONDS)
    pending = f"owner=helm,name={release},status in (pending-install,pending-upgrade,pending-rollback)"
    cluster.kubectl("delete", "secret", f"--namespace={namespace}", f"--selector={pending}", "--ignore-not-found")


def expected_router_url(cluster: Cluster) -> str:
    """Where the Service proxy of a new cluster will most likely put the router: at the first address of its range.

    A right guess saves starting the operator twice.
    """
    server = ipaddress.ip_address(cluster.server.removeprefix("https://").split(":")[0])
    addresses = ipaddress.ip_network(network.service_range(server.packed[1])).hosts()
    return f"http://{next(iter(addresses))}:{ROUTER_SERVICE_PORT}"


def upgrade_command(chart: Path, router_url: str) -> list[str]:
    """The command that installs the chart or upgrades to it; what the user has set with helm stays."""
    return [
        *("helm", "upgrade", "--install", RELEASE, str(chart)),
        *("--namespace", NAMESPACE, "--create-namespace", "--wait", f"--timeout={HELM_TIMEOUT_SECONDS}s"),
        # Not --reuse-values: that would keep the defaults of the chart of an earlier checkout as well.
        *("--reset-then-reuse-values", "--set-string", f"operator.publicURL={router_url}"),
    ]


def _helm_upgrade(cluster: Cluster, chart: Path, router_url: str, progress: Progress) -> None:
    command = upgrade_command(chart, router_url)
    with tempfile.TemporaryFile("w+") as output:
        helm = subprocess.Popen(
            [str(cluster.tools / "helm"), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Marked, so that `down` and the next `up` find it if this process is killed.
            env=cluster.environment() | {processes.INSTANCE_VARIABLE: str(cluster.directory)},
        )
        try:
            while True:
                try:
                    status = helm.wait(INTERVAL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    pods = ", ".join(pods_in_words(cluster, NAMESPACE))
                    progress(f"waiting for Paceline: {pods or 'no pods yet'}")
        finally:
            if helm.poll() is None:
                helm.terminate()
                helm.wait()
        output.seek(0)
        said = output.read().strip()
    if status != 0:
        raise _failure(cluster, NAMESPACE, f"`{' '.join(command)}` failed with status {status}:\n{said}")


def _await_service(cluster: Cluster, service: str, port: str, progress: Progress) -> str:
    say = Waiting(progress)
    for waited in ticks(SERVICE_TIMEOUT_SECONDS):
        if url := cluster.service_url(service, port):
            return url
        say(waited, f"waiting for the Service proxy to give {service} an address")
    raise InstallError(
        f"the Service proxy has no address for port {port} of {service} after {SERVICE_TIMEOUT_SECONDS:.0f} s; "
        f"its log is {cluster.directory / 'logs' / 'service-proxy.log'}"
    )


def alert_rules(cluster: Cluster) -> str | None:
    """The alerting rules as the chart put them into the cluster; None where it did not (`monitoring.alerts=false`)."""
    found = cluster.kubectl("get", "configmap", "paceline-alerts", "-n", NAMESPACE, "--ignore-not-found", "-o", "json")
    return str(json.loads(found)["data"][RULES]) if found.strip() else None


def prometheus_manifest(server: str, rules: str | None = None) -> str:
    """The manifest of Prometheus, as a multi-document YAML text.

    Args:
        server: URL of the cluster's API server.
        rules: text of a file of rules, if there are any.
    """
    text = (Path(__file__).parent / "manifests" / "prometheus.yaml").read_text()
    documents = [document for document in yaml.safe_load_all(text) if document]
    config = yaml.safe_load((Path(__file__).parent / "manifests" / "prometheus-config.yaml").read_text())
    for job in config["scrape_configs"]:
        for discovery in job["kubernetes_sd_configs"]:
            discovery["api_server"] = server
    if rules is not None:
        config["rule_files"] = [RULES]
    rendered = yaml.safe_dump(config, sort_keys=False)
    for document in documents:
        if document["kind"] == "ConfigMap":
            document["data"] = {"prometheus.yml": rendered} | ({} if rules is None else {RULES: rules})
        if document["kind"] == "Deployment":
            # Prometheus reads its configuration at its start, so another configuration has to be another pod.
            checksum = hashlib.sha256(f"{rendered}{rules}".encode()).hexdigest()[:16]
            document["spec"]["template"]["metadata"]["annotations"] = {"paceline.io/config-checksum": checksum}
    return yaml.safe_dump_all(documents, sort_keys=False)


def install_prometheus(cluster: Cluster, progress: Progress = silent) -> None:
    """Run Prometheus as a pod that scrapes every container port named `metrics`, with the chart's alerts.

    Returns once it is ready. It has the alerts as they were then: another `up` brings it what the chart has later.

    Raises:
        InstallError: It does not become ready.
        LocalError: It cannot be built.
    """
    build.ensure_built(build.PROMETHEUS, progress)
    progress("starting Prometheus")
    namespace, name = PROMETHEUS_SERVICE.split("/")
    cluster.apply(prometheus_manifest(cluster.server, alert_rules(cluster)))
    say = Waiting(progress)
    for waited in ticks(HELM_TIMEOUT_SECONDS, 0.3):
        deployment = cluster.get("deployment", name, "--namespace", namespace)
        status = deployment.get("status", {})
        current = status.get("observedGeneration") == deployment["metadata"]["generation"]
        if current and status.get("readyReplicas") == status.get("updatedReplicas") == 1:
            break
        say(waited, f"waiting for Prometheus: {', '.join(pods_in_words(cluster, namespace)) or 'no pod yet'}")
    else:
        raise _failure(cluster, namespace, f"Prometheus is not ready after {HELM_TIMEOUT_SECONDS} s")
    _await_service(cluster, PROMETHEUS_SERVICE, PROMETHEUS_PORT, progress)
