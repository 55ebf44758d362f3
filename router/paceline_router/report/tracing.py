"""Spans of sampled requests, by W3C Trace Context and OpenTelemetry's settings. Off unless a collector is named.

The spans of a request are made when it is over, from the times that are kept anyway; only their identifiers exist
before, since the replica is told one of them as its parent.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from paceline_router.report.finished import Finished
from paceline_router.report.labels import NONE
from paceline_router.report.timing import waited

log = logging.getLogger(__name__)

QUEUE = 2048
"""Requests whose spans wait to be sent; further ones are dropped and counted."""

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
SAMPLER = "OTEL_TRACES_SAMPLER"
SAMPLER_ARG = "OTEL_TRACES_SAMPLER_ARG"


class Trace:
    """Identifiers of one sampled request, in hex.

    Attributes:
        parent: the client's span; empty for a request that begins a trace.
        server: the span of the request at the router.
        client: the span of the request at the replica, which the replica hears of as its parent.
    """

    __slots__ = ("client", "parent", "server", "trace")

    def __init__(self, trace: str, parent: str, server: str, client: str) -> None:
        self.trace = trace
        self.parent = parent
        self.server = server
        self.client = client

    def traceparent(self) -> bytes:
        """The header towards the replica."""
        return f"00-{self.trace}-{self.client}-01".encode()


@dataclass(frozen=True, slots=True)
class Record:
    """A request that is over, as spans need it. Times are seconds, of the data path's clock but for `ended_unix`."""

    trace: Trace
    ended_unix: float
    started_at: float
    parked_for: float
    parked_at: float
    sent_at: float
    first_byte_at: float
    ended_at: float
    path: str
    status: int
    outcome: str
    attributes: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which requests are traced.

    Attributes:
        share: of those that no client has decided about, 0 to 1.
        follow: whether a client's decision holds.
    """

    share: float = 1.0
    follow: bool = True

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Sampling:
        """By `OTEL_TRACES_SAMPLER`; without it, all but what clients decided against."""
        name = env.get(SAMPLER, "").strip() or "parentbased_always_on"
        kind = name.removeprefix("parentbased_")
        try:
            share = {"always_on": 1.0, "always_off": 0.0}.get(kind)
            if share is None:
                if kind != "traceidratio":
                    raise ValueError("it is none of always_on, always_off, traceidratio, or those after parentbased_")
                share = float(env.get(SAMPLER_ARG, "").strip() or 1.0)
                if not 0.0 <= share <= 1.0:
                    raise ValueError(f"{SAMPLER_ARG} is a number from 0 to 1")
        except ValueError as exc:
            log.warning("%s=%s is not used: %s; only requests that clients trace are traced", SAMPLER, name, exc)
            return cls(0.0)
        return cls(share, name != kind)


class Tracer:
    """Decides which requests are traced, and keeps those that are over until an exporter takes them.

    Attributes:
        on: whether anything is traced; where it is not, nothing else here is called.
        sent, lost, dropped: requests whose spans a collector has, will never have, or for which there was no place.
    """

    __slots__ = ("_queue", "_sampling", "dropped", "lost", "on", "sent")

    def __init__(self, sampling: Sampling | None = None) -> None:
        self.on = sampling is not None
        self._sampling = sampling or Sampling(0.0)
        self._queue: deque[Record] = deque()
        self.sent = self.lost = self.dropped = 0

    def begin(self, traceparent: bytes | None) -> Trace | None:
        """Identifiers for a request, or None when it is not traced.

        Args:
            traceparent: the client's, checked.
        """
        if traceparent is not None and self._sampling.follow:
            if not int(traceparent[53:55], 16) & 1:
                return None
        elif self._sampling.share < 1.0 and random.random() >= self._sampling.share:
            return None
        bits = "%064x" % (random.getrandbits(256) | 1 << 192 | 1 << 64 | 1)
        if traceparent is not None:
            return Trace(traceparent[3:35].decode(), traceparent[36:52].decode(), bits[32:48], bits[48:])
        return Trace(bits[:32], "", bits[32:48], bits[48:])

    def finished(self, exchange: Finished, trace: Trace) -> None:
        """Keep a request that is over."""
        if len(self._queue) >= QUEUE:
            self.dropped += 1
            return
        named: dict[str, str | int | None] = {
            "paceline.request_id": exchange.request_id.decode("latin-1"),
            "paceline.service": exchange.service,
            "paceline.pool": exchange.pool or None,
            "paceline.revision": exchange.revision or None,
            "paceline.replica": exchange.replica or None,
            "paceline.tenant": None if exchange.tenant_label == NONE else exchange.tenant_label,
            "paceline.prompt_version": exchange.prompt_version or None,
            "paceline.attempts": exchange.attempts,
            "paceline.outcome": exchange.outcome,
            "gen_ai.usage.input_tokens": exchange.prompt_tokens,
            "gen_ai.usage.output_tokens": exchange.output_tokens,
        }
        self._queue.append(
            Record(
                trace=trace,
                ended_unix=time.time(),
                started_at=exchange.started_at,
                parked_for=waited(exchange),
                parked_at=exchange.parked_at,
                sent_at=exchange.sent_at,
                first_byte_at=exchange.first_byte_at,
                ended_at=exchange.ended_at,
                path=exchange.path.decode("latin-1"),
                status=exchange.status,
                outcome=exchange.outcome,
                attributes={name: value for name, value in named.items() if value is not None},
            )
        )

    def take(self, most: int) -> list[Record]:
        """Records to be sent, oldest first. For one other thread."""
        taken: list[Record] = []
        while len(taken) < most:
            try:
                taken.append(self._queue.popleft())
            except IndexError:
                break
        return taken
