"""Which values of `SamplingParams` an engine takes. What becomes an index is tested here, before it can do harm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from paceline_runtime.messages import SamplingParams

MAX_LOGPROBS: Final = 20
MAX_PROMPT_LOGPROBS: Final = 1 << 18
"""Entries in one request's prompt log-probabilities: each token's own and the likeliest beside it."""
MAX_BAD_WORD_TOKENS: Final = 1 << 14
"""Tokens in all bad words of a request together."""
MAX_BIAS: Final = 100.0
MAX_PENALTY: Final = 2.0
"""Frequency and presence penalties, either way (OpenAI's range)."""
REPETITION_RANGE: Final = (0.01, 100.0)
"""Beyond it logits would leave the range of float32."""


def check_sampling(params: SamplingParams, vocab_size: int, prompt_len: int) -> None:
    """Test that each value is in its range.

    Raises:
        ValueError: naming the field and the range, in words for the client.
    """
    _check_ranges(params)
    _check_lengths(params)
    for name, ids in _token_ids(params):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise ValueError(f"{name} has the token id {token}; this model's ids go from 0 to {vocab_size - 1}")
    for token, bias in params.logit_bias.items():
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(f"logit_bias of token {token} is {bias}; it has to be from -{MAX_BIAS:g} to {MAX_BIAS:g}")
    _check_choice(params)
    if params.prompt_logprobs is not None:
        entries = prompt_len * (params.prompt_logprobs + 1)
        if entries > MAX_PROMPT_LOGPROBS:
            raise ValueError(
                f"prompt_logprobs is {params.prompt_logprobs} for a prompt of {prompt_len} tokens, which makes"
                f" {entries} entries; at most {MAX_PROMPT_LOGPROBS} are reported"
            )


def _check_ranges(params: SamplingParams) -> None:
    lowest, highest = REPETITION_RANGE
    penalties = f"from -{MAX_PENALTY:g} to {MAX_PENALTY:g}"
    rules = (
        ("temperature", params.temperature, "0 or more", math.isfinite(params.temperature) and params.temperature >= 0),
        ("top_p", params.top_p, "more than 0 and at most 1", 0 < params.top_p <= 1),
        ("top_k", params.top_k, "0 (all) or more", params.top_k >= 0),
        ("min_p", params.min_p, "from 0 to 1", 0 <= params.min_p <= 1),
        (
            "repetition_penalty",
            params.repetition_penalty,
            f"from {lowest:g} to {highest:g}; 1 is none",
            lowest <= params.repetition_penalty <= highest,
        ),
        ("frequency_penalty", params.frequency_penalty, penalties, abs(params.frequency_penalty) <= MAX_PENALTY),
        ("presence_penalty", params.presence_penalty, penalties, abs(params.presence_penalty) <= MAX_PENALTY),
        ("seed", params.seed, "a signed 64-bit number", params.seed is None or -(2**63) <= params.seed < 2**63),
        *(
            (name, value, f"from 0 to {MAX_LOGPROBS}", value is None or 0 <= value <= MAX_LOGPROBS)
            for name, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs))
        ),
    )
    for name, value, allowed, good in rules:
        if not good:
            raise ValueError(f"{name} is {value}; it has to be {allowed}")


def _check_lengths(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.max_tokens < 0:
        raise ValueError(f"max_tokens is {params.max_tokens}; it has to be 0 (the prompt only) or more")
    if params.min_tokens < 0:
        raise ValueError(f"min_tokens is {params.min_tokens}; it has to be 0 or more")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ValueError(
            f"min_tokens is {params.min_tokens} and max_tokens {params.max_tokens}; it has to be at most max_tokens"
        )


def _token_ids(params: SamplingParams) -> Iterator[tuple[str, Iterable[int]]]:
    yield "stop_token_ids", params.stop_token_ids
    yield "logit_bias", params.logit_bias
    yield "allowed_token_ids", params.allowed_token_ids or ()
    for word in params.bad_words:
        yield "bad_words", word


def _check_choice(params: SamplingParams) -> None:
    if not all(params.bad_words):
        raise ValueError("bad_words has an empty word; each has to have a token at least")
    tokens = sum(map(len, params.bad_words))
    if tokens > MAX_BAD_WORD_TOKENS:
        raise ValueError(f"bad_words are {tokens} tokens together; they have to be {MAX_BAD_WORD_TOKENS} at most")
    if params.allowed_token_ids is None:
        return
    if not params.allowed_token_ids:
        raise ValueError("allowed_token_ids is empty; name a token at least, or leave it out to allow all")
    if set(params.allowed_token_ids) <= {word[0] for word in params.bad_words if len(word) == 1}:
        raise ValueError("all tokens of allowed_token_ids are bad_words; leave one that may be chosen")
