"""The bodies of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from .generation import Answer, CallPiece, Delta
from .logprobs import Placed, chat_logprobs, prompt_logprobs
from .openai_models import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from .shape import PromptFacts, ShapeOptions
from .sse import event


class ChatShape:
    """Whole chat completions and their events."""

    endpoint = "chat_completions"

    def __init__(self, options: ShapeOptions) -> None:
        self._options = options
        self._id = f"chatcmpl-{options.request_id}"
        self.facts = PromptFacts([[] for _ in options.prompts])

    def opening(self, index: int, usage: Usage) -> bytes:
        choice = ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
        return self._chunk([choice], self._options.usage_or_none(usage), first=index == 0)

    def piece(self, index: int, delta: Delta, usage: Usage) -> bytes:
        wants_ids = self._options.token_ids and bool(delta.token_ids)
        if not delta.shows_something() and not wants_ids:
            return b""
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(
                content=delta.text or UNSET,
                reasoning_content=delta.reasoning or UNSET,
                tool_calls=[_call_delta(piece) for piece in delta.calls] or UNSET,
            ),
            finish_reason=delta.finish_reason,
            logprobs=self._logprobs(delta.logprobs) if delta.logprobs else None,
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.token_ids if wants_ids else UNSET,
        )
        return self._chunk([choice], self._options.usage_or_none(usage))

    def usage(self, usage: Usage) -> bytes:
        return self._chunk([], usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> msgspec.Struct:
        options = self._options
        k = options.prompt_logprobs
        return ChatCompletion(
            id=self._id,
            created=options.created,
            model=options.model,
            system_fingerprint=options.fingerprint,
            choices=[self._choice(n, answer) for n, answer in enumerate(answers)],
            usage=usage,
            prompt_logprobs=UNSET if k is None else prompt_logprobs(options.tokenizer, self.facts.logprobs[0], k),
            prompt_token_ids=options.prompts[0] if options.token_ids else UNSET,
        )

    def _choice(self, index: int, answer: Answer) -> ChatChoice:
        calls = [ToolCall(call.id, CalledFunction(call.name, call.arguments)) for call in answer.calls]
        return ChatChoice(
            index=index,
            message=ChatMessage(
                content=answer.text or (None if calls else ""),
                reasoning_content=answer.reasoning or UNSET,
                tool_calls=calls or UNSET,
            ),
            finish_reason=answer.finish_reason or "stop",
            logprobs=self._logprobs(answer.logprobs),
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._options.token_ids else UNSET,
        )

    def _logprobs(self, placed: Sequence[Placed]) -> ChatLogprobs | None:
        k = self._options.logprobs
        return None if k is None else chat_logprobs(self._options.tokenizer, placed, k)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None, *, first: bool = False) -> bytes:
        options = self._options
        return event(
            ChatChunk(
                id=self._id,
                created=options.created,
                model=options.model,
                system_fingerprint=options.fingerprint,
                choices=choices,
                usage=usage,
                prompt_token_ids=options.prompts[0] if first and options.token_ids else UNSET,
            )
        )


def _call_delta(piece: CallPiece) -> ToolCallDelta:
    if piece.id is None or piece.name is None:
        return ToolCallDelta(index=piece.index, function=FunctionDelta(arguments=piece.arguments))
    return ToolCallDelta(
        index=piece.index,
        id=piece.id,
        type="function",
        function=FunctionDelta(name=piece.name, arguments=piece.arguments),
    )
