"""The front end's end of the socket to the engine core: requests go out, tokens come in and find their request."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from paceline_crds.headers import LoadReport
from paceline_runtime.messages import (
    Abort,
    AddRequest,
    CoreMessage,
    EngineStats,
    Fatal,
    FrontMessage,
    ProtocolError,
    Ready,
    Rejected,
    RequestEvent,
    SamplingParams,
    Shutdown,
    StepOutputs,
    Tune,
    Tuned,
    core_decoder,
    encode_frame,
)

from .submission import Caller, EngineGone, Submission

log = logging.getLogger(__name__)

ANONYMOUS: Final = Caller()


class EngineClient:
    """Listens for the core, and keeps the table of open requests.

    Attributes:
        ready: resolves with the core's facts; fails with `EngineGone` when the core ends before.
        gone: resolves when the connection is over, or a message could not be understood.
        fatal: what the core said before it went.
        stats: the last report, and `stats_at` when it came (monotonic seconds).
        progress_at: when the engine last got on with its work, or had none.
        produced_at: when tokens last came.
        probed_at: when the test of life that is not answered yet was sent.
    """

    def __init__(self, on_stats: Callable[[EngineStats], None] = lambda _: None) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.fatal: Fatal | None = None
        self.stats: EngineStats | None = None
        self.stats_at: float | None = None
        self.progress_at: float | None = None
        self.produced_at: float | None = None
        self.probed_at: float | None = None
        self._sent_at: float | None = None
        self._probe_id: str | None = None
        self._probe_answered = asyncio.Event()
        self._on_stats = on_stats
        self._server: asyncio.Server | None = None
        self._transport: asyncio.Transport | None = None
        self._submissions: dict[str, Submission] = {}
        self._ids = itertools.count(1)
        self._reports = itertools.count(1)
        self._tunings: deque[asyncio.Future[Tuned]] = deque()

    async def listen(self, path: Path) -> None:
        """Wait for the core on a Unix socket at `path`."""
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: _Connection(self), str(path))

    @property
    def open_requests(self) -> int:
        """Requests the engine still works on, as far as the front end knows."""
        return len(self._submissions)

    @property
    def busy(self) -> bool:
        """Whether the engine has work, or may have: what was sent since it last spoke counts, even if aborted."""
        stats = self.stats
        unanswered = self._sent_at is not None and (self.stats_at is None or self.stats_at < self._sent_at)
        return bool(self._submissions) or unanswered or (stats is not None and stats.running + stats.waiting > 0)

    @property
    def connected(self) -> bool:
        """Whether the core is there and has said it is ready."""
        return (
            self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None and not self.gone.done()
        )

    def submit(
        self,
        prompts: Sequence[tuple[list[int], SamplingParams]],
        *,
        n: int = 1,
        caller: Caller = ANONYMOUS,
        on_event: Callable[[int, RequestEvent], None] = lambda _, __: None,
        counted: bool = True,
    ) -> Submission:
        """Queue prompts (token ids and how to go on from there), each for `n` answers.

        The answer with index `i` is to the prompt `i // n`. The engine computes each prompt once. `counted` as in
        `AddRequest`.

        Raises:
            EngineGone: when there is no engine.
        """
        self._must_be_there()
        request_ids = [f"r{next(self._ids)}" for _ in range(len(prompts) * n)]
        submission = Submission(self, request_ids, on_event)
        arrival = self._sent_at = time.monotonic()
        self._submissions.update(dict.fromkeys(request_ids, submission))
        for at, (token_ids, sampling) in enumerate(prompts):
            first, *forks = request_ids[at * n : (at + 1) * n]
            self._send(
                AddRequest(
                    request_id=first,
                    prompt_token_ids=token_ids,
                    sampling=sampling,
                    arrival_time=arrival,
                    fork_ids=tuple(forks),
                    tenant=caller.tenant,
                    priority=caller.priority,
                    deadline=caller.deadline,
                    cache_salt=caller.cache_salt,
                    session=caller.session,
                    counted=counted,
                )
            )
        return submission

    async def probe(self, token_id: int, patience: float) -> bool:
        """Ask the engine for one token, ahead of everything that waits; whether it came within `patience` seconds.

        While one such question is open no second is asked.

        Raises:
            EngineGone: when there is no engine.
        """
        self._must_be_there()
        if self._probe_id is None:
            self.probed_at = time.monotonic()
            self._probe_id = f"probe{next(self._ids)}"
            self._probe_answered.clear()
            sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
            self._send(
                AddRequest(
                    request_id=self._probe_id,
                    prompt_token_ids=[token_id],
                    sampling=sampling,
                    arrival_time=self.probed_at,
                    probe=True,
                )
            )
        try:
            async with asyncio.timeout(patience):
                await self._probe_answered.wait()
        except TimeoutError:
            return False
        return True

    async def tune(self, knobs: Mapping[str, int]) -> Tuned:
        """Ask the engine to run with other knobs; what became of that.

        Raises:
            EngineGone: when there is no engine, or it went before it answered.
        """
        self._must_be_there()
        answer: asyncio.Future[Tuned] = asyncio.get_running_loop().create_future()
        self._tunings.append(answer)
        self._send(Tune(dict(knobs)))
        return await answer

    def _must_be_there(self) -> None:
        if not self.connected or self._transport is None:
            raise EngineGone("The engine is not running.")

    def _probe_over(self) -> None:
        self._probe_id = self.probed_at = None
        self._probe_answered.set()

    def abort(self, request_ids: list[str]) -> None:
        """Tell the engine to stop these."""
        self._send(Abort(request_ids))

    def forget(self, request_id: str) -> None:
        """The request is over; late outputs are dropped."""
        self._submissions.pop(request_id, None)

    def shutdown(self) -> None:
        """Tell the core to drop everything and exit."""
        self._send(Shutdown())

    def close(self) -> None:
        """Stop listening and end the connection."""
        if self._server is not None:
            self._server.close()
        if self._transport is not None:
            self._transport.close()

    def fail_open(self, error: Exception) -> None:
        """End every open request with an error."""
        for submission in set(self._submissions.values()):
            submission.fail(error)

    def load(self) -> LoadReport | None:
        """The replica's load now; `None` while the engine has not reported any (not known, which is not idle).

        The engine's last report may be a step old: requests sent since then count as waiting.
        """
        stats = self.stats
        if stats is None:
            return None
        running = min(stats.running, self.open_requests)
        return LoadReport(
            running=running,
            waiting=self.open_requests - running,
            kv_percent=round(100 * stats.kv_blocks_used / stats.kv_blocks_total) if stats.kv_blocks_total else 0,
            prefill_tokens=stats.prefill_tokens,
            decode_tokens=stats.decode_tokens,
            sequence=next(self._reports),
        )

    def _send(self, message: FrontMessage) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    # --- called by the connection ---

    def connection_made(self, transport: asyncio.Transport) -> bool:
        """Only one core may connect."""
        if self._transport is not None:
            return False
        self._transport = transport
        if self._server is not None:
            self._server.close()
        return True

    def receive(self, message: CoreMessage) -> None:
        """Hand a message to whom it concerns."""
        if isinstance(message, StepOutputs):
            self._take_step(message, time.monotonic())
        elif isinstance(message, Rejected):
            submission = self._submissions.get(message.request_id)
            if submission is not None:
                submission.reject(message)
            elif message.request_id == self._probe_id:
                self._probe_over()  # a refusal too is an answer of a living engine
        elif isinstance(message, Ready):
            if not self.ready.done():
                self.progress_at = time.monotonic()
                self.ready.set_result(message)
        elif isinstance(message, Tuned):
            answer = self._tunings.popleft()
            if not answer.done():  # whoever asked may have given up
                answer.set_result(message)
        else:
            self.fatal = message

    def lost(self, reason: str) -> None:
        """The connection is over."""
        if self.gone.done():
            return
        self.gone.set_result(None)
        self._probe_over()
        error = EngineGone(reason)
        while self._tunings:
            answer = self._tunings.popleft()
            if not answer.done():
                answer.set_exception(error)
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # seen: whoever awaits `ready` still gets it
        self.fail_open(error)

    def _take_step(self, message: StepOutputs, now: float) -> None:
        self._take_stats(message.stats, now)
        for event in message.events:
            submission = self._submissions.get(event.request_id)
            if submission is not None:
                submission.happened(event)
        for output in message.outputs:
            if output.new_token_ids:
                self.produced_at = now
            submission = self._submissions.get(output.request_id)
            if submission is not None:
                submission.put(output)
            elif output.request_id == self._probe_id and output.finish_reason is not None:
                self._probe_over()

    def _take_stats(self, stats: EngineStats, now: float) -> None:
        idle = stats.running == 0 and stats.waiting == 0
        if idle or self.stats is None or stats.step != self.stats.step:
            self.progress_at = now
        self.stats, self.stats_at = stats, now
        self._on_stats(stats)


class _Connection(asyncio.Protocol):
    """The bytes from the core."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._decoder = core_decoder()
        self._transport: asyncio.Transport | None = None
        self._accepted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        self._accepted = self._client.connection_made(stream)
        if not self._accepted:
            stream.abort()

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except ProtocolError as error:
            log.error("the engine core sent what is no message: %s", error)
            self._client.lost("The engine failed.")
            if self._transport is not None:
                self._transport.abort()
            return
        for message in messages:
            self._client.receive(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._accepted:
            self._client.lost("The engine stopped before this answer was complete.")
