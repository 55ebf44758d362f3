"""One copy on its way: over connections of its own, with a deadline of its own, to an end that nobody waits for."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from paceline_crds.headers import SHADOW, SHAPE
from paceline_router.flow.backend import Backend
from paceline_router.table.policy import SHAPES
from paceline_router.wire.chunks import dechunk
from paceline_router.wire.requests import body_for
from paceline_router.wire.upstream import UpstreamConnection, watch_peer
from paceline_shadow_traffic.pair import Heard, Pair

if TYPE_CHECKING:
    from paceline_router.flow.record import Record
    from paceline_router.shadow.tap import Tap, Target
    from paceline_router.wire.response_head import ResponseHead

CONNECT_SECONDS: Final = 2.0
COPY_SECONDS: Final = 120.0
"""From the moment when a copy is sent to its end."""

MAX_ANSWER: Final = 1024 * 1024
"""Bytes kept of an answer."""

_LINES: Final = tuple(
    b"\r\n%b: %b\r\n%b: 1\r\n" % (SHAPE.encode(), shape.value.encode(), SHADOW.encode()) for shape in SHAPES
)
"""After a request id, whose line they end."""


class Side:
    """What one version answers, as it comes."""

    __slots__ = ("chunked", "ended_at", "failure", "pieces", "sent_at", "size", "sse", "status")

    def __init__(self, sent_at: float = 0.0) -> None:
        self.again(sent_at)

    def again(self, sent_at: float) -> None:
        """It is asked, perhaps not for the first time."""
        self.sent_at = sent_at
        self.ended_at = 0.0
        self.status = self.size = 0
        self.chunked = self.sse = False
        self.failure = ""
        self.pieces: list[tuple[float, bytes]] = []

    def begin(self, head: ResponseHead) -> None:
        """Status and headers are there."""
        self.status, self.chunked, self.sse = head.status, head.chunked, head.sse
        if head.encoded:
            self.failure = "encoded"

    def hear(self, now: float, data: bytes) -> None:
        """A part of the body, in the framing it came in."""
        self.pieces.append((now - self.sent_at, data))
        self.size += len(data)

    def told(self) -> Heard:
        """The same for the recorder."""
        pieces = [(at, dechunk(data)) for at, data in self.pieces] if self.chunked else self.pieces
        return Heard(self.status, self.failure, self.sse, pieces, self.ended_at - self.sent_at)


class Copy:
    """A copy of one request. It waits for a place, is sent, and ends; when both versions have answered it is a pair."""

    def __init__(self, tap: Tap, exchange: Record, model: str | None, now: float) -> None:
        self.tap = tap
        self.request_id = exchange.request_id
        self.revision = exchange.revision
        self.pool = exchange.pool
        self.shape = exchange.shape
        self.path = exchange.path
        self.tenant = exchange.tenant
        self.model = model
        self.body = exchange.asked.raw
        self.at = time.time()
        self.since = now
        self.held = len(self.body)
        """Bytes that count towards what all copies may take."""
        self.base = Side(now)
        self.candidate = Side()
        self.base_is_known = False
        self.base_address = self.base_name = ""
        self.target: Target | None = None
        """The replica that has a place taken for it."""
        self.sent = self.over = False
        self._address = self._name = ""
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # The request itself

    def hear_base(self, now: float, data: bytes) -> None:
        """Its own replica has sent a part of its answer."""
        if not self.over:
            self.base.hear(now, data)
            self._hold(self.base, data)

    def base_ended(self, exchange: Record) -> None:
        """It is over: without an answer there is nothing to compare with, and the copy ends as well."""
        if self.over:
            return
        if exchange.outcome != "2xx":
            self.end("client_left" if exchange.outcome == "cancelled" else "base_failed")
            return
        self.base.ended_at = exchange.ended_at
        self.base_is_known = True
        backend = exchange.backend
        if backend is not None:
            self.base_address = backend.replica.address
            self.base_name = exchange.lane.served.get(backend.key) or exchange.living.route.served_name
        if self.candidate.ended_at:
            self._complete()

    # The copy

    def start(self, target: Target) -> None:
        """Send it to this replica, in the event loop's next turn: what runs now is the path of a request."""
        self.target = target
        self.sent = True
        asyncio.get_running_loop().call_soon(self._begin, target)

    def _begin(self, target: Target) -> None:
        if self.over:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(COPY_SECONDS, self._failed, "timeout")
        self._address, self._name = target.backend.replica.address, target.served
        idle = target.backend.idle
        if idle:
            self._send(idle.pop())
        else:
            self._connecting = loop.create_task(self._connect(target.backend))

    async def _connect(self, backend: Backend) -> None:
        replica = backend.replica
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(backend), replica.host, replica.port
                )
        except (OSError, TimeoutError):
            self._failed("connect")
            return
        watch_peer(connection.transport)
        if self.over or self.candidate.ended_at:
            backend.keep(connection)
        else:
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        self._upstream = connection
        backend = connection.backend
        body = body_for(self._name, self.model, self.body)
        self.candidate.again(self.tap.now())
        head = backend.heads.get(self.path) or backend.head(self.path)
        length = b"content-length: %d\r\n\r\n" % len(body)
        # Whose it is goes along, since prefix caches are kept apart by it; keys, sessions and deadlines do not.
        connection.send(self, b"".join((head, self.request_id, _LINES[self.shape], self.tenant.line, length, body)))

    def on_head(self, upstream: UpstreamConnection, head: ResponseHead) -> None:
        """Status and headers are there."""
        self.candidate.begin(head)

    def on_data(self, data: bytes) -> None:
        """A part of the body."""
        self.candidate.hear(self.tap.now(), data)
        self._hold(self.candidate, data)

    def on_end(self, last: bytes = b"") -> None:
        """The candidate's answer is complete."""
        self._upstream = None
        if last:
            self.candidate.hear(self.tap.now(), last)
        self._answered("answered" if self.candidate.status < 300 else "status")

    def on_broken(self, upstream: UpstreamConnection, reason: str) -> None:
        """The connection ended before the answer did."""
        self._upstream = None
        if upstream.reused and upstream.unheard and self.target is not None:
            # A kept connection had been closed meanwhile, and nothing was begun.
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self.target.backend))
            return
        self._failed("reset")

    def _hold(self, side: Side, data: bytes) -> None:
        self.held += len(data)
        self.tap.hold(len(data))
        if side.size > MAX_ANSWER:
            if side is self.candidate:
                # That it does not come to an end is something to hold against it, as soon as the base has answered.
                side.pieces.clear()
                self._failed("answer_too_large")
            else:
                self.end("answer_too_large")
        elif self.tap.full:
            self.end("memory")

    # Its end

    def _failed(self, failure: str) -> None:
        """The candidate has not answered, which is an outcome as well: the recorder counts it."""
        if not self.over and not self.candidate.ended_at:
            self.candidate.failure = failure
            self._answered(failure)

    def _answered(self, outcome: str) -> None:
        self.tap.counts.outcomes[outcome] += 1
        self.candidate.ended_at = self.tap.now()
        self._let_go()
        if self.base_is_known:
            self._complete()

    def _complete(self) -> None:
        self.tap.paired(self)
        self.end("")

    def end(self, reason: str) -> None:
        """Nothing more comes of it. `reason` is a label of its counter; empty where it has been counted."""
        if self.over:
            return
        self.over = True
        if reason and not self.candidate.ended_at:
            counts = self.tap.counts
            (counts.outcomes if self.sent else counts.skipped)[reason] += 1
        self._let_go()
        self.tap.forget(self)

    def _let_go(self) -> None:
        """Give back connection, timer and place."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()
        connecting, self._connecting = self._connecting, None
        if connecting is not None and connecting is not asyncio.current_task():
            connecting.cancel()
        target, self.target = self.target, None
        if target is not None:
            self.tap.leave(target)

    def pair(self) -> Pair:
        """Both answers, for the recorder."""
        return Pair(
            id=self.request_id.decode(),
            at=self.at,
            service=self.tap.service,
            base=self.revision,
            candidate=self.tap.shadow.revision,
            pool=self.pool,
            shape=SHAPES[self.shape].value,
            path=self.path.decode(),
            tenant=self.tenant.name,
            request=self.body,
            answers=(self.base.told(), self.candidate.told()),
            replicas=(self.base_address, self._address),
            served=(self.base_name, self._name),
        )
