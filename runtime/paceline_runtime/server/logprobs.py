"""Log-probabilities as the two endpoints write them; always strict JSON."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final

from paceline_runtime.messages import TokenLogprob

from .openai_models import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprobEntry,
    TopLogprob,
)
from .tokenizer import Tokenizer

FLOOR: Final = -9999.0
"""Stands for minus infinity, which JSON does not have."""

Placed = tuple[int, TokenLogprob]
"""A token and where its text begins in the answer, in characters."""

log = logging.getLogger(__name__)


def finite(logprob: float) -> float:
    """A number that JSON can carry."""
    return logprob if logprob > FLOOR else FLOOR


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    r"""The token's text; `bytes:\xf0\x9f` for one that is no whole text, so that no two such have one name."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokenizer: Tokenizer, placed: Sequence[Placed], k: int) -> ChatLogprobs:
    """For chats: the tokens with their `k` likeliest alternatives."""
    return ChatLogprobs([_entry(tokenizer, chosen, k) for _, chosen in placed])


def _entry(tokenizer: Tokenizer, chosen: TokenLogprob, k: int) -> TokenLogprobEntry:
    if not math.isfinite(chosen.logprob):
        log.error("the engine chose token %d with log-probability %s", chosen.token_id, chosen.logprob)
    return TokenLogprobEntry(
        token_name(tokenizer, chosen.token_id),
        finite(chosen.logprob),
        list(tokenizer.token_bytes(chosen.token_id)),
        [
            TopLogprob(token_name(tokenizer, token_id), finite(value), list(tokenizer.token_bytes(token_id)))
            for token_id, value in chosen.top[:k]
        ],
    )


def completion_logprobs(
    tokenizer: Tokenizer,
    placed: Sequence[Placed],
    k: int,
    *,
    prompt: Sequence[tuple[int, TokenLogprob | None, int]] = (),
    offset: int = 0,
) -> CompletionLogprobs:
    """For text completions: columns; the chosen token is always among the alternatives.

    Args:
        prompt: the echoed tokens before: where the text begins, the token's log-probability if it has one, its id.
        offset: characters before the answer.
    """
    rows = [*prompt, *((offset + start, chosen, chosen.token_id) for start, chosen in placed)]
    return CompletionLogprobs(
        tokens=[token_name(tokenizer, token_id) for _, _, token_id in rows],
        token_logprobs=[None if chosen is None else finite(chosen.logprob) for _, chosen, _ in rows],
        top_logprobs=[None if chosen is None else _named(tokenizer, chosen, k) for _, chosen, _ in rows],
        text_offset=[start for start, _, _ in rows],
    )


def _named(tokenizer: Tokenizer, chosen: TokenLogprob, k: int) -> dict[str, float]:
    named: dict[str, float] = {}
    for token_id, value in (*chosen.top[:k], (chosen.token_id, chosen.logprob)):
        named.setdefault(token_name(tokenizer, token_id), finite(value))
    return named


def prompt_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob | None], k: int) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`: by token id; the first token has none, since nothing is before it."""
    return [None if entry is None else _ranked(tokenizer, entry, k) for entry in entries]


def _ranked(tokenizer: Tokenizer, entry: TokenLogprob, k: int) -> dict[str, PromptLogprob]:
    ranked = {
        str(token_id): PromptLogprob(finite(value), rank, token_name(tokenizer, token_id))
        for rank, (token_id, value) in enumerate(entry.top[:k], 1)
    }
    chosen = PromptLogprob(finite(entry.logprob), entry.rank, token_name(tokenizer, entry.token_id))
    ranked.setdefault(str(entry.token_id), chosen)
    return ranked
