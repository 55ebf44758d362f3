"""Why requests wait, were admitted, lost their blocks or were dropped: in words and numbers, once per change."""

from __future__ import annotations

import enum
from collections import Counter, deque

from paceline_runtime.messages import EventKind, RequestEvent

from .request import Request

MAX_WAITS = 32
"""`waits` events told of one request; a reason that goes to and fro is known by then."""

MAX_EVENTS = 10_000
"""Kept until taken; the oldest are dropped beyond."""


class WaitReason(enum.StrEnum):
    """Why a request is not admitted."""

    QUEUED = "Queued"
    """Others are ahead of it."""
    BATCH_FULL = "BatchFull"
    """All places of the batch are taken."""
    NO_BLOCKS = "NoBlocks"
    """The KV cache has no room for it."""
    STEP_FULL = "StepFull"
    """The tokens of the step are taken."""
    TENANT_SLOTS = "TenantSlots"
    """Its tenant has as many requests in the batch as it may."""


class PreemptionReason(enum.StrEnum):
    """Why a request lost its blocks."""

    NO_BLOCKS = "NoBlocks"
    """One that runs needed room to go on."""
    PRIORITY = "Priority"
    """One of a more urgent class needed its place."""
    ASKED = "Asked"
    """Somebody asked for it (`Scheduler.preempt`)."""
    TIER_FAULT = "TierFault"
    """A block read back from lower memory was not what had been stored."""


Numbers = dict[str, int | float]


class Story:
    """Collects events."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self._events: deque[RequestEvent] = deque(maxlen=MAX_EVENTS)

    def take(self) -> list[RequestEvent]:
        """Events since the last call, in order."""
        events = list(self._events)
        self._events.clear()
        return events

    def waits(self, request: Request, reason: str, message: str, numbers: Numbers, now: float) -> None:
        """Tell that a request waits, if the reason is another than before."""
        if request.wait_reason == reason:
            return
        self.no_longer_waits(request)
        request.wait_reason = reason
        self.waiting[reason] += 1
        request.num_waits += 1
        if request.num_waits <= MAX_WAITS:
            self._tell(request, EventKind.WAITS, reason, message, numbers, now)

    def no_longer_waits(self, request: Request) -> None:
        """Its reason to wait is void."""
        if request.wait_reason is not None:
            self.waiting[request.wait_reason] -= 1
            if not self.waiting[request.wait_reason]:
                del self.waiting[request.wait_reason]
            request.wait_reason = None

    def admitted(self, request: Request, rule: str, now: float) -> None:
        """Tell that a request that waited runs now, and by which rule it was its turn."""
        if request.wait_reason is None:
            return
        self.no_longer_waits(request)
        waited = max(now - request.arrival_time, 0.0)
        known = (
            f"; {request.num_computed} of its {len(request.tokens)} tokens were cached" if request.num_computed else ""
        )
        self._tell(
            request,
            EventKind.ADMITTED,
            rule,
            f"admitted {waited:.3f} s after it arrived, by the rule {rule}{known}",
            {"sinceArrivalSeconds": waited, "cachedTokens": request.num_computed, "tokens": len(request.tokens)},
            now,
        )

    def preempted(self, request: Request, reason: str, message: str, numbers: Numbers, now: float) -> None:
        """Tell that a request lost its blocks."""
        self._tell(request, EventKind.PREEMPTED, reason, message, numbers, now)

    def dropped(self, request: Request, reason: str, message: str, numbers: Numbers, now: float) -> None:
        """Tell that a request ended without an answer."""
        self._tell(request, EventKind.DROPPED, reason, message, numbers, now)

    def _tell(self, request: Request, kind: EventKind, reason: str, message: str, numbers: Numbers, now: float) -> None:
        self._events.append(
            RequestEvent(
                request_id=request.request_id, kind=kind, at=now, reason=str(reason), message=message, numbers=numbers
            )
        )
