"""From the engine's tokens to answers: pure state, one object per answer.

Text takes one way: tokens become characters, thoughts are parted from it, then tool calls, and stop strings are looked
for last, in what the client sees as content. So no stage ever sees half of a marker that another one holds back.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from paceline_runtime.messages import FinishReason, SamplingParams, TokenLogprob, TokenOutput

from .logprobs import Placed
from .openai_models import OpenAIFinish, PromptTokensDetails, Usage
from .reasoning import MARKERS, ReasoningSplitter
from .stop import StopMatcher
from .tokenizer import Tokenizer
from .tool_call_json import CallBegins
from .tool_formats import ToolEvent, ToolFormat

_ID_LETTERS: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How tokens become an answer.

    Attributes:
        stops: stop strings.
        stop_token_ids: tokens that the client asked to end at: they are named as the reason.
        include_stop: show what ended the answer: the stop string, or the stop token where it has text.
        min_tokens: stop strings count after this many tokens only.
        show_special: write special tokens out.
        thinking: `None` for models that do not; else whether the answer begins within the thoughts.
        tools: how this model calls tools; `None` where the request has none.
        is_tool: which names are tools of the request.
        parallel_calls: whether more than one call is wanted.
    """

    stops: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False
    min_tokens: int = 0
    show_special: bool = False
    thinking: bool | None = None
    tools: ToolFormat | None = None
    is_tool: Callable[[str], bool] = lambda _: True
    parallel_calls: bool = True


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request, ready for the engine.

    Attributes:
        prompts: token ids of each prompt.
        n: answers for each prompt; the answer at `index` is to the prompt at `index // n`.
        options: how tokens become answers.
        include_usage: whether a stream ends with a usage event.
    """

    prompts: Sequence[list[int]]
    sampling: SamplingParams
    n: int = 1
    options: AnswerOptions = field(default_factory=AnswerOptions)
    stream: bool = False
    include_usage: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Summed over the prompts."""
        return sum(map(len, self.prompts))


class GenerationFailed(Exception):
    """The engine could not finish an answer; the message is fit for the client."""


