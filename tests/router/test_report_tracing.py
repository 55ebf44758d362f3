"""Spans: whose they are, what they say, and how they get to a collector."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from finished_exchange import Over

from paceline_router.report import otlp
from paceline_router.report.observer import Observer
from paceline_router.report.otlp import Exporter, address, export, from_environment, spans_of
from paceline_router.report.tracing import QUEUE, Sampling, Trace, Tracer
from paceline_router.wire import heads

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + b"0"
TRACE = Trace("0" * 31 + "1", "", "a" * 16, "b" * 16)


class Collector:
    """Takes posts, with the statuses it is told to answer, then 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.posts: list[tuple[str, dict[str, str], Any]] = []
        self.came = threading.Semaphore(0)
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.posts.append((self.path, headers, json.loads(body)))
                self.send_response(collector.statuses.pop(0) if collector.statuses else 200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")
                collector.came.release()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[dict[str, Any]]:
        return [
            span
            for _, _, body in self.posts
            for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


def begun(tracer: Tracer, traceparent: bytes | None) -> Trace:
    trace = tracer.begin(traceparent)
    assert trace is not None
    return trace


# Identifiers


def test_a_clients_trace_goes_on_with_the_routers_span_as_the_replicas_parent() -> None:
    trace = begun(Tracer(Sampling()), PARENT)
    assert (trace.trace, trace.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert trace.traceparent() == f"00-{trace.trace}-{trace.client}-01".encode()
    assert len({trace.parent, trace.server, trace.client}) == 3


def test_identifiers_are_valid_and_new_for_every_request() -> None:
    tracer = Tracer(Sampling())
    made = [begun(tracer, None) for _ in range(200)]
    for trace in made:
        headers = {heads.TRACE_PARENT: trace.traceparent()}
        heads.drop_bad_trace(headers)
        assert headers
        assert re.fullmatch("[0-9a-f]{16}", trace.server)
        assert trace.parent == ""
    assert len({trace.trace for trace in made}) == 200
    assert len({span for trace in made for span in (trace.server, trace.client)}) == 400


def test_who_decides_whether_a_request_is_traced() -> None:
    everything, nothing = Sampling(1.0), Sampling(0.0)
    assert Tracer(everything).begin(UNSAMPLED) is None
    assert Tracer(nothing).begin(None) is None
    assert Tracer(nothing).begin(PARENT) is not None
    assert Tracer(Sampling(0.0, follow=False)).begin(PARENT) is None
    assert Tracer(Sampling(1.0, follow=False)).begin(UNSAMPLED) is not None
    half = Tracer(Sampling(0.5))
    assert 300 < sum(half.begin(None) is not None for _ in range(1000)) < 700


@pytest.mark.parametrize(
    ("env", "sampling"),
    [
        ({}, Sampling(1.0, True)),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, Sampling(0.0, False)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, Sampling(0.0, True)),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, Sampling(0.25, False)),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
            Sampling(0.1, True),
        ),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, Sampling(0.0, True)),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "x"}, Sampling(0.0, True)),
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, Sampling(0.0, True)),
    ],
)
def test_opentelemetrys_variables_choose_the_sampling(env: dict[str, str], sampling: Sampling) -> None:
    assert Sampling.from_environment(env) == sampling


# Off and on


@pytest.mark.parametrize("env", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}])
def test_without_a_collector_nothing_is_traced(env: dict[str, str]) -> None:
    tracer, exporter = from_environment(env)
    assert not tracer.on
    assert exporter is None


def test_addresses_are_those_of_the_specification() -> None:
    assert address({}) is None
    assert address({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}) == "http://c:4318/v1/traces"
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}
    assert address(both) == "http://t/x"


# What spans say


def kept(exchange: Over) -> list[dict[str, Any]]:
    tracer = Tracer(Sampling())
    exchange.trace = TRACE if exchange.trace is None else exchange.trace
    Observer(tracer).finished(exchange)
    [record] = tracer.take(10)
    return spans_of(record)


def test_spans_have_the_times_that_were_measured() -> None:
    server, queue, client = kept(Over(parked_at=100.0, admitted_at=100.0005))
    ids = [(span["name"], span["kind"], span["spanId"], span.get("parentSpanId")) for span in (server, queue, client)]
    assert ids[0] == ("POST /v1/chat/completions", 2, "a" * 16, None)
    assert ids[1][::3] == ("queue", "a" * 16)
    assert ids[2] == ("replica", 3, "b" * 16, "a" * 16)
    assert len({span["spanId"] for span in (server, queue, client)}) == 3

    def lasted(span: dict[str, Any]) -> float:
        return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9

    assert lasted(server) == pytest.approx(0.3, abs=1e-6)
    assert lasted(queue) == pytest.approx(0.0005, abs=1e-6)
    assert lasted(client) == pytest.approx(0.299, abs=1e-6)
    [event] = client["events"]
    assert (int(event["timeUnixNano"]) - int(server["startTimeUnixNano"])) / 1e9 == pytest.approx(0.1, abs=1e-6)
    found = {item["key"]: item["value"] for item in server["attributes"]}
    assert found["http.response.status_code"] == {"intValue": "200"}
    assert found["paceline.pool"] == {"stringValue": "default"}
    assert found["gen_ai.usage.output_tokens"] == {"intValue": "11"}
    assert not {"status"} & (server.keys() | client.keys())


