"""The adapter on the real Prometheus: what it gives, and what becomes of it when a part of the way breaks."""

from __future__ import annotations

import asyncio
import base64
import math
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from self_signed import certify

from paceline_autoscaler.observed import Signals
from paceline_autoscaler.prometheus import Access, PrometheusSource, refusal
from paceline_autoscaler.queries import matchers
from paceline_autoscaler.samples import Absent, NotANumber, Present, Sample
from paceline_autoscaler.source import Pool
from paceline_local.build import prometheus_binary

BOUND = 60.0
LABELS = {"namespace": "demo", "service": "chat", "pool": "default"}
POOL = Pool(**LABELS, pods=("a", "b"), max_running=64)


class Exporter:
    """A replica's `/metrics`."""

    def __init__(self, waiting: str = "3", kv: float = 0.25) -> None:
        self.waiting, self.kv, self.started = waiting, kv, time.monotonic()
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def text(self) -> str:
        made = int(100 * (time.monotonic() - self.started))
        return (
            f"vllm:num_requests_waiting {self.waiting}\nvllm:num_requests_running 5\n"
            f"vllm:kv_cache_usage_perc {self.kv}\npaceline_prefill_tokens 700\n"
            f"vllm:generation_tokens_total {made}\npaceline_prefill_tokens_computed_total {10 * made}\n"
            f'paceline_requests_received_total{{endpoint="chat"}} {made}\n'
        )

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prometheus(
    folder: Path, targets: dict[str, int], web: dict[str, object] | None = None
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A Prometheus that scrapes pods at ports every second; its port and process."""
    binary = prometheus_binary()
    if binary is None:
        pytest.skip("Prometheus is not built: paceline local build --prometheus")
    static = [{"targets": [f"127.0.0.1:{port}"], "labels": {**LABELS, "pod": pod}} for pod, port in targets.items()]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [{"job_name": "pods", "static_configs": static}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        str(binary),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    if web is not None:
        (folder / "web.yml").write_text(yaml.safe_dump(web))
        command.append(f"--web.config.file={folder / 'web.yml'}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield port, process
    finally:
        process.kill()
        process.wait()


def until(source: PrometheusSource, holds: Callable[[Signals], bool], pool: Pool = POOL) -> Signals:
    """Ask until something holds of the answer."""
    end = time.monotonic() + BOUND
    while True:
        signals = asyncio.run(source.signals(pool))
        if holds(signals):
            return signals
        assert time.monotonic() < end, signals
        time.sleep(0.2)


def whole(signals: Signals) -> bool:
    return isinstance(signals.waiting, Present) and signals.waiting.complete and isinstance(signals.decode, Present)


@pytest.mark.long
def test_signals_of_a_pool_and_what_breaks_them(tmp_path: Path) -> None:
    a, b = Exporter("3"), Exporter("4", kv=0.5)
    ports = {"a": a.server.server_port, "b": b.server.server_port}
    with prometheus(tmp_path, ports) as (port, process):
        source = PrometheusSource(Access(f"http://127.0.0.1:{port}"), interval=1.0, window=5.0)
        signals = until(source, whole)
        assert isinstance(signals.waiting, Present)
        assert signals.waiting.value == 7.0
        assert isinstance(signals.kv, Present)
        assert signals.kv.value == 0.5
        assert isinstance(signals.decode, Present)
        assert signals.decode.value > 0
        assert signals.held == Absent("no series"), "no router is scraped here"
        assert signals.wait_p99 == Absent("no series")
        assert isinstance(asyncio.run(source.signals(Pool("demo", "other", "default"))).waiting, Absent)

        def number(query: str) -> Sample:
            return asyncio.run(source.value(query))

        assert isinstance(one := number('sum(vllm:num_requests_waiting{pod=~"a|b"})'), Present)
        assert one.value == 7.0
        assert isinstance(scalar := number("-2.5"), Present)
        assert scalar.value == -2.5
        assert isinstance(number("vllm:num_requests_waiting * 0 / 0"), Absent), "one of each pod"
        assert isinstance(number("sum(vllm:num_requests_waiting) * 0 / 0"), NotANumber)
        assert number("nothing_of_the_kind") == Absent("no series, or none that was scraped lately")
        assert isinstance(wrong := number("sum("), Absent)
        assert "parse error" in wrong.reason

        b.stop()
        partial = until(source, lambda now: isinstance(now.waiting, Present) and not now.waiting.complete)
        assert isinstance(partial.waiting, Present)
        assert (partial.waiting.low, partial.waiting.missing) == (3.0, 1)
        assert math.isinf(partial.waiting.high)
        assert isinstance(partial.running, Present)
        assert partial.running.high == 5.0 + 64.0

        end = time.monotonic() + BOUND
        while not isinstance(gone := number('vllm:num_requests_waiting{pod="b"}'), Absent):
            assert time.monotonic() < end, gone
            time.sleep(0.2)

        a.waiting = "NaN"
        until(source, lambda now: isinstance(now.waiting, NotANumber))

        process.kill()
        process.wait()
        down = until(source, lambda now: isinstance(now.waiting, Absent))
        assert isinstance(down.waiting, Absent)
        assert "does not answer" in down.waiting.reason
        source.close()
    a.stop()


@pytest.mark.long
def test_mutual_tls_with_an_own_authority(tmp_path: Path) -> None:
    cert, key = certify(tmp_path, "prometheus")
    a = Exporter()
    web = {
        "tls_server_config": {
            "cert_file": str(cert),
            "key_file": str(key),
            "client_auth_type": "RequireAnyClientCert",
        }
    }
    with prometheus(tmp_path, {"a": a.server.server_port}, web) as (port, _):
        url = f"https://127.0.0.1:{port}"
        pool = Pool(**LABELS, pods=("a",))
        right = PrometheusSource(Access(url, ca_file=cert, cert_file=cert, key_file=key), 1.0, 5.0)
        until(right, whole, pool)
        for access in (Access(url, cert_file=cert, key_file=key), Access(url, ca_file=cert)):
            wrong = PrometheusSource(access, 1.0, 5.0)
            waiting = asyncio.run(wrong.signals(pool)).waiting
            assert isinstance(waiting, Absent)
            assert "SSL" in waiting.reason
            wrong.close()
        right.close()
    a.stop()


@contextmanager
def gate(**wanted: str) -> Iterator[tuple[str, list[str]]]:
    """A stand-in for the proxy in front of a Prometheus of many tenants: it lets only certain headers through."""
    refused: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            wrong = [name for name, value in wanted.items() if self.headers.get(name.replace("_", "-")) != value]
            refused.extend(wrong)
            body = b'{"status":"success","data":{"resultType":"vector","result":[1.0,"1.0"]}}'
            if "time%28%29" not in self.path:
                body = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
            self.send_response(401 if wrong else 200)
            self.send_header("Content-Length", str(0 if wrong else len(body)))
            self.end_headers()
            if not wrong:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", refused
    server.shutdown()
    server.server_close()


def asked(access: Access) -> Signals:
    source = PrometheusSource(access, 15.0, 60.0)
    try:
        return asyncio.run(source.signals(Pool("demo", "chat", "default")))
    finally:
        source.close()


def test_a_bearer_token_is_read_anew_and_goes_with_the_tenants_header(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    with gate(Authorization="Bearer new", X_Scope_OrgID="team") as (url, refused):
        source = PrometheusSource(Access(url, token_file=token, headers={"X-Scope-OrgID": "team"}), 15.0, 60.0)
        pool = Pool("demo", "chat", "default")
        before = asyncio.run(source.signals(pool)).waiting
        assert isinstance(before, Absent)
        assert "401" in before.reason
        token.write_text("new\n")
        assert asyncio.run(source.signals(pool)).waiting == Absent("no series")
        assert refused == ["Authorization"]
        source.close()


def test_a_user_and_password_are_sent(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    basic = "Basic " + base64.b64encode(b"me:secret").decode()
    with gate(Authorization=basic) as (url, refused):
        assert asked(Access(url, user="me", password_file=password)).waiting == Absent("no series")
    assert refused == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b'{"status":"error","errorType":"bad_data","error":"invalid parameter \\"query\\": 1:55: parse error"}',
            'Prometheus answers 400: invalid parameter "query": 1:55: parse error',
        ),
        (b'<html>it\'s "closed"</html>', "Prometheus answers 400: without a reason that can be read"),
        (b"", "Prometheus answers 400: without a reason that can be read"),
        (b"[]", "Prometheus answers 400: without a reason that can be read"),
    ],
)
def test_a_query_that_cannot_be_read_is_told_in_prometheus_own_words(content: bytes, words: str) -> None:
    assert refusal(f"HTTP Status Code 400 ({content!r})") == words


def test_a_refusal_of_another_form_is_told_as_it_is() -> None:
    assert refusal("no such\nthing") == "Prometheus refuses: no such thing"


def test_a_missing_secret_is_no_crash(tmp_path: Path) -> None:
    waiting = asked(Access("http://127.0.0.1:9", token_file=tmp_path / "none")).waiting
    assert isinstance(waiting, Absent)
    assert "No such file" in waiting.reason


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "prometheus:9090"}, "http://"),
        ({"url": "http://p", "token_file": Path("t"), "user": "u"}, "not both"),
        ({"url": "http://p", "user": "u"}, "password"),
        ({"url": "http://p", "cert_file": Path("c")}, "key"),
    ],
)
def test_half_an_access_is_refused_with_words(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Access(**given)  # type: ignore[arg-type]


def test_labels_are_escaped() -> None:
    assert matchers(pool='a"b\\c') == '{pool="a\\"b\\\\c"}'
