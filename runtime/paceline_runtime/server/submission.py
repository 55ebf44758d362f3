"""The open engine requests of one client request: what the engine makes of them waits here until it is taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from paceline_runtime.messages import Rejected, RequestEvent, TokenOutput

UNREAD_TOKENS: Final = 4096
"""Tokens of one answer that may wait for a client that does not read."""


class EngineGone(Exception):
    """The engine core is not there (any more); open requests are lost."""


class RequestRejected(Exception):
    """The engine did not take a request."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self.rejected = rejected


class SlowReader(Exception):
    """The client reads so much more slowly than the engine makes tokens that the answer was ended."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and how the engine shall treat the request; see `AddRequest`."""

    tenant: str = ""
    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    session: str = ""


class EngineSide(Protocol):
    """What a submission needs of the client of the engine."""

    def forget(self, request_id: str) -> None: ...
    def abort(self, request_ids: list[str]) -> None: ...


class Submission:
    """The engine requests of one client request, by the index of the answer that each makes.

    A client that reads slowly costs the tokens that wait for it, and none of the engine's time. When more than
    `UNREAD_TOKENS` wait for each answer, the engine's work is stopped: what waits is still delivered, then `next`
    raises `SlowReader`.

    Args:
        on_event: told what happens to a request besides tokens: (index of the answer, event).
    """

    def __init__(
        self,
        engine: EngineSide,
        request_ids: Sequence[str],
        on_event: Callable[[int, RequestEvent], None] = lambda _, __: None,
    ) -> None:
        self._engine = engine
        self._open = {request_id: index for index, request_id in enumerate(request_ids)}
        self._on_event = on_event
        self._outputs: deque[tuple[int, TokenOutput]] = deque()
        self._unread = 0
        self._most_unread = UNREAD_TOKENS * len(request_ids)
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> list[tuple[int, TokenOutput]]:
        """All outputs there are, waiting for at least one: (index of the answer, output). Empty: nothing more comes.

        Raises:
            RequestRejected: when the engine did not take the request.
            SlowReader: when too much waited.
            Exception: what `fail` was given, e.g. `EngineGone`.
        """
        while not self._outputs:
            if self._failure is not None:
                raise self._failure
            if not self._open:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        taken = list(self._outputs)
        self._outputs.clear()
        self._unread = 0
        return taken

    def put(self, output: TokenOutput) -> None:
        """An output of the engine."""
        index = self._open[output.request_id]
        if output.finish_reason is not None:
            del self._open[output.request_id]
            self._engine.forget(output.request_id)
        self._outputs.append((index, output))
        self._unread += len(output.new_token_ids)
        if self._unread > self._most_unread and self._open:
            self.fail(SlowReader(f"The client left {self._unread} tokens unread, so this answer was ended."))
        self._wake()

    def happened(self, event: RequestEvent) -> None:
        """The engine says what happened to one of the requests."""
        index = self._open.get(event.request_id)
        if index is not None:
            self._on_event(index, event)

    def reject(self, rejected: Rejected) -> None:
        """The engine did not take one of the requests: none of them goes on."""
        del self._open[rejected.request_id]
        self._engine.forget(rejected.request_id)
        self.fail(RequestRejected(rejected))

    def finish(self, index: int) -> None:
        """This answer is complete although the engine does not know: stop making its tokens."""
        self._abort([request_id for request_id, at in self._open.items() if at == index])

    def close(self) -> None:
        """Nobody waits for the answers any more: stop what still runs. Safe to call at any time."""
        self._abort(list(self._open))

    def fail(self, error: Exception) -> None:
        """End with an error after what already waits."""
        if self._failure is None:
            self._failure = error
        self.close()
        self._wake()

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            del self._open[request_id]
            self._engine.forget(request_id)
        if request_ids:
            self._engine.abort(request_ids)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
