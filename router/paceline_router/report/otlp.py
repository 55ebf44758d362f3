"""Spans on their way to a collector: OTLP over HTTP in its JSON form, in a thread of its own."""

from __future__ import annotations

import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from paceline_router.report.tracing import ENDPOINT, TRACES_ENDPOINT, Record, Sampling, Tracer

log = logging.getLogger(__name__)

BATCH = 512
DELAY_SECONDS = 5.0
TIMEOUT_SECONDS = 10.0
AGAIN_AFTER = (1.0, 4.0)
"""Seconds before a batch that a collector was too busy for, or not there for, is sent again; after that it is lost."""

_TRY_AGAIN = frozenset([429, 502, 503, 504])

_INTERNAL, _SERVER, _CLIENT = 1, 2, 3
_ERROR = 2


def address(env: Mapping[str, str]) -> str | None:
    """Where spans go by OpenTelemetry's variables; None: nowhere."""
    whole = env.get(TRACES_ENDPOINT, "").strip()
    if whole:
        return whole
    base = env.get(ENDPOINT, "").strip()
    return f"{base.rstrip('/')}/v1/traces" if base else None


def from_environment(env: Mapping[str, str]) -> tuple[Tracer, Exporter | None]:
    """A tracer by OpenTelemetry's variables, and what sends its spans. Without an address both do nothing."""
    url = address(env)
    if url is None or env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Tracer(), None
    tracer = Tracer(Sampling.from_environment(env))
    resource = {"service.name": "paceline-router", **_pairs(env.get("OTEL_RESOURCE_ATTRIBUTES", ""))}
    if env.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = env["OTEL_SERVICE_NAME"]
    headers = _pairs(env.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or env.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    return tracer, Exporter(tracer, url, headers, resource)


class Exporter:
    """Takes what a tracer has kept and posts it."""

    def __init__(
        self,
        tracer: Tracer,
        url: str,
        headers: Mapping[str, str] | None = None,
        resource: Mapping[str, str] | None = None,
        delay: float = DELAY_SECONDS,
    ) -> None:
        self._tracer = tracer
        self._url = url
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._resource = resource or {}
        self._delay = delay
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is there, once, and end."""
        self._stop.set()
        self._thread.join(timeout=TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._delay):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while records := self._tracer.take(BATCH):
            body = json.dumps(export(records, self._resource), separators=(",", ":")).encode()
            if self._post(body):
                self._tracer.sent += len(records)
            else:
                self._tracer.lost += len(records)

    def _post(self, body: bytes) -> bool:
        for pause in (*AGAIN_AFTER, None):
            try:
                request = urllib.request.Request(self._url, body, self._headers)
                with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
                    return True
            except urllib.error.HTTPError as exc:
                trouble, again = f"it answered {exc.code}", exc.code in _TRY_AGAIN
                exc.close()
            except (OSError, ValueError) as exc:
                trouble, again = str(exc), isinstance(exc, OSError)
            if not again or pause is None or self._stop.wait(pause):
                break
        log.warning("the collector of traces at %s did not take a batch: %s", self._url, trouble)
        return False


def export(records: Sequence[Record], resource: Mapping[str, str]) -> dict[str, Any]:
    """The body of `ExportTraceServiceRequest`."""
    spans = [span for record in records for span in spans_of(record)]
    scope = {"scope": {"name": "paceline_router"}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def spans_of(record: Record) -> list[dict[str, Any]]:
    """The request at the router, and inside it its wait and its time at the replica, if it had them."""
    trace = record.trace
    failed = record.outcome in ("5xx", "broken_stream")

    def at(moment: float) -> str:
        return str(int((record.ended_unix - (record.ended_at - moment)) * 1e9))

    def span(name: str, span_id: str, parent: str, kind: int, begin: float, end: float) -> dict[str, Any]:
        made: dict[str, Any] = {"traceId": trace.trace, "spanId": span_id, "name": name, "kind": kind}
        if parent:
            made["parentSpanId"] = parent
        return {**made, "startTimeUnixNano": at(begin), "endTimeUnixNano": at(end)}

    server = span(f"POST {record.path}", trace.server, trace.parent, _SERVER, record.started_at, record.ended_at)
    attributes: dict[str, str | int] = {"http.request.method": "POST", "url.path": record.path, **record.attributes}
    if record.status:
        attributes["http.response.status_code"] = record.status
    server["attributes"] = _attributes(attributes)
    if failed:
        server["status"] = {"code": _ERROR, "message": record.outcome}
    spans = [server]
    if record.parked_at:
        # Its id is no secret and needs no chance: it differs from both others.
        queue_id = f"{int(trace.server, 16) ^ int(trace.client, 16):016x}"
        until = record.parked_at + record.parked_for
        spans.append(span("queue", queue_id, trace.server, _INTERNAL, record.parked_at, until))
    if record.sent_at:
        client = span("replica", trace.client, trace.server, _CLIENT, record.sent_at, record.ended_at)
        if record.first_byte_at:
            client["events"] = [{"timeUnixNano": at(record.first_byte_at), "name": "first byte"}]
        if failed:
            client["status"] = {"code": _ERROR}
        spans.append(client)
    return spans


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


def _pairs(text: str) -> dict[str, str]:
    """`a=1,b=2`, percent-encoded, as OpenTelemetry's variables have it. What is no pair is passed over."""
    pairs = (item.partition("=") for item in text.split(","))
    return {name.strip(): unquote(value.strip()) for name, equals, value in pairs if equals and name.strip()}
