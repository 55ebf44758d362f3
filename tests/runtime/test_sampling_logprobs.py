"""Log-probabilities: of what the model thought after penalties and masks, before temperature and cuts."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from paceline_runtime.messages import SamplingParams, TokenLogprob
from paceline_runtime.model.sampling import SamplingState, prompt_logprobs, sample
from paceline_runtime.model.sampling import logprobs as module

VOCAB = 400


def logits_of(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def report(logits: torch.Tensor, **params: Any) -> TokenLogprob:
    state = SamplingState(SamplingParams(**params), 3, (), (0,), logits.shape[-1])
    sampled = sample(logits.clone(), [state])[0]
    assert sampled.logprob is not None
    assert sampled.logprob.token_id == sampled.token
    return sampled.logprob


def reference(row: torch.Tensor) -> np.ndarray:
    values = row.double().numpy()
    return values - values.max() - np.log(np.exp(values - values.max()).sum())


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.4}, {"top_k": 1}, {"top_p": 0.4}])
def test_values_ranks_and_order_are_those_of_the_whole_distribution(params: dict[str, Any]) -> None:
    for seed in range(5):
        row = logits_of(1, seed)
        expected = reference(row[0])
        got = report(row, logprobs=5, **params)
        assert got.logprob == pytest.approx(expected[got.token_id], abs=1e-5)
        assert got.rank == 1 + int((expected > expected[got.token_id]).sum())
        best = np.argsort(-expected)[:5]
        assert [token for token, _ in got.top] == best.tolist()
        assert [value for _, value in got.top] == pytest.approx(expected[best].tolist(), abs=1e-5)


def test_penalties_and_bias_are_in_and_temperature_is_not() -> None:
    row = logits_of(1)
    changed = row.clone()
    changed[0, 7] += 30
    assert report(row, logprobs=2, temperature=0.3, logit_bias={7: 30.0}) == report(changed, logprobs=2)


def test_zero_reports_the_chosen_token_alone() -> None:
    assert report(logits_of(1), logprobs=0, temperature=0.0).top == ()


def test_alternatives_that_cannot_come_are_left_out_and_json_stays_strict() -> None:
    got = report(logits_of(1), logprobs=5, temperature=0.0, allowed_token_ids=(17,))
    assert got == TokenLogprob(17, 0.0, 1, ((17, 0.0),))
    text = msgspec.json.encode(got)

    def refuse(literal: str) -> None:
        raise AssertionError(literal)

    assert json.loads(text, parse_constant=refuse) == [17, 0.0, 1, [[17, 0.0]]]


def test_equally_likely_tokens_come_in_the_order_of_their_ids() -> None:
    for vocab in (10, 3000, 50_000):
        got = report(torch.zeros(1, vocab), logprobs=4, temperature=0.0)
        assert [token for token, _ in got.top] == [0, 1, 2, 3]
        assert got.rank == 1


def test_more_alternatives_than_tokens() -> None:
    assert len(report(torch.zeros(1, 3), logprobs=20, temperature=0.0).top) == 3


@pytest.mark.parametrize("count", [0, 1, 10])
def test_a_prompt_in_pieces_is_what_it_is_whole(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    logits, ids = logits_of(31, 5), np.random.default_rng(1).integers(0, VOCAB, 31).tolist()
    whole = prompt_logprobs(logits, ids, count)
    assert len(whole) == 31
    for token, row, got in zip(ids, logits, whole, strict=True):
        assert got is not None
        assert got.token_id == token
        assert got.logprob == pytest.approx(reference(row)[token], abs=1e-5)
        assert len(got.top) == count
    assert prompt_logprobs(logits[:10], ids[:10], count) + prompt_logprobs(logits[10:], ids[10:], count) == whole
    monkeypatch.setattr(module, "_SLICE_LOGITS", 7 * VOCAB)
    assert prompt_logprobs(logits, ids, count) == whole
    assert prompt_logprobs(logits[:0], [], count) == []


def test_a_prompt_token_that_cannot_come_is_minus_infinity_and_no_number_is_not_known() -> None:
    logits = torch.zeros(3, 8)
    logits[0, 5] = -torch.inf
    logits[1, 2] = torch.nan
    first, second, third = prompt_logprobs(logits, [5, 5, 5], 8)
    assert first is not None
    assert first.logprob == -math.inf
    assert first.rank == 8
    assert len(first.top) == 7
    assert second is None
    assert third is not None
    assert third.logprob == pytest.approx(math.log(1 / 8))
