"""One request through the engine: submit, follow, answer whole or in pieces, and account for it exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from paceline_runtime.messages import SamplingParams

from .accounting import Account
from .errors import ApiError, refused_by_engine, too_late, unavailable
from .generation import Answer, Delta, GenerationFailed, GenerationRequest, TooLate, usage_of
from .openai_models import Usage
from .replica import Replica
from .request_headers import RequestContext
from .shape import Shape
from .sse import DONE, EventStream, comment, event
from .submission import Caller, EngineGone, RequestRejected, SlowReader

log = logging.getLogger(__name__)

_CLIENT_CLOSED = 499
"""Status of an answer that nobody reads any more; it never reaches the wire."""


class ClientGone(Exception):
    """The client closed its connection."""


async def answer(
    replica: Replica,
    request: Request,
    wanted: GenerationRequest,
    shape: Shape,
    *,
    priority: int | None,
    cache_salt: str,
    param: str,
) -> Response:
    """Run a request and answer it.

    No status is sent before the first token is there, so that whatever fails until then has its right status.

    Args:
        priority: of the body; the header's wins.
        param: the name that the request's input has in error messages, `messages` or `prompt`.

    Raises:
        ApiError: when it fails before the first token.
    """
    context: RequestContext = request.state.context
    caller = _caller(context, priority, cache_salt)
    run = _Run(replica, context, caller, wanted, shape, param)
    run.follow_client(request.receive)
    try:
        opening = await run.opening()
        if wanted.stream:
            return EventStream(run.first_events(opening), run.events(), lambda: run.over("abort"), run.headers())
        while not run.complete:
            await run.more()
    except ClientGone:
        run.over("abort")
        return Response(status_code=_CLIENT_CLOSED)
    except RequestRejected as error:
        raise run.refused(error) from None
    except Exception as error:
        run.over("error", str(error))
        raise run.as_api_error(error) from error
    except BaseException:
        run.over("abort")
        raise
    run.over(run.reason)
    body = msgspec.json.encode(shape.whole(run.answers, run.usage))
    return Response(body, media_type="application/json", headers=run.headers())


def _caller(context: RequestContext, priority: int | None, cache_salt: str) -> Caller:
    seconds = context.deadline_seconds
    return Caller(
        tenant=context.tenant,
        priority=context.priority if context.priority is not None else priority or 0,
        deadline=None if seconds is None else time.monotonic() + seconds,
        cache_salt=cache_salt,
        session=context.session,
    )


def _for_engine(wanted: GenerationRequest, max_model_len: int) -> list[tuple[list[int], SamplingParams]]:
    """Each prompt with its sampling. `max_tokens` is an upper bound: where less fits, less is asked for."""
    sampling = wanted.sampling
    if sampling.max_tokens is None:
        return [(prompt, sampling) for prompt in wanted.prompts]
    return [
        (prompt, msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, max_model_len - len(prompt))))
        for prompt in wanted.prompts
    ]


class _Run:
    """A request while the engine works on it."""

    def __init__(
        self,
        replica: Replica,
        context: RequestContext,
        caller: Caller,
        wanted: GenerationRequest,
        shape: Shape,
        param: str,
    ) -> None:
        self._param = param
        self._timing = context.timing
        self._routed = context.routed
        self._wanted = wanted
        self._shape = shape
        self._metrics = replica.metrics
        count = len(wanted.prompts) * wanted.n
        self.answers = [Answer(replica.tokenizer, wanted.options) for _ in range(count)]
        self._opened = [False] * count
        self._watcher: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._account = Account(replica.metrics, replica.requests, context, caller, wanted, shape.endpoint)
        try:
            self._submission = replica.engine.submit(
                _for_engine(wanted, replica.max_model_len), n=wanted.n, caller=caller, on_event=self._account.happened
            )
        except EngineGone as error:
            self._account.ended("error", self.answers, str(error))
            raise unavailable(str(error), close=True) from None
        if context.deadline_seconds is not None:
            # The engine keeps deadlines too, and better; this one holds even where the engine hangs.
            late = too_late("The request's deadline has passed.")
            self._deadline = asyncio.get_running_loop().call_later(
                context.deadline_seconds, self._submission.fail, late
            )

    # --- progress ---

    @property
    def complete(self) -> bool:
        """Every answer has its end."""
        return all(answer.finish_reason is not None for answer in self.answers)

    @property
    def reason(self) -> str:
        """How the request as a whole ended."""
        return "length" if any(answer.finish_reason == "length" for answer in self.answers) else "stop"

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return usage_of(self._wanted.prompt_tokens, self.answers, self._wanted.n)

    async def opening(self) -> list[tuple[int, Delta]]:
        """Wait for the first tokens, or for an end without any."""
        deltas = await self.more()
        while not (self._account.started or self.complete):
            deltas += await self.more()
        return deltas

    async def more(self) -> list[tuple[int, Delta]]:
        """Wait for the engine's next outputs; what they add to which answer.

        Raises:
            GenerationFailed: when the engine gave up.
            Exception: whatever ended the submission.
        """
        outputs = await self._submission.next()
        if not outputs:
            raise GenerationFailed("The engine ended this request before its answer was complete.")
        now = time.monotonic()
        deltas = []
        for index, output in outputs:
            self._account.output(index, output, now)
            prompt, choice = divmod(index, self._wanted.n)
            if output.prompt_logprobs is not None and choice == 0:
                self._shape.facts.logprobs[prompt] += output.prompt_logprobs
            delta = self.answers[index].accept(output)
            if delta.stopped_here:
                self._submission.finish(index)
            deltas.append((index, delta))
        return deltas

    def headers(self) -> dict[str, str]:
        """Of the answer, once its first token is there; a router tells from it what is not the engine."""
        timing = self._account.server_timing() if self._timing else ""
        return {"server-timing": timing} if timing else {}

    # --- streaming ---

    def first_events(self, deltas: Sequence[tuple[int, Delta]]) -> bytes:
        """The events of the first outputs."""
        return self._events_of(deltas)

    def _events_of(self, deltas: Sequence[tuple[int, Delta]]) -> bytes:
        pieces = []
        usage = self.usage
        for index, delta in deltas:
            if not self._opened[index]:
                self._opened[index] = True
                pieces.append(self._shape.opening(index, usage))
            pieces.append(self._shape.piece(index, delta, usage))
        return b"".join(pieces)

    async def events(self) -> AsyncIterator[bytes]:
        """The events after the first ones, `[DONE]` or an error included."""
        reason, message = "abort", None
        try:
            while not self.complete:
                pieces = self._events_of(await self.more())
                if pieces:
                    yield pieces
            reason = self.reason
            yield self._closing() + DONE
        except ClientGone:
            pass  # nobody is left to tell; `over` counts it
        except Exception as error:
            reason, message = "error", str(error)
            if isinstance(error, SlowReader):
                self._metrics.slow_reader()
                reason = "abort"
            yield event(self.as_api_error(error).body())
        finally:
            self.over(reason, message)

    def _closing(self) -> bytes:
        """How many tokens it was: for the client if it asks for that, and else for the router that has to know."""
        if self._wanted.include_usage:
            return self._shape.usage(self.usage)
        return comment({"usage": self.usage}) if self._routed else b""

    # --- the end ---

    def as_api_error(self, error: Exception) -> ApiError:
        """What the client is told."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, EngineGone):
            return unavailable(str(error), close=True)
        if isinstance(error, TooLate):
            return too_late(str(error))
        if isinstance(error, GenerationFailed):
            return ApiError(500, str(error))
        if isinstance(error, RequestRejected):
            return refused_by_engine(error.rejected, self._param)
        if isinstance(error, SlowReader):
            return ApiError(408, str(error), code="slow_reader")
        log.error("request %s failed", self._account.request_id, exc_info=error)
        return ApiError(500, "The server failed to answer this request.")

    def follow_client(self, receive: Receive) -> None:
        """End the request when its client goes away."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._submission.fail(ClientGone())

        self._watcher = asyncio.get_running_loop().create_task(watch())

    def refused(self, error: RequestRejected) -> ApiError:
        """The engine did not take it."""
        refusal = self.as_api_error(error)
        self._stop()
        self._account.refused(refusal.status, error.rejected)
        return refusal

    def over(self, reason: str, message: str | None = None) -> None:
        """It is over, however; further calls change nothing."""
        if self._account.over:
            return
        self._stop()
        self._account.ended(reason, self.answers, message)

    def _stop(self) -> None:
        self._submission.close()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
