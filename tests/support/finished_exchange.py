"""An exchange that is over, as the router's books read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline_router.report.metrics import ServiceMetrics


@dataclass
class Over:
    """A streamed answer of 11 tokens: sent after 1 ms, first token after 100 ms, then one each 20 ms."""

    metrics: ServiceMetrics = field(default_factory=ServiceMetrics)
    request_id: bytes = b"req-1"
    service: str = "demo/chat"
    path: bytes = b"/v1/chat/completions"
    tenant_label: str = "blue"
    shape: int = 0
    prompt_version: str = ""
    pool: str = "default"
    revision: str = "chat-1"
    replica: str = "pod-0"
    started_at: float = 100.0
    parked_at: float = 0.0
    admitted_at: float = 100.0
    sent_at: float = 100.001
    first_byte_at: float = 100.1
    ended_at: float = 100.3
    attempts: int = 1
    status: int = 200
    outcome: str = "2xx"
    stream: bool = True
    choices: int = 1
    prompt_tokens: int | None = 50
    output_tokens: int | None = 11
    concurrency: int = 3
    engine_timing: bytes | None = b"queue;dur=10.0, prefill;dur=70.0, first-token;dur=90.0"
    traceparent: bytes | None = None
    trace: Any = None

    def reason(self) -> str:
        return "least loaded of 2 ready replicas"