def test_a_failure_shows_and_what_did_not_happen_has_no_span() -> None:
    never = {"sent_at": 0.0, "first_byte_at": 0.0, "attempts": 0, "status": 503, "replica": ""}
    [server] = kept(Over(outcome="5xx", **never))
    assert server["status"] == {"code": 2, "message": "5xx"}
    assert "paceline.replica" not in {item["key"] for item in server["attributes"]}


def test_a_queue_that_is_full_drops_and_counts() -> None:
    tracer = Tracer(Sampling())
    for _ in range(QUEUE + 7):
        tracer.finished(Over(), TRACE)
    assert tracer.dropped == 7
    assert len(tracer.take(10**6)) == QUEUE
    assert tracer.take(1) == []


# To the collector


def test_spans_arrive_with_headers_and_resource(collector: Collector) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20s3cret, x-org = a",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,nonsense",
        "OTEL_SERVICE_NAME": "edge",
    }
    tracer, exporter = from_environment(env)
    assert tracer.on
    assert exporter is not None
    exporter.start()
    for _ in range(3):
        exchange = Over(trace=begun(tracer, PARENT))
        Observer(tracer).finished(exchange)
    exporter.stop()
    path, headers, body = collector.posts[0]
    assert path == "/v1/traces"
    assert headers["content-type"] == "application/json"
    assert (headers["authorization"], headers["x-org"]) == ("Bearer s3cret", "a")
    resource = {
        item["key"]: item["value"]["stringValue"] for item in body["resourceSpans"][0]["resource"]["attributes"]
    }
    assert resource == {"service.name": "edge", "deployment.environment": "test"}
    spans = collector.spans()
    assert len(spans) == 6
    assert {span["traceId"] for span in spans} == {"0af7651916cd43dd8448eb211c80319c"}
    assert {span["parentSpanId"] for span in spans if span["kind"] == 2} == {"b7ad6b7169203331"}
    assert (tracer.sent, tracer.lost) == (3, 0)


def test_spans_go_out_in_batches_while_the_router_runs(collector: Collector) -> None:
    tracer = Tracer(Sampling())
    exporter = Exporter(tracer, collector.url, delay=0.01)
    exporter.start()
    try:
        tracer.finished(Over(), TRACE)
        assert collector.came.acquire(timeout=10)
    finally:
        exporter.stop()
    assert tracer.sent == 1


@pytest.mark.parametrize(("statuses", "sent", "posts"), [([503, 429], 1, 3), ([400], 0, 1), ([503] * 9, 0, 3)])
def test_a_busy_collector_is_asked_again_and_a_refusal_is_final(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, statuses: list[int], sent: int, posts: int
) -> None:
    monkeypatch.setattr(otlp, "AGAIN_AFTER", (0.01, 0.01))
    collector.statuses = statuses
    tracer = Tracer(Sampling())
    tracer.finished(Over(), TRACE)
    exporter = Exporter(tracer, collector.url, delay=0.01)
    exporter.start()
    for _ in range(posts):
        assert collector.came.acquire(timeout=10)
    exporter.stop()
    assert (tracer.sent, tracer.lost) == (sent, 1 - sent)
    assert len(collector.posts) == posts


def test_a_collector_that_is_away_costs_the_spans_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "AGAIN_AFTER", ())
    tracer = Tracer(Sampling())
    tracer.finished(Over(), TRACE)
    exporter = Exporter(tracer, f"http://127.0.0.1:{closed_port}")
    exporter.start()
    exporter.stop()
    assert (tracer.sent, tracer.lost) == (0, 1)
    assert "did not take a batch" in caplog.text


def test_the_body_is_otlp_in_json() -> None:
    tracer = Tracer(Sampling())
    tracer.finished(Over(), TRACE)
    body = json.loads(json.dumps(export(tracer.take(1), {"service.name": "r"})))
    [resource] = body["resourceSpans"]
    [scope] = resource["scopeSpans"]
    for span in scope["spans"]:
        # Identifiers are hex and 64-bit numbers are text: that is where OTLP's JSON differs from protobuf's.
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9]{19}", span["startTimeUnixNano"])
        assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"])