class TooLate(GenerationFailed):
    """The engine dropped the request, because it could no longer be in time."""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the tool call at `index`: its name and id first, then its arguments."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class Delta:
    """What one output of the engine adds to an answer.

    Attributes:
        logprobs: of tokens whose text is shown now.
        stop_reason: the stop string or token that ended the answer; `None` for the model's own end.
        stopped_here: the answer is over and the engine does not know yet: it must be told.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    logprobs: list[Placed] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: OpenAIFinish | None = None
    stop_reason: str | int | None = None
    stopped_here: bool = False

    def shows_something(self) -> bool:
        """Whether a client sees anything of it."""
        return bool(self.text or self.reasoning or self.calls or self.logprobs or self.finish_reason is not None)


@dataclass(slots=True)
class FinishedCall:
    """A tool call of an answer, as far as it came."""

    id: str
    name: str
    arguments: str = ""


class Answer:
    """One answer while it is made.

    Attributes:
        calls: tool calls so far.
        logprobs: of the tokens whose text was shown.
    """

    def __init__(self, tokenizer: Tokenizer, options: AnswerOptions) -> None:
        self._options = options
        tools = options.tools
        shown = (MARKERS if options.thinking is not None else frozenset()) | (tools.markers if tools else frozenset())
        self._detokenizer = tokenizer.detokenizer(show_special=options.show_special, show=shown)
        self._thoughts = None if options.thinking is None else ReasoningSplitter(inside=options.thinking)
        self._tools = None if tools is None else tools.parser(options.is_tool)
        self._stop = StopMatcher(options.stops, include=options.include_stop)
        self._aligned = self._thoughts is None and self._tools is None
        self._decoded = 0
        self._shown = 0
        self._waiting: list[Placed] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._too_many = False
        self.calls: list[FinishedCall] = []
        self.logprobs: list[Placed] = []
        self.token_ids: list[int] = []
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finish_reason: OpenAIFinish | None = None
        self.stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """The thoughts so far."""
        return "".join(self._reasoning)

    def accept(self, output: TokenOutput) -> Delta:
        """Take the next output.

        Raises:
            GenerationFailed: when the engine gave up on this answer.
        """
        delta = Delta()
        if self.finish_reason is not None:
            return delta
        self.cached_tokens = max(self.cached_tokens, output.num_cached_tokens)
        for n, token_id in enumerate(output.new_token_ids):
            self.completion_tokens += 1
            delta.token_ids.append(token_id)
            self.token_ids.append(token_id)
            if token_id == output.stop_token_id and not self._options.include_stop:
                break
            self._take(token_id, None if output.logprobs is None else output.logprobs[n], delta)
            if self._stop.matched is not None or self._too_many:
                return self._end(delta, "stop", stopped_here=output.finish_reason is None)
        reason = output.finish_reason
        if reason is None:
            self._align(delta)
            return delta
        if reason is FinishReason.DEADLINE:
            raise TooLate(output.message or "The request's deadline cannot be kept.")
        if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
            raise GenerationFailed(output.message or "The engine stopped this request.")
        self._flush(delta)
        if output.stop_token_id in self._options.stop_token_ids:
            self.stop_reason = output.stop_token_id  # the model's own end has no name for clients
        ended = reason is FinishReason.STOP or self._stop.matched is not None or self._too_many
        return self._end(delta, "stop" if ended else "length")

    # --- the way of the text ---

    def _take(self, token_id: int, logprob: TokenLogprob | None, delta: Delta) -> None:
        text = self._detokenizer.feed((token_id,))
        if logprob is not None:
            self._waiting.append((self._decoded, logprob))
        self._decoded += len(text)
        early = self.completion_tokens <= self._options.min_tokens
        if text:
            self._part(text, delta, early)

    def _part(self, text: str, delta: Delta, early: bool = False) -> None:
        if self._thoughts is not None:
            parted = self._thoughts.feed(text)
            self._think(parted.reasoning, delta)
            text = parted.content
        if text:
            self._call(text, delta, early)

    def _call(self, text: str, delta: Delta, early: bool) -> None:
        if self._tools is None:
            self._show(text, delta, early)
        else:
            self._events(self._tools.feed(text), delta, early)

    def _events(self, events: Sequence[ToolEvent], delta: Delta, early: bool) -> None:
        for event in events:
            if self._stop.matched is not None or self._too_many:
                return
            if isinstance(event, str):
                self._show(event, delta, early)
            elif isinstance(event, CallBegins):
                if self.calls and not self._options.parallel_calls:
                    self._too_many = True
                    return
                call = FinishedCall(self._new_id(), event.name)
                self.calls.append(call)
                delta.calls.append(CallPiece(len(self.calls) - 1, id=call.id, name=call.name))
            else:
                self.calls[-1].arguments += event.text
                delta.calls.append(CallPiece(len(self.calls) - 1, event.text))

    def _think(self, text: str, delta: Delta) -> None:
        if text:
            self._reasoning.append(text)
            delta.reasoning += text

    def _show(self, text: str, delta: Delta, early: bool = False) -> None:
        self._append(self._stop.skip(text) if early else self._stop.feed(text), delta)

    def _append(self, shown: str, delta: Delta) -> None:
        if shown:
            self._text.append(shown)
            self._shown += len(shown)
            delta.text += shown

    def _flush(self, delta: Delta) -> None:
        rest = self._detokenizer.flush()
        if rest:
            self._decoded += len(rest)
            self._part(rest, delta)
        if self._thoughts is not None:
            parted = self._thoughts.flush()
            self._think(parted.reasoning, delta)
            if parted.content:
                self._call(parted.content, delta, early=False)
        if self._tools is not None:
            self._events(self._tools.flush(), delta, early=False)
        if self._stop.matched is None:
            self._append(self._stop.flush(), delta)

    def _align(self, delta: Delta, *, over: bool = False) -> None:
        """Give out the log-probabilities of what is shown; those of text that is held back wait with it.

        With thoughts or tool calls they cover every token as it is made, markers included.
        """
        ready = len(self._waiting)
        if self._aligned and not over:
            ready = next((n for n, (start, _) in enumerate(self._waiting) if start >= self._shown), ready)
        delta.logprobs = self._waiting[:ready]
        self.logprobs += delta.logprobs
        del self._waiting[:ready]

    def _end(self, delta: Delta, reason: OpenAIFinish, *, stopped_here: bool = False) -> Delta:
        cut = self._stop.matched is not None
        self._align(delta, over=not cut)
        if cut:
            self.stop_reason = self._stop.matched
        elif reason == "stop" and self.calls:
            reason = "tool_calls"
        self.finish_reason = delta.finish_reason = reason
        delta.stop_reason, delta.stopped_here = self.stop_reason, stopped_here
        return delta

    def _new_id(self) -> str:
        length = self._options.tools.id_length if self._options.tools is not None else None
        if length is None:
            return f"call_{secrets.token_hex(12)}"
        return "".join(secrets.choice(_ID_LETTERS) for _ in range(length))


def usage_of(prompt_tokens: int, answers: Sequence[Answer], n: int = 1) -> Usage:
    """Tokens of a whole request; answers to the same prompt share it, so it counts once."""
    made = sum(answer.completion_tokens for answer in answers)
    cached = sum(
        max(answer.cached_tokens for answer in answers[start : start + n]) for start in range(0, len(answers), n)
    )
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=made,
        total_tokens=prompt_tokens + made,
        prompt_tokens_details=PromptTokensDetails(cached),
    )
