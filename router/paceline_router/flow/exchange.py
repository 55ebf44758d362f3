"""One request on its way: the attempts it takes, what its replica says, and an end that always comes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from paceline_crds.headers import DEADLINE_MS, EXPLAIN, SHAPE
from paceline_router.flow import loads, reply
from paceline_router.flow.answering import REASON_LINE, Answering
from paceline_router.flow.causes import REASONS, STOP_WORDS, Cause, Verdict, decide, lost
from paceline_router.flow.health import HEALTHY, Event, Phase
from paceline_router.flow.places import Place
from paceline_router.report.timing import server_timing
from paceline_router.table.policy import SHAPES
from paceline_router.wire import answers, heads
from paceline_router.wire.answers import Refusal
from paceline_router.wire.heads import TRACE_PARENT
from paceline_router.wire.requests import body_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline_router.flow.backend import Backend
    from paceline_router.wire.response_head import ResponseHead
    from paceline_router.wire.upstream import UpstreamConnection

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 0.001
"""Between two requests that are watched for what shapes do to each other: all of most services, some of a busy one."""

RETRY_AFTER_STOPPING: Final = 1
"""Seconds; others may be there already, and nothing of the request has reached the client."""

_BLAME: Final = {Cause.CONNECT: Event.CONNECT_FAILED, Cause.RESET: Event.RESET}
# After a request id, whose line they end.
_SHAPE_LINES: Final = tuple(b"\r\n%b: %b\r\n" % (SHAPE.encode(), shape.value.encode()) for shape in SHAPES)
_EXPLAINED: Final = b"%b%bserver-timing: %%b\r\n" % (b"%b", REASON_LINE)


class Exchange(Answering):
    """Made for each request that goes to a replica. It always ends in exactly one call of `_finish`.

    Until a byte of a replica's answer has been passed on, a failure leads to another attempt or to an error answer;
    after that to an error event in a stream, or to a closed connection.
    """

    __slots__ = ()

    # Attempts

    def _attempt(self, now: float) -> None:
        backend = self._plane.choose_for(self, now)
        if backend is not None:
            self._start_at(backend, now)
        else:
            self._none_takes_it(now)

    def _none_takes_it(self, now: float) -> None:
        if self.tried and self.lane.backends:
            # Every one has failed it once: wait a little, then begin anew with the table of then.
            self._plane.later(self._plane.settings.retry_pause, self._again)
        elif self.by_hand is not None:
            self._none_ready()
        else:
            self._wait_again(now)

    def _again(self) -> None:
        if not self.finished:
            self.tried = ()
            self.lane = self._lane_again()
            self._attempt(self._plane.now())

    def _start_at(self, backend: Backend, now: float) -> None:
        living = self.living
        place = backend.place
        if place is None or place.lane is not self.lane or place.route is not living.route:
            place = backend.place = Place(self.lane, living.route, backend.key)
        body = self.asked.raw
        if place.served != self._model:
            body = body_for(place.served, self._model, body)
        self._body = body
        self.attempts += 1
        self.labels = place.labels
        self.pool = place.pool
        self.revision = place.revision
        chooser = living.chooser
        self.choice = chooser.last
        self._cached = chooser.cached
        if now >= living.watch_from and self.watched is None:
            living.watch_from = now + WATCH_SECONDS
            self.watched = living.watcher(self.pool, now)
            self.watch = self.watched.enter(self.shape)
        self._send_to(backend, now)

    def _send_to(self, backend: Backend, now: float, *, fresh: bool = False) -> None:
        self.backend = backend
        self._at_replica = True
        self._answered = False
        shaped = self.asked.shaped
        self._mark = backend.begin(shaped.prompt_tokens, shaped.output_tokens, self._cached)
        health = backend.health
        if health is not HEALTHY and health.phase is Phase.OPEN:
            # Its time is over, or there is nobody else: this request finds out how it is.
            self.living.judge(backend, Event.PROBE_SENT, now)
            self._probe = True
        self.sent_at = self.heard_at = now
        if backend.idle and not fresh:
            self._send_on(backend.idle.pop())
        else:
            self._plane.connect(backend, self)

    def connected(self, connection: UpstreamConnection) -> bool:
        """A connection asked of the data plane is there; False when it is no longer wanted."""
        if not self._waits_for(connection.backend):
            return False
        self.heard_at = self._plane.now()
        self._send_on(connection)
        return True

    def connect_failed(self, backend: Backend, reason: str) -> None:
        """No connection could be made."""
        if self._waits_for(backend):
            self._failed(Cause.CONNECT, f"no connection to it: {reason}")
        elif not backend.removed:
            self.living.judge(backend, Event.CONNECT_FAILED, self._plane.now())

    def _waits_for(self, backend: Backend) -> bool:
        return self._at_replica and self._upstream is None and self.backend is backend

    def _send_on(self, connection: UpstreamConnection) -> None:
        self._upstream = connection
        request = self._request
        body = self._body
        more = self.tenant.line
        if not request.plain or self.trace is not None:
            headers = request.headers
            if DEADLINE_MS in headers:
                # What is left of it now: a wait or an earlier attempt may have used some.
                left = max(1, int((self._deadline - self.heard_at) * 1000.0))
                headers = {**headers, DEADLINE_MS: b"%d" % left}
            if self.trace is not None:
                headers = {**headers, TRACE_PARENT: self.trace.traceparent()}
            more += heads.passed_on(headers)
        backend = connection.backend
        connection.send(
            self,
            b"".join(
                (
                    backend.heads.get(self.path) or backend.head(self.path),
                    self.request_id,
                    _SHAPE_LINES[self.shape],
                    more,
                    b"content-length: %d\r\n\r\n" % len(body),
                    body,
                )
            ),
        )

    def _failed(self, cause: Cause, failure: str) -> None:
        """An attempt has failed before anything was passed on."""
        now = self._plane.now()
        self.failure = failure
        log.info("request %s: attempt %d failed: %s", self.request_id.decode(), self.attempts, failure)
        event = _BLAME.get(cause)
        probe = self._probe
        if event is not None:
            self._judge(event, now)
        self._after(cause, self._verdict(cause, probe, now), now)

    def _verdict(self, cause: Cause, probe: bool, now: float) -> Verdict:
        living = self.living
        return decide(
            cause,
            self.attempts,
            self._plane.settings.max_attempts,
            breaking=living.breaking(),
            probe=probe,
            budget=living.budget.has(now),
            another=cause is Cause.CONNECT and any(not other.health.ejected for other in self._untried()),
        )

    def _untried(self) -> Iterator[Backend]:
        """Replicas that have room and have not failed the request."""
        most = self._plane.settings.max_in_flight
        for other in self.lane.backends:
            if other is not self.backend and other not in self.tried and other.in_flight < most:
                yield other

    def _after(self, cause: Cause, verdict: Verdict, now: float) -> None:
        """What follows an attempt that failed."""
        plane, living, backend = self._plane, self.living, self.backend
        assert backend is not None
        self._release()
        self._response = None
        self._held = b""
        if verdict is Verdict.SAME:
            self.metrics.retries[REASONS[cause]] += 1
            self._resent = True
            self.attempts += 1
            self._send_to(backend, now, fresh=True)
        elif verdict is Verdict.RETRY or verdict is Verdict.UNSENT:
            if verdict is Verdict.RETRY:
                living.budget.take(now)
            self.metrics.retries[REASONS[cause]] += 1
            self.tried = (*self.tried, backend)
            self.lane = self._lane_again()
            self._attempt(now)
        else:
            if verdict is Verdict.BUDGET or verdict is Verdict.BREAKING:
                plane.metrics.retries_refused += 1
            times = f"{self.attempts} attempts" if self.attempts > 1 else "1 attempt"
            text = f"No replica of the model could answer ({times}; last: {self.failure}){STOP_WORDS[verdict]}."
            # Where nothing was begun, another try in a moment is as good as this one was.
            again = cause is Cause.UNAVAILABLE or cause is Cause.CONNECT
            self._answer(answers.unavailable(text, 1) if again else answers.upstream_failed(text))

    def _judge(self, event: Event, now: float) -> None:
        """Tell the fleet how its replica fared. Ends the attempt's part as a probe."""
        backend, probe = self.backend, self._probe
        self._probe = False
        if backend is not None and not backend.removed:
            self.living.judge(backend, event, now, probe)

    def _other_takes_it(self, cause: Cause, head: ResponseHead, now: float) -> bool:
        """The replica refuses for the moment: whether another one is asked instead."""
        backend = self.backend
        assert backend is not None
        probe, self._probe = self._probe, False
        after = head.retry_after
        backend.back_off(float(after) if after is not None and after.isdigit() and len(after) < 9 else None, now, probe)
        return self._verdict(cause, probe, now) is Verdict.RETRY and next(self._untried(), None) is not None

    # What the upstream connection says

    def on_head(self, upstream: UpstreamConnection, head: ResponseHead) -> None:
        """Status and headers are there."""
        plane = self._plane
        now = self.heard_at = plane.now()
        backend = upstream.backend
        if now >= backend.next_report and head.load is not None:
            self._take_load(backend, head.load, now)
        status = head.status
        if status >= 429:
            cause = _refused_for_now(head)
            if cause is not None:
                if self._other_takes_it(cause, head, now):
                    self.failure = "it takes no new requests"
                    self._after(cause, Verdict.RETRY, now)
                    return
            elif status >= 500 or backend.health is not HEALTHY:
                self._judge(Event.SERVER_ERROR if status >= 500 else Event.ANSWERED, now)
        elif backend.health is not HEALTHY:
            self._judge(Event.ANSWERED, now)
        self._answered = True
        shaped = self.asked.shaped
        backend.answered(shaped.prompt_tokens, self._cached, self._mark)
        self.first_byte_at = now
        self.engine_timing = head.timing
        self._response = head
        if self._client.unwritable_since is not None:
            self.pause()  # an earlier answer on the connection still waits for the client
        if self._head_sent:
            return
        more = head.lines
        request = self._request
        if not request.plain and request.headers.get(EXPLAIN) == b"1":
            more += self._explanation(now)
        if (self._closes or plane.stopping) and not self._keep_alive():
            self._closes = True
            more += reply.CLOSE
        self._answer_head = b"".join((reply.STARTS[status], self.request_id, b"\r\n", self.labels, more))

    def _take_load(self, backend: Backend, value: bytes, now: float) -> None:
        report = loads.from_header(value)
        if report is None:
            self._plane.metrics.unusual_reports += 1
        else:
            backend.hear(report, now)

    def _explanation(self, now: float) -> bytes:
        why = self.reason().encode("latin-1", "replace")
        return _EXPLAINED % (_SHAPE_LINES[self.shape][2:], why, server_timing(self, now))

    def on_broken(self, upstream: UpstreamConnection, reason: str) -> None:
        """The connection ended before the answer did."""
        if not self._begun:
            again = upstream.reused and not self._resent and not upstream.backend.removed
            since = self._plane.now() - self.sent_at
            self._failed(lost(since, reused=again, unheard=upstream.unheard), reason)
            return
        self._judge(Event.RESET, self._plane.now())
        self._break_answer(f"The replica failed while it was answering: {reason}.")

    # Outside events

    def cancel(self) -> None:
        """The client is gone: the replica's connection is closed at once, so that it stops generating."""
        if not self.finished:
            self._release()
            self._finish("cancelled", keep_alive=None)

    def refuse(self, refusal: Refusal) -> None:
        """End a request that still waits."""
        if not self.finished:
            self._answer(refusal)

    def pause(self) -> None:
        """The client does not read: stop reading from the replica."""
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume(self) -> None:
        """The client reads again."""
        if self._upstream is not None:
            self.heard_at = self._plane.now()
            self._upstream.transport.resume_reading()

    def check_time(self, now: float) -> None:
        """Called now and then by the data plane: end what has waited too long."""
        settings = self._plane.settings
        unwritable = self._client.unwritable_since
        if now >= self._deadline:
            most = self.living.policy.max_request
            self._time_out(
                self._late_words or f"The request took longer than {most:g} s, which is the most it may.", "deadline"
            )
        elif unwritable is not None:
            if now - unwritable > settings.client_write_timeout:
                log.info("request %s: the client does not read", self.request_id.decode())
                self._client.transport.abort()
        elif not self._at_replica:
            if self.waits:
                self._check_wait(now)
        elif self._upstream is None:
            pass  # connecting, which has a time-out of its own
        elif self._response is None:
            if now - self.heard_at > settings.first_byte_timeout:
                self._judge(Event.SILENT, now)
                self._time_out(f"The replica sent nothing for {settings.first_byte_timeout:g} s.")
        elif now - self.heard_at > settings.idle_timeout:
            self._judge(Event.SILENT, now)
            self._time_out(f"The replica fell silent for {settings.idle_timeout:g} s.")
        if self.stream and now >= self._comment_at and not self._begun and not self.finished and unwritable is None:
            self._comment(now)

    def abort(self, message: str) -> None:
        """The router is stopping and will not wait any longer."""
        self._give_up(answers.unavailable(f"{message} Send the request again.", RETRY_AFTER_STOPPING))

    def _time_out(self, message: str, reason: str = "") -> None:
        self._give_up(answers.upstream_timeout(message), reason)

    def _give_up(self, refusal: Refusal, reason: str = "") -> None:
        """Wait no longer, for whatever it is."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()
        message = str(refusal)
        if self._begun:
            self._break_answer(message)
        else:
            self.failure = message
            self._answer(refusal, reason)

    def _release(self) -> None:
        """Let go of the replica; a connection that is still ours is closed."""
        upstream = self._upstream
        if upstream is not None:
            self._upstream = None
            if upstream.exchange is self:
                upstream.close()
        if self._at_replica:
            self._at_replica = False
            backend = self.backend
            assert backend is not None
            shaped = self.asked.shaped
            backend.end(shaped.prompt_tokens, shaped.output_tokens, self._cached, self._mark, self._answered)
            if self._probe:
                self._judge(Event.PROBE_LOST, self._plane.now())

    def _finish(self, outcome: str, keep_alive: bool | None = True) -> None:
        """Count the request and hand the client's connection back. `keep_alive=None`: that connection is gone."""
        if self.finished:
            return
        self._release()
        self.finished = True
        self.outcome = outcome
        if self.waits:
            self.living.held_bytes -= len(self._request.body)
        self._plane.ended(self)
        client = self._client
        if keep_alive is not None:
            # A client that was not told of the end is let in once more, also while the router stops.
            client.done(keep_alive and not (self._closes and not self._keep_alive()), self.ended_at)
        elif client.active is self:
            client.active = None


def _refused_for_now(head: ResponseHead) -> Cause | None:
    """The cause where the replica says that it is busy rather than broken."""
    if head.status == 429:
        return Cause.BUSY
    return Cause.UNAVAILABLE if head.status == 503 and head.retry_after is not None else None
