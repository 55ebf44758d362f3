"""What becomes of a request that is over: its times, its tokens, whether it kept the promises."""

from __future__ import annotations

from typing import Final

from paceline_router.report.cells import OUTCOME_INDEX
from paceline_router.report.finished import Finished
from paceline_router.report.labels import NONE
from paceline_router.report.objectives import NOT_KNOWN
from paceline_router.report.slowlog import SlowLog
from paceline_router.report.timing import TO_FIRST_TOKEN, engine_seconds, span_seconds, waited
from paceline_router.report.tracing import Tracer

_ANSWERED: Final = OUTCOME_INDEX["2xx"]
_LEFT: Final = OUTCOME_INDEX["cancelled"]
_FAILED: Final = frozenset([OUTCOME_INDEX["5xx"], OUTCOME_INDEX["broken_stream"]])


class Observer:
    """One of a data path. `finished` costs each request some microseconds, so it is one straight function."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.slow = SlowLog()

    def finished(self, exchange: Finished) -> None:
        """Count a request that has ended. Called once for each."""
        metrics = exchange.metrics
        metrics.in_flight -= 1
        outcome = exchange.outcome
        metrics.outcomes[outcome] += 1
        pool = exchange.pool
        revision = exchange.revision
        shape = exchange.shape
        cells = metrics.cells_of(pool, revision)
        cell = cells[shape]
        code = OUTCOME_INDEX[outcome]
        cell.outcomes[code] += 1

        started = exchange.started_at
        total = exchange.ended_at - started
        first = exchange.first_byte_at
        ttft = tpot = NOT_KNOWN
        tokens = exchange.output_tokens
        request_id = exchange.request_id

        if exchange.parked_at:
            wait = waited(exchange)
            metrics.waits.observe(wait)
        else:
            wait = 0.0
        sent = exchange.sent_at
        if sent and exchange.attempts == 1:
            metrics.router.observe(sent - started - wait)
        if code == _ANSWERED:
            cell.duration.observe(total, request_id)
            timing = exchange.engine_timing
            stream = exchange.stream
            if timing is not None:
                engine = engine_seconds(timing)
                if engine >= 0.0:
                    metrics.engine[shape].observe(engine)
                    net = first - sent - engine
                    metrics.net.observe(net if net > 0.0 else 0.0)
                    if not stream:
                        to_first = span_seconds(timing, TO_FIRST_TOKEN)
                        if to_first >= 0.0:
                            ttft = sent - started + to_first
            if stream:
                ttft = first - started
            if ttft >= 0.0:
                cell.ttft.observe(ttft, request_id)
                tenant = exchange.tenant_label
                if tenant != NONE:
                    metrics.ttft_of(tenant).observe(ttft)
                if tokens is not None:
                    choices = exchange.choices
                    gaps = tokens - 1 if choices <= 1 else tokens / choices - 1.0
                    if gaps > 0:
                        tpot = (total - ttft) / gaps
                        cell.tpot.observe(tpot, request_id)

        if (code == _ANSWERED or code in _FAILED or (code == _LEFT and exchange.stream and not first)) and shape >= 0:
            objectives = metrics.objectives
            if metrics.pool_objectives:
                objectives = metrics.pool_objectives.get(pool, objectives)
            good = None
            if code == _LEFT:
                if objectives is not None:
                    good = objectives.left(metrics.goodput, total)
            elif code != _ANSWERED:
                if objectives is not None:
                    good = objectives.failed(metrics.goodput)
            else:
                prompt = exchange.prompt_tokens
                if prompt is None or tokens is None:
                    metrics.usage_unknown += 1
                else:
                    version = exchange.prompt_version
                    row = metrics.prompt_versions.rows.get(version or NONE) or metrics.prompt_versions.row(version)
                    row[0] += prompt
                    row[1] += tokens
                    cell.prompt_tokens += prompt
                    cell.output_tokens += tokens
                if objectives is not None:
                    good = objectives.answered(metrics.goodput, ttft, tpot, total, tokens)
            if good:
                cell.met += 1
            elif good is not None:
                cell.missed += 1

        if total > metrics.slow_after:
            self.slow.write(exchange)
        trace = exchange.trace
        if trace is not None:
            self.tracer.finished(exchange, trace)
