"""What is kept of one request while it is under way, and what others may read of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline_crds.headers import DEADLINE_MS, PRIORITY, PROMPT_VERSION, SESSION
from paceline_router.flow import words
from paceline_router.flow.versions import lane_again
from paceline_router.tenancy.gate import priority_of
from paceline_router.wire.heads import TRACE_PARENT

if TYPE_CHECKING:
    from paceline_router.choice.decision import Decision
    from paceline_router.flow.admission import Admitted
    from paceline_router.flow.backend import Backend
    from paceline_router.flow.dataplane import DataPlane
    from paceline_router.flow.living import Living
    from paceline_router.flow.reply import Mode
    from paceline_router.report.tracing import Trace
    from paceline_router.shape.interference import Interference
    from paceline_router.table.pools import Spill
    from paceline_router.table.routes import Lane
    from paceline_router.wire.answers import Refusal
    from paceline_router.wire.parties import Asker
    from paceline_router.wire.requests import Request
    from paceline_router.wire.response_head import ResponseHead
    from paceline_router.wire.upstream import UpstreamConnection


class Record:
    """The attributes of an exchange. Its parts stand on it, one upon the other: wait, answer, attempts.

    Times are monotonic seconds, 0 while the moment has not come.

    Attributes:
        asked: what admission found out about the request.
        tokens: reserved in the tenant's buckets.
        place, parked_at: the gate's (see `tenancy.gate.Ticket`).
        started_at: when the request had arrived in full.
        admitted_at, sent_at, first_byte_at, ended_at: see `report.finished.Finished`.
        attempts: how often it was sent to a replica, or a connection for it tried.
        status: of the answer; 0 where the client left before there was one.
        outcome: see `report.cells.OUTCOMES`; empty while it runs.
        failure: how the last attempt failed, in words.
        backend: the replica it is at, or the last one that it was at; `labels`, `pool`, `revision` are of that one.
        lane: the version's share of the service's traffic.
        tried: replicas that have failed it.
        waits: it is in the gate's queue.
        watched: the recorder of its pool, where this request is one that is watched; `watch` is what that gave it.
        session: what the client calls its conversation.
        turn: spreads requests over versions; the same for all attempts.
        by_hand: the revision that the client asked for.
        choice: why this replica; `spill`: why this pool.
        prompt_version: as the client calls it; empty where it does not.
        prompt_tokens, output_tokens: as the replica counted them; None when it did not say.
        events: of a stream, that came; of each, one token or more.
    """

    __slots__ = (
        "_answer_head",
        "_answered",
        "_at_replica",
        "_begun",
        "_body",
        "_cached",
        "_client",
        "_closes",
        "_comment_at",
        "_deadline",
        "_head_sent",
        "_held",
        "_late_words",
        "_mark",
        "_mode",
        "_model",
        "_plane",
        "_probe",
        "_request",
        "_resent",
        "_response",
        "_upstream",
        "admitted_at",
        "asked",
        "attempts",
        "backend",
        "by_hand",
        "choice",
        "concurrency",
        "ended_at",
        "engine_timing",
        "events",
        "failure",
        "finished",
        "first_byte_at",
        "heard_at",
        "labels",
        "lane",
        "living",
        "metrics",
        "outcome",
        "output_tokens",
        "parked_at",
        "path",
        "place",
        "pool",
        "prompt_tokens",
        "prompt_version",
        "request_id",
        "revision",
        "sent_at",
        "session",
        "shape",
        "spill",
        "started_at",
        "status",
        "stream",
        "tenant",
        "tokens",
        "trace",
        "tried",
        "turn",
        "waits",
        "watch",
        "watched",
    )

    _answer_head: bytes
    _answered: bool
    """The replica has begun to answer."""
    _at_replica: bool
    _begun: bool
    """A part of the replica's answer has been passed on, so that there is no other attempt."""
    _body: bytes
    _cached: int
    _head_sent: bool
    """The client has a status line."""
    _held: bytes | list[bytes]
    """What has come of an answer that is passed on whole."""
    _mark: int
    _mode: Mode
    _probe: bool
    _resent: bool
    """A kept connection had been closed, and it went to the same replica over a new one: that is done once."""
    """This attempt finds out whether an ejected replica is back."""
    choice: Decision
    labels: bytes
    lane: Lane
    spill: Spill

    def __init__(
        self,
        plane: DataPlane,
        client: Asker,
        request: Request,
        living: Living,
        path: bytes,
        model: str | None,
        stream: bool,
        asked: Admitted,
        request_id: bytes,
        turn: int,
        by_hand: str | None = None,
    ) -> None:
        self._plane = plane
        self._client = client
        self._request = request
        self._model = model
        self.living = living
        self.path = path
        self.request_id = request_id
        self.stream = stream
        self.asked = asked
        self.tenant = asked.tenant
        self.shape = asked.shaped.shape
        self.tokens = asked.tokens
        self.by_hand = by_hand
        self.turn = turn
        now = self.started_at = self.heard_at = request.received_at
        self.admitted_at = self.parked_at = self.sent_at = self.first_byte_at = self.ended_at = 0.0
        self.attempts = self.status = self.events = 0
        self.outcome = self.failure = self.pool = self.revision = ""
        self.finished = self.waits = self._begun = self._head_sent = self._probe = self._at_replica = False
        self._resent = False
        self.place: Any = None
        self.backend: Backend | None = None
        self.engine_timing: bytes | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.trace: Trace | None = None
        self._upstream: UpstreamConnection | None = None
        self._response: ResponseHead | None = None
        self._held = b""
        self.tried: Sequence[Backend] = ()
        self.watched: Interference | None = None
        self.watch = 0
        metrics = self.metrics = living.metrics
        self.concurrency = metrics.in_flight = metrics.in_flight + 1
        most = living.policy.max_request
        self._late_words = self.prompt_version = ""
        self.session: bytes | None = None
        if not request.plain:
            headers = request.headers
            self.session = headers.get(SESSION)
            self.prompt_version = headers.get(PROMPT_VERSION, b"").decode("latin-1")
            left = headers.get(DEADLINE_MS)
            if left is not None and int(left) < most * 1000.0:
                most = int(left) / 1000.0
                self._late_words = "The deadline that the client set has passed."
        self._deadline = now + most
        self._closes = request.http10 or not request.keep_alive
        self._comment_at = now + plane.settings.comment_after

    # What others read of it

    @property
    def service(self) -> str:
        """`namespace/name`."""
        return self.living.key

    @property
    def request(self) -> Request:
        """As it came."""
        return self._request

    @property
    def replica(self) -> str:
        """Name of the replica it is or was at."""
        return "" if self.backend is None else self.backend.replica.name

    @property
    def tenant_label(self) -> str:
        """As metrics may have it."""
        return self.tenant.label

    @property
    def traceparent(self) -> bytes | None:
        """As the client sent it."""
        return self._request.headers.get(TRACE_PARENT)

    @property
    def choices(self) -> int:
        """Answers asked for."""
        return self.asked.shaped.n

    @property
    def priority(self) -> int:
        """Class within the tenant; lower is sooner."""
        return priority_of(self._request.headers.get(PRIORITY))

    def reason(self) -> str:
        """Why this replica, in words."""
        return words.reason(self) if self.backend is not None else self.failure

    # What the parts of an exchange ask of each other

    def _lane_again(self) -> Lane:
        """The lane for a further attempt, or after a wait."""
        return lane_again(self)

    def _attempt(self, now: float) -> None:
        """Choose a replica and send the request there."""
        raise NotImplementedError

    def _none_takes_it(self, now: float) -> None:
        """There is no replica for it now: wait, or answer so."""
        raise NotImplementedError

    def _start_at(self, backend: Backend, now: float) -> None:
        """Send the request to this replica."""
        raise NotImplementedError

    def _answer(self, refusal: Refusal, reason: str = "") -> None:
        """End with the router's own error. `reason` is its label in metrics."""
        raise NotImplementedError

    def _release(self) -> None:
        """Let go of the replica."""
        raise NotImplementedError

    def _finish(self, outcome: str, keep_alive: bool | None = True) -> None:
        """The end."""
        raise NotImplementedError
