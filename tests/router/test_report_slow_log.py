"""The log of slow requests: everything about them but what they said."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from finished_exchange import Over

from paceline_crds.routing import RoutingSpec
from paceline_router.report.observer import Observer
from paceline_router.report.slowlog import BURST, PER_SECOND, SlowLog, fields, log, to_stderr
from paceline_router.report.tracing import Tracer
from paceline_router.table.policy import make_policy

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.message) for record in caplog.records if record.name == "paceline.slow"]


def test_a_line_has_all_that_tells_why_it_took_long() -> None:
    exchange = Over(prompt_version="v3", traceparent=TRACE, parked_at=100.0, admitted_at=100.0005)
    assert fields(exchange) == {
        "event": "slow_request",
        "request_id": "req-1",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "service": "demo/chat",
        "path": "/v1/chat/completions",
        "outcome": "2xx",
        "status": 200,
        "tenant": "blue",
        "shape": "ShortInputShortOutput",
        "prompt_version": "v3",
        "pool": "default",
        "revision": "chat-1",
        "replica": "pod-0",
        "reason": "least loaded of 2 ready replicas",
        "attempts": 1,
        "concurrency": 3,
        "stream": True,
        "prompt_tokens": 50,
        "output_tokens": 11,
        "total_ms": 300.0,
        "queue_ms": 0.5,
        "router_ms": 0.5,
        "engine_queue_ms": 10.0,
        "engine_ms": 90.0,
        "net_ms": 9.0,
        "ttft_ms": 100.0,
        "tpot_ms": 20.0,
    }


def test_what_is_not_known_is_left_out() -> None:
    never_sent = {"sent_at": 0.0, "first_byte_at": 0.0, "attempts": 0, "status": 503, "outcome": "5xx"}
    nowhere = {"pool": "", "revision": "", "replica": "", "output_tokens": None, "prompt_tokens": None}
    found = fields(Over(parked_at=100.0, admitted_at=0.0, ended_at=110.0, engine_timing=None, **never_sent, **nowhere))
    assert found["queue_ms"] == found["total_ms"] == 10_000.0
    unknown = {
        "trace_id",
        "pool",
        "revision",
        "replica",
        "prompt_tokens",
        "router_ms",
        "engine_ms",
        "net_ms",
        "ttft_ms",
    }
    assert not unknown & found.keys()


@pytest.mark.parametrize(("seconds", "threshold", "written"), [(4.9, None, 0), (5.1, None, 1), (0.6, "500ms", 1)])
def test_the_threshold_is_the_specs(
    caplog: pytest.LogCaptureFixture, seconds: float, threshold: str | None, written: int
) -> None:
    exchange = Over(ended_at=100.0 + seconds)
    exchange.metrics.use(make_policy(RoutingSpec(slow_request_threshold=threshold)))
    with caplog.at_level(logging.WARNING, "paceline.slow"):
        Observer(Tracer()).finished(exchange)
    assert len(lines(caplog)) == written


def test_a_flood_is_held_down_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowLog()
    with caplog.at_level(logging.WARNING, "paceline.slow"):
        for _ in range(1000):
            slow.write(Over(ended_at=200.0))
        assert len(lines(caplog)) == BURST
        slow.write(Over(ended_at=201.0))
        assert lines(caplog)[-1]["left_out_before"] == 1000 - BURST
        for _ in range(1000):
            slow.write(Over(ended_at=201.0))
        assert len(lines(caplog)) == BURST + PER_SECOND
        slow.write(Over(ended_at=500.0))
        assert lines(caplog)[-1]["left_out_before"] == 1001 - PER_SECOND


def test_lines_on_standard_error_are_bare_json(capsys: pytest.CaptureFixture[str]) -> None:
    to_stderr()
    try:
        SlowLog().write(Over(tenant_label="a\nb"))
    finally:
        log.handlers.clear()
        log.setLevel(logging.NOTSET)
        log.propagate = True
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["tenant"] == "a\nb"
