"""The least that the external metrics API asks of an adapter: one metric, whose value a test gives."""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from self_signed import certify

from paceline_local.cluster import Cluster

API = "external.metrics.k8s.io/v1beta1"
NAME = "v1beta1.external.metrics.k8s.io"
HOME = "kube-system"


def _handler(metric: str, value: Callable[[], float]) -> type[BaseHTTPRequestHandler]:
    resource = {
        "name": metric,
        "singularName": "",
        "namespaced": True,
        "kind": "ExternalMetricValueList",
        "verbs": ["get"],
    }
    listed = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API, "resources": [resource]}
    asked = re.compile(rf"/apis/{API}/namespaces/[^/]+/{re.escape(metric)}(\?.*)?")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body: dict[str, Any] | None = None
            if self.path.split("?")[0] == f"/apis/{API}":
                body = listed
            elif asked.fullmatch(self.path):
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                one = {"metricName": metric, "metricLabels": {}, "timestamp": now, "value": str(round(value()))}
                body = {"kind": "ExternalMetricValueList", "apiVersion": API, "metadata": {}, "items": [one]}
            text = json.dumps(body or {}).encode()
            self.send_response(200 if body else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    return Handler


@contextmanager
def adapter(cluster: Cluster, folder: Path, metric: str, value: Callable[[], float]) -> Iterator[None]:
    """Serve a metric to a cluster's controllers, through its API server.

    Args:
        folder: for a certificate.
        value: the sum over all that the metric is about.
    """
    certificate, key = certify(folder, "metrics-adapter")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(metric, value))
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    # No cluster address leads to a process on this machine; a name does.
    outside = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "metrics-adapter", "namespace": HOME},
        "spec": {"type": "ExternalName", "externalName": "127.0.0.1"},
    }
    registered = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": NAME},
        "spec": {
            "group": API.split("/")[0],
            "version": API.split("/")[1],
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": "metrics-adapter", "namespace": HOME, "port": server.server_port},
        },
    }
    try:
        cluster.apply("---\n".join(json.dumps(one) + "\n" for one in (outside, registered)))
        cluster.kubectl("wait", "--for=condition=Available", f"apiservice/{NAME}", "--timeout=60s")
        yield
    finally:
        # An API that nobody serves would keep every namespace from being deleted.
        cluster.kubectl("delete", "apiservice", NAME, "--ignore-not-found")
        cluster.kubectl("delete", "service", "metrics-adapter", "-n", HOME, "--ignore-not-found")
        server.shutdown()
        thread.join()
        server.server_close()
