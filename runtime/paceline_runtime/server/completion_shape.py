"""The bodies of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from paceline_runtime.messages import TokenLogprob

from .generation import Answer, Delta
from .logprobs import Placed, completion_logprobs, prompt_logprobs
from .openai_models import Completion, CompletionChoice, CompletionLogprobs, OpenAIFinish, PromptLogprobs, Usage
from .shape import PromptFacts, ShapeOptions
from .sse import event


class CompletionShape:
    """Whole text completions and their events.

    Args:
        echo: what to show before each prompt's answers; empty where the client did not ask for it.
    """

    endpoint = "completions"

    def __init__(self, options: ShapeOptions, *, echo: Sequence[str] = ()) -> None:
        self._options = options
        self._id = f"cmpl-{options.request_id}"
        self._echo = echo
        self.facts = PromptFacts([[] for _ in options.prompts])

    def opening(self, index: int, usage: Usage) -> bytes:
        # Every stream begins with an event, so that the first token is seen even where it shows no text yet.
        prompt = index // self._options.n
        choice = CompletionChoice(
            index=index,
            text=self._echoed(index),
            logprobs=self._logprobs(index, (), echoed=True) if self._echo else None,
            prompt_token_ids=self._options.prompts[prompt] if self._options.token_ids else UNSET,
        )
        return event(self._body([choice], self._options.usage_or_none(usage)))

    def piece(self, index: int, delta: Delta, usage: Usage) -> bytes:
        wants_ids = self._options.token_ids and bool(delta.token_ids)
        if not delta.shows_something() and not wants_ids:
            return b""
        choice = CompletionChoice(
            index=index,
            text=delta.text,
            finish_reason=delta.finish_reason,
            logprobs=self._logprobs(index, delta.logprobs) if delta.logprobs else None,
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.token_ids if wants_ids else UNSET,
        )
        return event(self._body([choice], self._options.usage_or_none(usage)))

    def ending(self, index: int, reason: OpenAIFinish, usage: Usage) -> bytes:
        """The event that ends an answer without text of the model."""
        return self.piece(index, Delta(finish_reason=reason), usage)

    def usage(self, usage: Usage) -> bytes:
        return event(self._body([], usage))

    def whole(self, answers: Sequence[Answer], usage: Usage) -> msgspec.Struct:
        return self._body([self._choice(n, answer) for n, answer in enumerate(answers)], usage)

    def _choice(self, index: int, answer: Answer) -> CompletionChoice:
        options = self._options
        return CompletionChoice(
            index=index,
            text=self._echoed(index) + answer.text,
            finish_reason=answer.finish_reason or "stop",
            logprobs=self._logprobs(index, answer.logprobs, echoed=bool(self._echo)),
            stop_reason=answer.stop_reason,
            prompt_logprobs=self._prompt_logprobs(index),
            token_ids=answer.token_ids if options.token_ids else UNSET,
            prompt_token_ids=options.prompts[index // options.n] if options.token_ids else UNSET,
        )

    def _echoed(self, index: int) -> str:
        return self._echo[index // self._options.n] if self._echo else ""

    def _logprobs(self, index: int, placed: Sequence[Placed], *, echoed: bool = False) -> CompletionLogprobs | None:
        options = self._options
        if options.logprobs is None:
            return None
        return completion_logprobs(
            options.tokenizer,
            placed,
            options.logprobs,
            prompt=self._prompt_rows(index // options.n) if echoed else (),
            offset=len(self._echoed(index)),
        )

    def _prompt_rows(self, prompt: int) -> list[tuple[int, TokenLogprob | None, int]]:
        """Where each token of an echoed prompt begins, what the engine thought of it, and its id."""
        detokenizer = self._options.tokenizer.detokenizer()
        rows: list[tuple[int, TokenLogprob | None, int]] = []
        at = 0
        entries = self.facts.logprobs[prompt]
        for n, token_id in enumerate(self._options.prompts[prompt]):
            rows.append((at, entries[n] if n < len(entries) else None, token_id))
            at += len(detokenizer.feed((token_id,)))
        return rows

    def _prompt_logprobs(self, index: int) -> PromptLogprobs | UnsetType:
        options = self._options
        if options.prompt_logprobs is None:
            return UNSET
        return prompt_logprobs(options.tokenizer, self.facts.logprobs[index // options.n], options.prompt_logprobs)

    def _body(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        options = self._options
        return Completion(
            id=self._id,
            created=options.created,
            model=options.model,
            system_fingerprint=options.fingerprint,
            choices=choices,
            usage=usage,
        )
