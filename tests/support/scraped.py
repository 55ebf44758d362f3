"""A real Prometheus that scrapes pages of this process, with the relabelling of local mode's manifest."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

import paceline_local

MANIFEST = Path(paceline_local.__file__).parent / "manifests" / "prometheus-config.yaml"
PORT_NAME = "__meta_kubernetes_pod_container_port_name"

Page = Callable[[str], tuple[bytes, str]]
"""From an `Accept` header to a body and its content type."""


class Served:
    """A `/metrics` page on a port of the loopback address, and what it was last asked with."""

    def __init__(self, page: Page) -> None:
        self.accept = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.accept = self.headers.get("accept", "")
                body, content_type = page(outer.accept)
                self.send_response(200)
                self.send_header("content-type", content_type)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def pod(namespace: str, name: str, address: str, port: str = "metrics", **labels: str) -> dict[str, Any]:
    """A target as the discovery of pods would find it."""
    found = {
        "__meta_kubernetes_namespace": namespace,
        "__meta_kubernetes_pod_name": name,
        "__meta_kubernetes_pod_phase": "Running",
        PORT_NAME: port,
    }
    found |= {f"__meta_kubernetes_pod_label_{label}": value for label, value in labels.items()}
    return {"targets": [address], "labels": found}


class Prometheus:
    """A running one."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an API call; an assertion error where it is no success."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The vector that a query answers now."""
        found: list[dict[str, Any]] = self.get("query", query=promql)["result"]
        return found

    def wait(self, check: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        """The first truthy result."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if found := check():
                    return found
            except OSError:
                pass  # not up yet
            assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
            time.sleep(0.2)


@contextmanager
def prometheus(
    binary: Path, folder: Path, targets: list[Mapping[str, Any]], interval: str = "5s"
) -> Iterator[Prometheus]:
    """A Prometheus with these targets in place of the discovery of pods; all else is the manifest's."""
    config = yaml.safe_load(MANIFEST.read_text())
    config["global"]["scrape_interval"] = config["global"]["evaluation_interval"] = interval
    (job,) = config["scrape_configs"]
    del job["kubernetes_sd_configs"]
    job["static_configs"] = targets
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        str(binary),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--enable-feature=exemplar-storage",
    ]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        running = Prometheus(f"http://{_address(folder / 'log', process)}")
        running.wait(lambda: running.query("up"), "Prometheus with a scrape")
        yield running
    finally:
        process.kill()
        process.wait()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where it listens, from its log: the kernel chose the port."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if "Listening on" in line and "address=" in line:
                return line.partition("address=")[2].split()[0]
        time.sleep(0.1)
    raise AssertionError(f"Prometheus does not listen:\n{log.read_text()}")
