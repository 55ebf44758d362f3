"""Nodes, Service proxy and Prometheus as parts of an instance: up, repair, fewer nodes, down with pods."""

from __future__ import annotations

import json
import os
import signal
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from paceline_local import install, lifecycle, processes
from paceline_local.cluster import Cluster
from paceline_local.progress import ticks
from paceline_local.state import Instance, Shape
from paceline_local.testing import temporary_cluster

pytestmark = pytest.mark.cluster

Found = TypeVar("Found")

# Answers with its own name at /, and with one metric at /metrics.
SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"answers_total 42\\n" if self.path == "/metrics" else os.environ["HOSTNAME"].encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer((os.environ["PACELINE_BIND_HOST"], 8000), Handler).serve_forever()
"""


def workload(replicas: int, node: str | None = None) -> str:
    labels = {
        "app": "w",
        "paceline.io/service": "chat",
        "paceline.io/pool": "default",
        "paceline.io/pool-hash": "abc12",
    }
    container = {
        "name": "server",
        "image": "paceline.io/shell:local",
        "command": ["python3", "-c", SERVER],
        "ports": [{"name": "metrics", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "metrics"}, "periodSeconds": 1},
    }
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "w"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "w"}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "w"},
        "spec": {"selector": {"app": "w"}, "ports": [{"name": "http", "port": 80, "targetPort": "metrics"}]},
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [deployment, service]})


def eventually(question: Callable[[], Found | None], timeout: float = 60.0) -> Found:
    for _ in ticks(timeout, 0.2):
        found = question()
        if found:
            return found
    raise AssertionError(f"still {found!r} after {timeout} s")


def names_behind(url: str, requests: int = 20) -> set[str]:
    return {urllib.request.urlopen(url, timeout=10).read().decode() for _ in range(requests)}


def ready_pods(cluster: Cluster) -> set[str]:
    pods = cluster.get("pods", "-l", "app=w")["items"]
    return {
        pod["metadata"]["name"]
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary_cluster(nodes=2, gpus_per_node=8) as made:
        yield made


def test_nodes_register_with_what_they_were_given(cluster: Cluster) -> None:
    nodes = {node["metadata"]["name"]: node["status"]["capacity"] for node in cluster.get("nodes")["items"]}
    assert set(nodes) == {"node-0", "node-1"}
    assert {capacity["nvidia.com/gpu"] for capacity in nodes.values()} == {"8"}
    status = lifecycle.status(cluster.directory)
    assert status is not None
    assert status.works
    assert [part.name for part in status.parts][-3:] == ["node-0", "node-1", "service-proxy"]


def test_a_service_has_one_local_url_for_all_its_ready_pods(cluster: Cluster) -> None:
    cluster.apply(workload(2))
    pods = eventually(lambda: ready_pods(cluster) if len(ready_pods(cluster)) == 2 else None)
    url = eventually(lambda: cluster.service_url("default/w", "http"))
    eventually(lambda: names_behind(url) == pods)


def test_prometheus_scrapes_ports_named_metrics_and_labels_them(cluster: Cluster) -> None:
    cluster.apply(workload(2))
    install.install_prometheus(cluster)
    url = cluster.prometheus_url
    assert url is not None

    def scraped() -> list[dict[str, str]] | None:
        query = urllib.parse.urlencode({"query": "answers_total == 42"})
        answer = json.loads(urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10).read())
        found = [series["metric"] for series in answer["data"]["result"]]
        return found if len(found) == 2 else None

    series = eventually(scraped)
    assert {metric["pod"] for metric in series} == ready_pods(cluster)
    for metric in series:
        assert (metric["namespace"], metric["service"]) == ("default", "chat")
        assert (metric["pool"], metric["revision"]) == ("default", "abc12")
    # Once more changes nothing: the same pod goes on.
    before = cluster.get("pods", "--namespace=paceline-monitoring")["items"]
    install.install_prometheus(cluster)
    after = cluster.get("pods", "--namespace=paceline-monitoring")["items"]
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]


def test_pods_survive_a_crash_of_their_node_which_up_repairs(cluster: Cluster) -> None:
    cluster.apply(workload(2))
    pods = eventually(lambda: ready_pods(cluster) if len(ready_pods(cluster)) == 2 else None)
    url = eventually(lambda: cluster.service_url("default/w", "http"))
    instance = Instance(cluster.directory)
    for name in ("node-0", "service-proxy"):
        os.kill(instance.read_parts()[name].process.pid, signal.SIGKILL)

    def crashed() -> set[str]:
        status = lifecycle.status(cluster.directory)
        assert status is not None
        return {part.name for part in status.parts if part.state == "crashed"}

    eventually(lambda: crashed() == {"node-0", "service-proxy"})
    lifecycle.start_instance(cluster.directory, lambda shape: shape or Shape())
    assert crashed() == set()
    assert ready_pods(cluster) == pods
    assert cluster.service_url("default/w", "http") == url
    eventually(lambda: names_behind(url) == pods)


def test_a_node_that_is_no_longer_asked_for_goes_and_its_pods_move(cluster: Cluster) -> None:
    cluster.apply(workload(4))
    eventually(lambda: len(ready_pods(cluster)) == 4)
    on_second = {pod["metadata"]["name"] for pod in pods_on(cluster, "node-1")}
    assert on_second
    lifecycle.start_instance(cluster.directory, lambda shape: replace(shape or Shape(), nodes=1))
    assert [node["metadata"]["name"] for node in cluster.get("nodes")["items"]] == ["node-0"]
    pods = eventually(lambda: ready_pods(cluster) if len(ready_pods(cluster)) == 4 else None, 120)
    assert not pods & on_second
    assert {pod["metadata"]["name"] for pod in pods_on(cluster, "node-0")} >= pods


def pods_on(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get("pods", "-l", "app=w", f"--field-selector=spec.nodeName={node}")["items"]
    return found


def test_down_ends_the_pods_too(cluster: Cluster) -> None:
    """The module's last test: it takes the cluster down."""
    cluster.apply(workload(2))
    eventually(lambda: ready_pods(cluster))
    assert any("ThreadingHTTPServer" in command for command in commands_of(cluster.directory))
    lifecycle.down(cluster.directory)
    assert commands_of(cluster.directory) == []


def commands_of(directory: Path) -> list[str]:
    found = []
    for process in processes.of_instance(directory):
        found.append(Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found
