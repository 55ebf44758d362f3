"""What an exchange that is over tells the books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paceline_router.report.service import ServiceMetrics
    from paceline_router.report.tracing import Trace


class Finished(Protocol):
    """Plain attributes. Times are of the data path's clock, seconds; 0.0 where the moment did not come.

    Attributes:
        metrics: the books of the service.
        request_id: as the client got it.
        service: its `namespace/name`.
        path: `/v1/chat/completions` and so on.
        tenant_label: bounded by who gives it; `_none` where there is none.
        shape: index into the shapes; -1 for a request that has none.
        prompt_version: empty where the client named none.
        pool, revision, replica: of the last attempt; empty where there was none, or where it is not known.
        started_at: the request was there in full.
        parked_at: it began to wait, for its turn or for a replica; 0.0 where it did not.
        admitted_at: that wait was over.
        sent_at: the last attempt was written to the replica.
        first_byte_at: the first event of a stream, or the head of a whole answer, was there.
        ended_at: now.
        attempts: made.
        status: of the answer; 0 where the client got none.
        outcome: one of `OUTCOMES`.
        stream: the client asked for events.
        choices: answers asked for, `n`.
        prompt_tokens, output_tokens: as the replica counted them; None when it did not say.
        concurrency: requests of the service that ran when this one began.
        engine_timing: the replica's `server-timing`; None when it sent none.
        traceparent: as the client sent it, if it is one.
        trace: where the request is one whose spans are recorded.
    """

    @property
    def metrics(self) -> ServiceMetrics: ...
    @property
    def request_id(self) -> bytes: ...
    @property
    def service(self) -> str: ...
    @property
    def path(self) -> bytes: ...
    @property
    def tenant_label(self) -> str: ...
    @property
    def shape(self) -> int: ...
    @property
    def prompt_version(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def replica(self) -> str: ...
    @property
    def started_at(self) -> float: ...
    @property
    def parked_at(self) -> float: ...
    @property
    def admitted_at(self) -> float: ...
    @property
    def sent_at(self) -> float: ...
    @property
    def first_byte_at(self) -> float: ...
    @property
    def ended_at(self) -> float: ...
    @property
    def attempts(self) -> int: ...
    @property
    def status(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    @property
    def stream(self) -> bool: ...
    @property
    def choices(self) -> int: ...
    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def engine_timing(self) -> bytes | None: ...
    @property
    def traceparent(self) -> bytes | None: ...
    @property
    def trace(self) -> Trace | None: ...

    def reason(self) -> str:
        """Why this replica, in words."""
