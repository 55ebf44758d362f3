"""What became of requests: those that run now, and the last few that are over."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final

from paceline_runtime.messages import EventKind, RequestEvent

KEPT: Final = 1024
FIRST_EVENTS: Final = 8
LAST_EVENTS: Final = 24


class Story:
    """What happened to a request, bounded: the first few events and the last few."""

    def __init__(self) -> None:
        self._first: list[tuple[int, RequestEvent]] = []
        self._last: deque[tuple[int, RequestEvent]] = deque(maxlen=LAST_EVENTS)
        self._told = 0

    def add(self, choice: int, event: RequestEvent) -> None:
        """An event of the answer `choice`."""
        self._told += 1
        if len(self._first) < FIRST_EVENTS:
            self._first.append((choice, event))
        else:
            self._last.append((choice, event))

    @property
    def left_out(self) -> int:
        """Events between the first and the last ones that are not kept."""
        return self._told - len(self._first) - len(self._last)

    def waits_for(self) -> str | None:
        """Why the request waits, in the engine's words; `None` where the last it said is something else."""
        kept = self._last or self._first
        if not kept or kept[-1][1].kind not in (EventKind.WAITS, EventKind.PREEMPTED):
            return None
        return kept[-1][1].message

    def as_json(self, arrived: float) -> list[dict[str, Any]]:
        """The events in order, at seconds after `arrived`."""
        return [
            {
                "afterSeconds": event.at - arrived,
                "choice": choice,
                "kind": event.kind.value,
                "reason": event.reason,
                "message": event.message,
                "numbers": event.numbers,
            }
            for choice, event in (*self._first, *self._last)
        ]


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are wall-clock seconds for people, durations are monotonic.

    Attributes:
        state: `waiting` (no token yet), `running`, `refused`, or how it ended: `stop`, `length`, `abort`, `error`.
        message: why it was refused or failed.
        numbers: of a refusal.
    """

    request_id: str
    endpoint: str
    stream: bool
    prompt_tokens: int
    choices: int = 1
    tenant: str = ""
    priority: int = 0
    prompt_version: str = ""
    received_at: float = field(default_factory=time.time)
    arrived: float = field(default_factory=time.monotonic)
    state: str = "waiting"
    completion_tokens: int = 0
    cached_tokens: int = 0
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    first_token_seconds: float | None = None
    total_seconds: float | None = None
    preemptions: int = 0
    reason: str | None = None
    message: str | None = None
    numbers: dict[str, int | float] = field(default_factory=dict)
    story: Story = field(default_factory=Story)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.total_seconds is not None

    def as_json(self, now: float) -> dict[str, Any]:
        """For `GET /v1/paceline/requests/{id}`; what is not known yet is `null`."""
        return {
            "id": self.request_id,
            "endpoint": self.endpoint,
            "stream": self.stream,
            "state": self.state,
            "summary": self.summary(now),
            "reason": self.reason,
            "message": self.message,
            "numbers": self.numbers,
            "tenant": self.tenant or None,
            "priority": self.priority,
            "promptVersion": self.prompt_version or None,
            "choices": self.choices,
            "receivedAt": self.received_at,
            "ageSeconds": now - self.arrived,
            "promptTokens": self.prompt_tokens,
            "completionTokens": self.completion_tokens,
            "cachedTokens": self.cached_tokens,
            "queueSeconds": self.queue_seconds,
            "prefillSeconds": self.prefill_seconds,
            "firstTokenSeconds": self.first_token_seconds,
            "totalSeconds": self.total_seconds,
            "preemptions": self.preemptions,
            "events": self.story.as_json(self.arrived),
            "eventsLeftOut": self.story.left_out,
        }

    def summary(self, now: float) -> str:
        """The request's story in one or two sentences."""
        if self.state == "refused":
            return f"Refused: {self.message}"
        parts = []
        if self.queue_seconds is not None:
            parts.append(f"waited {self.queue_seconds:.3f} s in the queue")
        elif not self.over:
            why = self.story.waits_for()
            parts.append(f"has waited {now - self.arrived:.3f} s so far" + ("" if why is None else f": {why}"))
        if self.prefill_seconds is not None:
            parts.append(
                f"its prompt of {self.prompt_tokens} tokens, {self.cached_tokens} of them from the cache, took "
                f"{self.prefill_seconds:.3f} s"
            )
        if self.preemptions:
            parts.append("lost its blocks " + ("once" if self.preemptions == 1 else f"{self.preemptions} times"))
        if self.completion_tokens:
            parts.append(f"{self.completion_tokens} tokens were made")
        if self.over:
            parts.append(f"ended after {self.total_seconds:.3f} s with {self.state}")
        text = "; ".join(parts)
        return text[:1].upper() + text[1:] + "." + ("" if self.message is None else f" {self.message}")


class RequestLog:
    """The requests of this replica; of those that are over, the last `kept`."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._open: dict[int, RequestRecord] = {}
        self._over: OrderedDict[int, RequestRecord] = OrderedDict()
        self._latest: dict[str, RequestRecord] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, record: RequestRecord) -> None:
        """A request began."""
        self._open[id(record)] = record
        self._latest[record.request_id] = record

    def closed(self, record: RequestRecord) -> None:
        """It is over."""
        del self._open[id(record)]
        self._over[id(record)] = record
        while len(self._over) > self._kept:
            _, oldest = self._over.popitem(last=False)
            # A client may use one id several times: the newest is the one that is found.
            if self._latest.get(oldest.request_id) is oldest:
                del self._latest[oldest.request_id]

    def find(self, request_id: str) -> RequestRecord | None:
        """The newest request with this id."""
        return self._latest.get(request_id)
