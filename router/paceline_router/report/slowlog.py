"""The slow-request log: a JSON object a line, with all that tells why a request took long, and nothing that it said.

Neither prompt nor answer nor key is ever in it, so it may be kept and passed on.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from paceline_router.report.finished import Finished
from paceline_router.report.labels import NONE
from paceline_router.report.service import SHAPE_LABELS
from paceline_router.report.timing import TO_FIRST_TOKEN, parts, span_seconds

log = logging.getLogger("paceline.slow")

PER_SECOND = 10.0
BURST = 50.0


class SlowLog:
    """Writes at most `PER_SECOND` lines a second after the first `BURST`; the next line says how many were left out."""

    __slots__ = ("_at", "_left", "_left_out")

    def __init__(self) -> None:
        self._left = BURST
        self._at = 0.0
        self._left_out = 0

    def write(self, exchange: Finished) -> None:
        """Log a request that was slow."""
        now = exchange.ended_at
        self._left = min(BURST, self._left + max(0.0, now - self._at) * PER_SECOND)
        self._at = now
        if self._left < 1.0:
            self._left_out += 1
            return
        self._left -= 1.0
        left_out, self._left_out = self._left_out, 0
        record = fields(exchange)
        if left_out:
            record["left_out_before"] = left_out
        log.warning("%s", json.dumps(record, separators=(",", ":")))


def fields(exchange: Finished) -> dict[str, Any]:
    """What is logged of a request. What is not known is left out; times are milliseconds."""
    it = parts(exchange, exchange.ended_at)
    to_first = span_seconds(exchange.engine_timing or b"", TO_FIRST_TOKEN)
    ttft = it.first_byte if exchange.stream else None
    if ttft is None and to_first >= 0.0 and exchange.sent_at:
        ttft = exchange.sent_at - exchange.started_at + to_first
    tokens = exchange.output_tokens
    gaps = tokens / max(1, exchange.choices) - 1.0 if tokens is not None else 0.0
    trace = exchange.traceparent.split(b"-") if exchange.traceparent else []
    found: dict[str, Any] = {
        "revision": exchange.revision or None,
        "service": exchange.service,
        "pool": exchange.pool or None,
        "event": "slow_request",
        "request_id": exchange.request_id.decode("latin-1"),
        "trace_id": trace[1].decode("latin-1") if len(trace) > 1 else None,
        "path": exchange.path.decode("latin-1"),
        "outcome": exchange.outcome,
        "status": exchange.status or None,
        "tenant": None if exchange.tenant_label == NONE else exchange.tenant_label,
        "shape": SHAPE_LABELS[exchange.shape] if exchange.shape >= 0 else None,
        "prompt_version": exchange.prompt_version or None,
        "replica": exchange.replica or None,
        "reason": exchange.reason() or None,
        "attempts": exchange.attempts,
        "concurrency": exchange.concurrency,
        "stream": exchange.stream,
        "prompt_tokens": exchange.prompt_tokens,
        "output_tokens": tokens,
        "total_ms": it.total,
        "queue_ms": it.wait,
        "router_ms": it.router,
        "engine_queue_ms": it.engine_queue,
        "engine_ms": it.engine,
        "net_ms": it.net,
        "ttft_ms": ttft,
        "tpot_ms": (it.total - ttft) / gaps if ttft is not None and gaps > 0.0 and exchange.outcome == "2xx" else None,
    }
    return {
        name: round(value * 1000.0, 3) if name.endswith("_ms") else value
        for name, value in found.items()
        if value is not None
    }


def to_stderr() -> None:
    """Write the lines bare, so that a collector of logs reads each as JSON, and whatever the level of other logs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]  # once, however often it is asked for
    log.setLevel(logging.WARNING)
    log.propagate = False
