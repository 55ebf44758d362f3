"""A Prometheus with the alerts and an Alertmanager behind it, as processes beside a local cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from e2e_support import eventually

from paceline_local import build, install
from paceline_local.cluster import Cluster
from paceline_observability.alerts import ROUTING, Windows, rule_file

SCRAPE = "2s"


def get(url: str, **parameters: str) -> Any:
    """The JSON that a GET answers."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with urllib.request.urlopen(url + query, timeout=10) as answer:
        return json.load(answer)


@dataclass
class Received:
    """What Alertmanager sent: by receiver, each message as its webhook has it."""

    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def of(self, receiver: str) -> list[dict[str, Any]]:
        """Messages to one receiver so far."""
        return [message for name, message in list(self.messages) if name == receiver]


@dataclass(frozen=True)
class Watch:
    """Prometheus and Alertmanager that watch a cluster."""

    prometheus: str
    alertmanager: str
    received: Received
    amtool: Path

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The answer to an instant query."""
        found: list[dict[str, Any]] = get(f"{self.prometheus}/api/v1/query", query=expr)["data"]["result"]
        return found

    def alerts(self, name: str, **labels: str) -> list[dict[str, Any]]:
        """Alerts of a name that fire now, as Prometheus has them."""
        found = get(f"{self.prometheus}/api/v1/alerts")["data"]["alerts"]
        wanted = {"alertname": name, **labels}.items()
        return [one for one in found if one["state"] == "firing" and wanted <= one["labels"].items()]

    def states(self, name: str) -> set[str]:
        """Whether Alertmanager would tell of alerts of a name: active or suppressed."""
        found = get(f"{self.alertmanager}/api/v2/alerts")
        return {one["status"]["state"] for one in found if one["labels"]["alertname"] == name}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _receiver() -> Iterator[tuple[str, Received]]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            received.messages.append((self.path.strip("/"), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing to the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _process(folder: Path, ready: str, *command: str | Path) -> Iterator[None]:
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(ready, timeout=2):
                return True
        except OSError:
            return False

    try:
        eventually(answers, f"{command[0]} is ready")
        yield
    finally:
        process.terminate()
        process.wait(30)


def alertmanager_config(webhook: str, windows: Windows) -> str:
    """The shipped routing, its waits shortened, with both receivers at a webhook."""
    waits = {key: windows(ROUTING["route"][key]) for key in ("group_wait", "group_interval")}
    receivers = [
        {"name": name, "webhook_configs": [{"url": f"{webhook}/{name}", "send_resolved": True}]}
        for name in ("page", "tickets")
    ]
    return yaml.safe_dump({**ROUTING, "route": ROUTING["route"] | waits, "receivers": receivers}, sort_keys=False)


def prometheus_config(cluster: Cluster, alertmanager: str, windows: Windows, scrape: str) -> str:
    """What local mode's Prometheus scrapes, asked for from outside of the cluster, with rules and where alerts go."""
    manifest = install.prometheus_manifest(cluster.server)
    (shipped,) = [d for d in yaml.safe_load_all(manifest) if d["kind"] == "ConfigMap"]
    config = yaml.safe_load(shipped["data"]["prometheus.yml"])
    for job in config["scrape_configs"]:
        job["kubernetes_sd_configs"] = [{"role": "pod", "kubeconfig_file": str(cluster.kubeconfig)}]
    config["global"] = {"scrape_interval": scrape, "evaluation_interval": windows("30s")}
    config["rule_files"] = ["rules.yaml"]
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    return yaml.safe_dump(config, sort_keys=False)


@contextmanager
def watching(cluster: Cluster, folder: Path, windows: Windows, scrape: str = SCRAPE) -> Iterator[Watch]:
    """Run both for the time of a `with` block; their files and logs are in `folder`. `scrape` is the interval."""
    tools = build.ensure_built(build.ALERTMANAGER)
    prometheus = build.ensure_built(build.PROMETHEUS) / "prometheus"
    ours, theirs = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    with ExitStack() as stack:
        webhook, received = stack.enter_context(_receiver())
        (folder / "alertmanager.yaml").write_text(alertmanager_config(webhook, windows))
        (folder / "rules.yaml").write_text(rule_file(windows))
        (folder / "prometheus.yaml").write_text(prometheus_config(cluster, theirs, windows, scrape))
        start = (
            _process(
                folder,
                f"http://{theirs}/-/ready",
                tools / "alertmanager",
                "--config.file=alertmanager.yaml",
                "--storage.path=alertmanager",
                f"--web.listen-address={theirs}",
                "--cluster.listen-address=",
            ),
            _process(
                folder,
                f"http://{ours}/-/ready",
                prometheus,
                "--config.file=prometheus.yaml",
                "--storage.tsdb.path=prometheus",
                f"--web.listen-address={ours}",
            ),
        )
        for process in start:
            stack.enter_context(process)
        yield Watch(f"http://{ours}", f"http://{theirs}", received, tools / "amtool")
