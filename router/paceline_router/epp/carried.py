"""An exchange whose bytes a gateway carries: the same wait, the same choice and the same books, another messenger."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from paceline_crds import errors
from paceline_crds.headers import DEADLINE_MS, EXPLAIN, INTERNAL_REQUEST_ID, LOAD, REASON, SHAPE
from paceline_router.epp.picks import Header
from paceline_router.flow import words
from paceline_router.flow.answering import CLASSES
from paceline_router.flow.exchange import Exchange
from paceline_router.flow.health import HEALTHY, Event, Phase
from paceline_router.table.policy import SHAPES
from paceline_router.table.routes import Lane
from paceline_router.wire import answers
from paceline_router.wire.answers import Refusal
from paceline_router.wire.heads import TRACE_PARENT
from paceline_router.wire.usage import usage_of

if TYPE_CHECKING:
    from paceline_router.flow.backend import Backend

log = logging.getLogger(__name__)

TAIL = 2048
"""Bytes of the end of an answer in which its `usage` is looked for."""

_FULL = frozenset(["overloaded", "hold_expired", "hold_full"])
"""Reasons that the protocol calls saturation where replicas are ready."""


class GatewayClient:
    """Where an exchange would have its client's connection: somebody who waits for a decision.

    Attributes:
        subset: addresses that the gateway allows; None when it allows all.
        fallbacks: endpoints to name after the chosen one.
        active: the exchange, until it is over.
        unwritable_since: None, as the gateway sees to slow readers.
    """

    __slots__ = ("_decided", "_waiting", "active", "fallbacks", "subset", "unwritable_since")

    def __init__(self, subset: frozenset[str] | None, fallbacks: int) -> None:
        self.subset = subset
        self.fallbacks = fallbacks
        self.active: Exchange | None = None
        self.unwritable_since: float | None = None
        self._decided: Carried | Refusal | None = None
        self._waiting: asyncio.Future[None] | None = None

    def decide(self, outcome: Carried | Refusal) -> None:
        """What is to be done with the request. Only the first one counts."""
        if self._decided is None:
            self._decided = outcome
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)

    async def decision(self) -> Carried:
        """The request with its replica.

        Raises:
            Refusal: there is none for it.
        """
        if self._decided is None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        decided = self._decided
        assert decided is not None
        if isinstance(decided, Refusal):
            raise decided
        return decided


class Carried(Exchange):
    """Is handed to the gateway when a replica is chosen, and hears from there how it went on."""

    __slots__ = ("_others", "_placed", "_tail", "body", "headers")

    body: bytes
    headers: Sequence[Header]

    @property
    def _gateway(self) -> GatewayClient:
        return cast(GatewayClient, self._client)

    # Only what the gateway allows exists.

    def _allowed(self, lane: Lane) -> Lane:
        subset = self._gateway.subset
        return lane if subset is None else restricted(lane, subset)

    def _lane_again(self) -> Lane:
        return self._allowed(super()._lane_again())

    def begin(self, lane: Lane) -> None:
        """Find a replica, or wait for one; see `Exchange.begin`."""
        self._placed = False
        self._tail = b""
        self._others: Sequence[Backend] = ()
        self._comment_at = math.inf  # to say that the connection lives is the gateway's affair
        self.lane = self._allowed(lane)
        if lane.backends and not self.lane.backends:
            served_name = self.living.route.served_name
            text = f"None of the endpoints that the gateway allows is a ready replica of `{served_name}`."
            other_ports = ports_in_the_way(lane, self._gateway.subset or frozenset())
            self._answer(answers.unavailable(text + other_ports, words.RETRY_AFTER_BUSY), "none_ready")
            return
        super().begin(self.lane)

    def _send_to(self, backend: Backend, now: float, *, fresh: bool = False) -> None:
        self._count_at(backend, self._cached)
        if backend.health is not HEALTHY and backend.health.phase is Phase.OPEN:
            self.living.judge(backend, Event.PROBE_SENT, now)
            self._probe = True
        self.sent_at = self.heard_at = now
        # How long an answer may take is the gateway's rule from here on.
        headers = self._request.headers
        sent: list[Header] = [
            (INTERNAL_REQUEST_ID, self.request_id),
            (SHAPE, SHAPES[self.shape].value.encode()),
            *pairs(self.tenant.line),
        ]
        if DEADLINE_MS in headers:
            sent.append((DEADLINE_MS, b"%d" % max(1, int((self._deadline - now) * 1000.0))))
        if self.trace is not None:
            sent.append((TRACE_PARENT, self.trace.traceparent()))
        if self._request.target != self.path:
            sent.append((":path", self.path))
        self._deadline = math.inf
        self.headers = sent
        self.body = self._body
        self._others = self._fallbacks(backend, now)
        self._placed = True
        self._gateway.decide(self)

    def _count_at(self, backend: Backend, cached: int) -> None:
        self.backend = backend
        self._at_replica = True
        self._answered = False
        self._cached = cached
        shaped = self.asked.shaped
        self._mark = backend.begin(shaped.prompt_tokens, shaped.output_tokens, cached)

    def _fallbacks(self, chosen: Backend, now: float) -> Sequence[Backend]:
        named = [chosen]
        while len(named) <= self._gateway.fallbacks:
            backend = self._plane.choose(self.lane, named, now)
            if backend is None:
                break
            named.append(backend)
        return named[1:]

    def _patience(self) -> float | None:
        """The gateway waits no longer than for a replica that starts, and knows what to do with a 429."""
        patience: float | None = self.living.patience()
        return patience if patience is None else min(patience, self.living.policy.hold) or None

    def _answer(self, refusal: Refusal, reason: str = "") -> None:
        self._release()
        if self._placed:
            # Too late for words: what the client hears comes from the replica, or from the gateway.
            self._finish("cancelled", keep_alive=None)
            return
        if reason:
            self.metrics.refused(reason)
        if reason in _FULL and self.lane.backends:
            text = f"The model `{self.living.route.served_name}` is overloaded: every ready replica is full."
            refusal = Refusal(429, text, type=errors.RATE_LIMIT, retry_after=words.RETRY_AFTER_BUSY)
        if refusal.status >= 500:
            log.warning("request %s to %s: %d %s", self.request_id.decode(), self.service, refusal.status, refusal)
        self.status = refusal.status
        self._gateway.decide(refusal)
        self._finish(CLASSES[refusal.status // 100], keep_alive=None)

    # What the gateway says

    @property
    def endpoints(self) -> Sequence[str]:
        """`ip:port`, the chosen one first."""
        assert self.backend is not None
        return [self.backend.replica.address, *(other.replica.address for other in self._others)]

    def answered(self, status: int, headers: Mapping[str, bytes], served: str | None) -> Sequence[Header]:
        """The answer has begun; see `picks.Picked`."""
        backend = self.backend
        if self.finished or backend is None:
            return ()
        now = self.heard_at = self.first_byte_at = self._plane.now()
        self.status = status
        if served is not None and served != backend.replica.address:
            backend = self._served_by(served, now) or backend
        load = headers.get(LOAD)
        if load is not None and now >= backend.next_report:
            self._take_load(backend, load, now)
        after = headers.get("retry-after")
        if status == 429 or (status == 503 and after is not None):
            probe, self._probe = self._probe, False
            seconds = float(after) if after is not None and after.isdigit() and len(after) < 9 else None
            backend.back_off(seconds, now, probe)
        elif status >= 500 or backend.health is not HEALTHY:
            self._judge(Event.SERVER_ERROR if status >= 500 else Event.ANSWERED, now)
        self._answered = True
        shaped = self.asked.shaped
        backend.answered(shaped.prompt_tokens, self._cached, self._mark)
        self.engine_timing = headers.get("server-timing")
        shown = pairs(self.labels)
        if self._request.headers.get(EXPLAIN) == b"1":
            shown.append((SHAPE, SHAPES[self.shape].value.encode()))
            shown.append((REASON, self.reason().encode("latin-1", "replace")))
        return shown

    def _served_by(self, address: str, now: float) -> Backend | None:
        """Another one answered, since the chosen one could not be reached."""
        for other in self._others:
            if other.replica.address == address:
                self._judge(Event.CONNECT_FAILED, now)
                self._release()
                self.attempts += 1
                self._count_at(other, 0)
                labels = self.labels = self.lane.labels.get(other.key, b"")
                self.pool, self.revision = words.PLACES.get(labels) or words.place_of(labels)
                return other
        return None

    def saw(self, part: bytes) -> None:
        """A part of the answer's body, where the gateway shows it."""
        self._tail = part[-TAIL:] if len(part) >= TAIL else (self._tail + part)[-TAIL:]

    def over(self) -> None:
        """The request is over, however it ended."""
        if self.finished:
            return
        if self.first_byte_at:
            usage = usage_of(self._tail)
            if usage is not None:
                self.prompt_tokens, self.output_tokens = usage
            self._finish(CLASSES[self.status // 100] if 200 <= self.status < 600 else "5xx", keep_alive=None)
        else:
            self.cancel()


def restricted(lane: Lane, subset: frozenset[str]) -> Lane:
    """The lane with only those replicas whose addresses are allowed."""
    order = tuple(
        replace(group, backends=tuple(backend for backend in group.backends if backend.replica.address in subset))
        for group in lane.order
    )
    return replace(
        lane,
        backends=tuple(backend for backend in lane.backends if backend.replica.address in subset),
        groups={group.pool: group for group in order},
        order=order,
    )


def ports_in_the_way(lane: Lane, subset: frozenset[str]) -> str:
    """What is wrong where the gateway allows the hosts of replicas with other ports than theirs: they are healthy, and
    would get nothing without a word.
    """
    hosts = {address.rpartition(":")[0] for address in subset}
    for backend in lane.backends:
        if backend.replica.address.rpartition(":")[0] in hosts:
            port = backend.replica.port
            return f" They have other ports than {port}: check targetPorts of the InferencePool."
    return ""


def pairs(lines: bytes) -> list[Header]:
    """Header lines as names and values."""
    split = (line.partition(b": ") for line in lines.split(b"\r\n") if line)
    return [(name.decode("ascii"), value) for name, _, value in split]
