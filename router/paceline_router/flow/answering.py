"""How an answer goes to the client: head, body, comments while it waits, and errors in the form that still fits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from paceline_crds.headers import EXPLAIN, REASON
from paceline_router.flow import reply
from paceline_router.flow.reply import Mode
from paceline_router.flow.waiting import Waiting
from paceline_router.wire import answers
from paceline_router.wire.answers import Refusal, error_event, refusal_event
from paceline_router.wire.chunks import LAST_CHUNK, as_chunk, dechunk
from paceline_router.wire.usage import usage_of

if TYPE_CHECKING:
    from paceline_router.wire.response_head import ResponseHead

log = logging.getLogger(__name__)

REASON_LINE: Final = b"%b: %%b\r\n" % REASON.encode()

CLASSES: Final[tuple[str, ...]] = ("", "1xx", "2xx", "3xx", "4xx", "5xx")
"""Outcomes by the first digit of a status."""


class Answering(Waiting):
    """The client's side of an exchange."""

    __slots__ = ()

    # From the replica

    def on_data(self, data: bytes) -> None:
        """A part of the body, in the framing it came in."""
        if self._begun:
            self.heard_at = self._plane.swept_at
            mode = self._mode
            self._client.transport.write(reply.framed(mode, data) if mode else data)
            return
        response = self._response
        assert response is not None
        if response.sse and (response.status < 300 or not self._head_sent):
            self._send_head(data, response.length)
        elif not self._held:
            self._held = data
        else:
            self._hold_more(data, response)

    def _hold_more(self, data: bytes, response: ResponseHead) -> None:
        held = self._held
        if isinstance(held, bytes):
            self._held = held = [held]
        held.append(data)
        if not self._head_sent and sum(map(len, held)) > self._plane.settings.whole_answer_bytes:
            self._held = b""
            self._send_head(b"".join(held), response.length)

    def on_end(self, last: bytes = b"") -> None:
        """The answer is complete, and the connection is no longer this exchange's. `last` is a part as in `on_data`."""
        upstream = self._upstream
        self._upstream = None
        response = self._response
        assert response is not None
        assert upstream is not None
        status = response.status
        if last:
            if not self._head_sent and not self._held and not response.sse:
                # As below, for an answer that came at once.
                self._begun = self._head_sent = True
                length = b"content-length: %d\r\n\r\n" % len(last)
                self._client.transport.write(b"".join((self._answer_head, length, last)))
                if status < 300:
                    usage = usage_of(last)
                    if usage is not None:
                        self.prompt_tokens, self.output_tokens = usage
                self.status = status
                self._finish(CLASSES[status // 100])
                return
            self.on_data(last)
            if self.finished:
                return
        if self._begun:
            if self._mode is Mode.INTO_CHUNKS:
                self._client.transport.write(LAST_CHUNK)
            if response.sse:
                self.events = upstream.events
                usage = usage_of(upstream.tail)
                if usage is not None:
                    self.prompt_tokens, self.output_tokens = usage
        else:
            held = self._held
            if not isinstance(held, bytes):
                held = b"".join(held)
            if response.chunked and (self._request.http10 or not response.sse):
                held = dechunk(held)
                response.chunked = False
            if self._head_sent:
                self._end_early(status, reply.event_of(held))
                return
            if status < 300:
                usage = usage_of(held)
                if usage is not None:
                    self.prompt_tokens, self.output_tokens = usage
            if response.length is None or status in (204, 304):
                self._send_head(held, len(held))
            else:
                self._begun = self._head_sent = True
                length = b"content-length: %d\r\n\r\n" % len(held)
                self._client.transport.write(b"".join((self._answer_head, length, held)))
        self.status = status
        self._finish(CLASSES[status // 100])

    # Towards the client

    def _send_head(self, data: bytes, length: int | None) -> None:
        self._begun = True
        response = self._response
        assert response is not None
        if self._head_sent:
            mode = self._mode = reply.early_mode(response, self._request.http10)
            self._client.transport.write(reply.framed(mode, data))
            return
        self._head_sent = True
        last_lines, mode = reply.framing(response, length, self._request.http10)
        self._mode = mode
        self._client.transport.write(self._answer_head + last_lines + (reply.framed(mode, data) if mode else data))

    def _comment(self, now: float) -> None:
        """Tell a client that waits for a stream, and whatever is in between, that the connection lives.

        The status line is then sent: what goes wrong later is an error event. Other attempts remain possible.
        """
        self._comment_at = now + self._plane.settings.comment_after
        http10 = self._request.http10
        out = reply.COMMENT if http10 else as_chunk(reply.COMMENT)
        if not self._head_sent:
            self._head_sent = True
            keep_alive = self._keep_alive() and not http10
            self._closes = self._closes or not keep_alive
            out = reply.early_head(self.request_id, http10, keep_alive) + out
        self._client.transport.write(out)

    def _keep_alive(self) -> bool:
        request = self._request
        if not request.keep_alive or self._plane.stopping:
            return False
        if not request.http10:
            return True
        # An HTTP/1.0 client learns the end of a body without a length from the end of the connection.
        response = self._response
        return not (response is not None and response.length is None)

    def _answer(self, refusal: Refusal, reason: str = "") -> None:
        """End with the router's own error. `reason` is its label in metrics."""
        self._release()
        if reason:
            self.metrics.refused(reason)
        if refusal.status >= 500:
            log.warning("request %s to %s: %d %s", self.request_id.decode(), self.living.key, refusal.status, refusal)
        if self._head_sent:
            self._end_early(refusal.status, refusal_event(refusal, self.request_id.decode()))
            return
        keep_alive = self._request.keep_alive and not self._plane.stopping
        more = b""
        if self._request.headers.get(EXPLAIN) == b"1":
            more = REASON_LINE % (self.failure or "no replica was asked").encode("latin-1", "replace")
        self._client.transport.write(answers.render(refusal.answer, self.request_id, keep_alive=keep_alive, more=more))
        self.status = refusal.status
        self._finish(CLASSES[refusal.status // 100], keep_alive)

    def _end_early(self, status: int, event: bytes | None) -> None:
        """End a stream of which only comments have been sent. The client has 200, and reads what went wrong here."""
        self._begun = True
        if event is None:
            event = error_event(f"The replica answered {status} instead of a stream.", self.request_id.decode())
        http10 = self._request.http10
        self._client.transport.write(event if http10 else as_chunk(event) + LAST_CHUNK)
        self.status = status
        self._finish("broken_stream" if status < 300 else CLASSES[status // 100], keep_alive=False)

    def _break_answer(self, message: str) -> None:
        """End an answer of which a part has been passed on."""
        response = self._response
        assert response is not None
        log.warning("request %s to %s: %s", self.request_id.decode(), self.living.key, message)
        self.status = response.status
        if response.sse and not response.encoded and response.length is None:
            # What came before may have ended inside an event; empty lines mean nothing where it has not.
            event = b"\n\n" + error_event(message, self.request_id.decode())
            self._client.transport.write(event if self._request.http10 else as_chunk(event) + LAST_CHUNK)
            self._release()
            self._finish("broken_stream", keep_alive=False)
        else:
            # The body is short of its length: only a broken connection says so.
            client = self._client
            self._release()
            self._finish("5xx", keep_alive=None)
            client.transport.abort()
