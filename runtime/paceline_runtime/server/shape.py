"""How answers look on the wire: what both endpoints share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from paceline_runtime.messages import TokenLogprob

from .generation import Answer, Delta
from .openai_models import Usage
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """What every body of one request has, and what its client asked to see.

    Attributes:
        n: answers for each prompt.
        logprobs: alternatives for each token of an answer; `None` where none are wanted.
        prompt_logprobs: the same for `prompt_logprobs`.
        usage_always: every event of a stream has the usage so far.
    """

    request_id: str
    created: int
    model: str
    fingerprint: str
    tokenizer: Tokenizer
    prompts: Sequence[list[int]]
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    include_usage: bool = False
    usage_always: bool = False

    def usage_or_none(self, usage: Usage) -> Usage | UnsetType | None:
        """`usage` of an event that is not the last."""
        if self.usage_always:
            return usage
        return None if self.include_usage else UNSET


@dataclass(slots=True)
class PromptFacts:
    """What the engine says of the prompts, as it comes: log-probabilities of their tokens, by prompt."""

    logprobs: list[list[TokenLogprob | None]] = field(default_factory=list)


class Shape(Protocol):
    """One endpoint's bodies."""

    endpoint: str
    facts: PromptFacts

    def opening(self, index: int, usage: Usage) -> bytes:
        """The events that an answer begins with, before any text of the model."""
        ...

    def piece(self, index: int, delta: Delta, usage: Usage) -> bytes:
        """The event for a piece of an answer; nothing where there is nothing to show."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The last event, where the client asked for it."""
        ...

    def whole(self, answers: Sequence[Answer], usage: Usage) -> msgspec.Struct:
        """The body of an answer that is not streamed."""
        ...
