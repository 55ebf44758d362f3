"""What becomes of one request, for metrics and for who asks about it: each request is counted exactly once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from paceline_runtime.messages import Rejected, RequestEvent, TokenOutput

from .generation import Answer, GenerationRequest
from .metrics import Ended, FirstToken, Metrics
from .request_headers import RequestContext
from .requests import RequestLog, RequestRecord
from .submission import Caller


class Account:
    """The books of one request.

    Attributes:
        started: the first token is there.
        over: it has ended.
    """

    def __init__(
        self,
        metrics: Metrics,
        log: RequestLog,
        context: RequestContext,
        caller: Caller,
        wanted: GenerationRequest,
        endpoint: str,
    ) -> None:
        self._metrics = metrics
        self._log = log
        answers = len(wanted.prompts) * wanted.n
        self._token_at: list[float | None] = [None] * answers
        self._record = RequestRecord(
            context.request_id,
            endpoint,
            wanted.stream,
            wanted.prompt_tokens,
            choices=answers,
            tenant=caller.tenant,
            priority=caller.priority,
            prompt_version=context.prompt_version,
        )
        log.opened(self._record)
        metrics.submitted(n=wanted.n, max_tokens=wanted.sampling.max_tokens)

    @property
    def request_id(self) -> str:
        """As the client and the router know it."""
        return self._record.request_id

    @property
    def started(self) -> bool:
        """The first token is there."""
        return self._record.first_token_seconds is not None

    @property
    def over(self) -> bool:
        """It has ended."""
        return self._record.over

    def server_timing(self) -> str:
        """For the header of that name: milliseconds in the queue, in prefill, until the first token in all, and, of an
        answer that is not streamed, until its end. The last of them is when the answer began to be sent.
        """
        record = self._record
        spans = (
            ("queue", record.queue_seconds),
            ("prefill", record.prefill_seconds),
            ("first-token", record.first_token_seconds),
            ("total", record.total_seconds),
        )
        return ", ".join(f"{name};dur={1000 * seconds:.1f}" for name, seconds in spans if seconds is not None)

    def happened(self, index: int, event: RequestEvent) -> None:
        """The engine says what happened to the answer at `index`."""
        self._record.story.add(index, event)

    def output(self, index: int, output: TokenOutput, now: float) -> None:
        """The engine's next output for the answer at `index`."""
        record = self._record
        record.preemptions = max(record.preemptions, output.num_preemptions)
        record.cached_tokens = max(record.cached_tokens, output.num_cached_tokens)
        if not output.new_token_ids:
            return
        record.completion_tokens += len(output.new_token_ids)
        if not self.started:
            record.state = "running"
            record.first_token_seconds = now - record.arrived
            record.queue_seconds, record.prefill_seconds = output.queue_seconds, output.prefill_seconds
            self._metrics.first_token(
                FirstToken(
                    tenant=record.tenant,
                    prompt_version=record.prompt_version,
                    prompt_tokens=record.prompt_tokens,
                    cached_tokens=record.cached_tokens,
                    seconds=record.first_token_seconds,
                    queue_seconds=output.queue_seconds,
                    prefill_seconds=output.prefill_seconds,
                    request_id=record.request_id,
                )
            )
        before = self._token_at[index]
        if before is not None:
            self._metrics.token_gap((now - before) / len(output.new_token_ids))
        self._token_at[index] = now

    def refused(self, status: int, rejected: Rejected) -> None:
        """The engine did not take it."""
        self._metrics.refused(status)
        self._metrics.rejected(rejected.code)
        record = self._record
        record.reason = rejected.code.value
        if rejected.retry_after is not None:
            record.numbers = {"retryAfterSeconds": rejected.retry_after}
        self._close("refused", rejected.message)

    def ended(self, reason: str, answers: Sequence[Answer] = (), message: str | None = None) -> None:
        """It is over, however: `reason` is one of `FINISHED_REASONS`."""
        self._close(reason, message)
        record = self._record
        self._metrics.finished(
            Ended(
                reason=reason,
                completion_tokens=tuple(answer.completion_tokens for answer in answers),
                seconds=record.total_seconds or 0.0,
                first_token_seconds=record.first_token_seconds,
                queue_seconds=record.queue_seconds,
                preemptions=record.preemptions,
                tenant=record.tenant,
                request_id=record.request_id,
            )
        )

    def _close(self, state: str, message: str | None) -> None:
        record = self._record
        record.state, record.message = state, message
        record.total_seconds = time.monotonic() - record.arrived
        self._log.closed(record)
