"""What is out of range is refused with the field's name and the range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.sampling import check_sampling

VOCAB = 1000


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": -0.1}, ["temperature", "-0.1", "0 or more"]),
        ({"temperature": math.nan}, ["temperature", "nan"]),
        ({"temperature": math.inf}, ["temperature", "inf"]),
        ({"top_p": 0.0}, ["top_p", "more than 0 and at most 1"]),
        ({"top_p": 1.01}, ["top_p"]),
        ({"top_p": math.nan}, ["top_p"]),
        ({"top_k": -1}, ["top_k"]),
        ({"min_p": -0.1}, ["min_p"]),
        ({"min_p": math.nan}, ["min_p"]),
        ({"repetition_penalty": 0.0}, ["repetition_penalty", "0.01 to 100"]),
        ({"repetition_penalty": math.nan}, ["repetition_penalty"]),
        ({"frequency_penalty": 2.1}, ["frequency_penalty", "-2 to 2"]),
        ({"presence_penalty": math.nan}, ["presence_penalty"]),
        ({"seed": 2**63}, ["seed", "64-bit"]),
        ({"seed": -(2**63) - 1}, ["seed"]),
        ({"logprobs": 21}, ["logprobs", "0 to 20"]),
        ({"logprobs": -1}, ["logprobs"]),
        ({"prompt_logprobs": 21}, ["prompt_logprobs", "0 to 20"]),
        ({"prompt_logprobs": -1}, ["prompt_logprobs"]),
        ({"max_tokens": -1}, ["max_tokens"]),
        ({"min_tokens": -1}, ["min_tokens"]),
        ({"min_tokens": 5, "max_tokens": 4}, ["min_tokens", "5", "max_tokens", "4"]),
        ({"logit_bias": {999999999: 5.0}}, ["logit_bias", "999999999", "0 to 999"]),
        ({"logit_bias": {-1: 5.0}}, ["logit_bias", "-1"]),
        ({"logit_bias": {5: 100.5}}, ["logit_bias", "token 5", "-100 to 100"]),
        ({"logit_bias": {5: math.nan}}, ["logit_bias", "token 5"]),
        ({"stop_token_ids": (1000,)}, ["stop_token_ids", "1000", "0 to 999"]),
        ({"allowed_token_ids": (1, 1000)}, ["allowed_token_ids", "1000"]),
        ({"allowed_token_ids": ()}, ["allowed_token_ids", "empty"]),
        ({"bad_words": ((1,), ())}, ["bad_words", "empty"]),
        ({"bad_words": ((1, -3),)}, ["bad_words", "-3"]),
        ({"bad_words": ((1,) * 20_000,)}, ["bad_words", "20000", "16384"]),
        ({"allowed_token_ids": (1, 2), "bad_words": ((1,), (2,), (3, 4))}, ["allowed_token_ids", "bad_words"]),
    ],
)
def test_out_of_range(params: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as caught:
        check_sampling(SamplingParams(**params), VOCAB, 10)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.0, "top_p": 1e-9, "top_k": 10**9, "min_p": 1.0},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1, "logprobs": 20, "prompt_logprobs": 20},
        {"max_tokens": 0, "prompt_logprobs": 0},
        {"max_tokens": 5, "min_tokens": 5},
        {"logit_bias": {0: -100.0, 999: 100.0}, "stop_token_ids": (0, 999), "allowed_token_ids": (999,)},
        {"repetition_penalty": 0.01, "frequency_penalty": -2.0, "presence_penalty": 2.0},
        {"bad_words": ((1, 2), (3,)), "allowed_token_ids": (1, 2, 3)},
    ],
    ids=str,
)
def test_the_ends_of_the_ranges_are_taken(params: dict[str, Any]) -> None:
    check_sampling(SamplingParams(**params), VOCAB, 10)


def test_what_a_prompt_reports_is_bounded_as_a_whole() -> None:
    check_sampling(SamplingParams(prompt_logprobs=20), VOCAB, 8192)
    check_sampling(SamplingParams(), VOCAB, 10**6)
    with pytest.raises(ValueError, match=r"30000 tokens, which makes 630000 entries; at most 262144"):
        check_sampling(SamplingParams(prompt_logprobs=20), VOCAB, 30_000)
