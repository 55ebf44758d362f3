"""Each row's result is what it is alone: bit by bit, whatever the neighbours, their order and the number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.sampling import Sampled, SamplingState, flat, sample


def maybe(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(st.just({}), st.just({}), values.map(lambda value: {name: value}))


def tokens(vocab: int, **sizes: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, vocab - 1), **sizes).map(tuple)


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, list[SamplingState], list[int]]:
    """Logits, answers in all sorts of states, and an order to put them in."""
    vocab = draw(st.sampled_from([5, 64, 321, 4000, 33_000]))
    size = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    logits = torch.zeros(size, vocab)
    states = []
    for row in range(size):
        scale = draw(st.sampled_from([0.0, 0.5, 3.0, 8.0]))
        values = rng.normal(size=vocab) * scale
        if draw(st.booleans()):
            values = np.round(values)
        logits[row] = torch.from_numpy(values)
        if draw(st.integers(0, 9)) == 0:
            logits[row, draw(st.integers(0, vocab - 1))] = torch.nan
        asked: dict[str, Any] = {}
        for some in (
            maybe("temperature", st.sampled_from([0.0, 1e-6, 1e-3, 0.7, 1.8])),
            maybe("top_k", st.sampled_from([1, 2, 40, 700, 10**6])),
            maybe("top_p", st.sampled_from([1e-6, 0.5, 0.9, 0.9999])),
            maybe("min_p", st.sampled_from([1e-6, 0.05, 1.0])),
            maybe("repetition_penalty", st.sampled_from([0.8, 1.3])),
            maybe("frequency_penalty", st.sampled_from([-0.5, 0.7])),
            maybe("presence_penalty", st.sampled_from([-0.5, 0.7])),
            maybe("logit_bias", st.dictionaries(st.integers(0, vocab - 1), st.floats(-5, 5), min_size=1, max_size=4)),
            maybe("allowed_token_ids", tokens(vocab, min_size=1, max_size=5)),
            maybe("bad_words", st.lists(tokens(vocab, min_size=1, max_size=2), min_size=1, max_size=3).map(tuple)),
            maybe("min_tokens", st.integers(1, 6)),
            maybe("logprobs", st.sampled_from([0, 1, 20])),
        ):
            asked |= draw(some)
        state = SamplingState(SamplingParams(**asked), row, draw(tokens(vocab, max_size=6)), (1,), vocab)
        for token in draw(tokens(vocab, max_size=6)):
            state.append(token)
        states.append(state)
    return logits, states, draw(st.permutations(range(size)))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@given(batch=batches())
@settings(max_examples=40, deadline=None)
def test_a_row_is_what_it_is_alone(batch: tuple[torch.Tensor, list[SamplingState], list[int]]) -> None:
    logits, states, order = batch
    alone: list[Sampled] = []
    for row, state in enumerate(states):
        alone += sample(logits[row : row + 1].clone(), [state])
    assert sample(logits.clone(), states) == alone
    shuffled = [states[row] for row in order]
    assert sample(logits[order], shuffled) == [alone[row] for row in order]
    assert sample(logits.clone(), shuffled, order) == [alone[row] for row in order]
    doubled = [row for row in order for _ in range(2)]
    with threads(2):
        assert sample(logits.clone(), [states[row] for row in doubled], doubled) == [alone[row] for row in doubled]
        assert sample(logits[:1].clone(), states[:1]) == alone[:1]


@given(batch=batches())
@settings(max_examples=30, deadline=None)
def test_neither_slices_nor_memory_that_numpy_cannot_reach_change_anything(
    batch: tuple[torch.Tensor, list[SamplingState], list[int]],
) -> None:
    logits, states, _ = batch
    usual = sample(logits.clone(), states)
    for place, name, value in (
        (flat, "by_numpy", lambda matrix: False),
        (import_module("paceline_runtime.model.sampling.draw"), "_TOGETHER", 2 * logits.shape[1]),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, value)
            assert sample(logits.clone(), states) == usual


@given(batch=batches())
@settings(max_examples=30, deadline=None)
def test_what_comes_out_may_come_out(batch: tuple[torch.Tensor, list[SamplingState], list[int]]) -> None:
    logits, states, _ = batch
    for state, sampled in zip(states, sample(logits.clone(), states), strict=True):
        if sampled.token is None:
            assert sampled.fault
            assert sampled.logprob is None
            continue
        assert sampled.fault is None
        assert sampled.token not in {int(token) for piece in state.forbidden() for token in piece}
        if state.params.allowed_token_ids is not None:
            assert sampled.token in state.params.allowed_token_ids
        assert (sampled.logprob is None) == (state.params.logprobs is None)
        if sampled.logprob is not None:
            assert np.isfinite(sampled.logprob.logprob)
            assert all(np.isfinite(value) for _, value in sampled.logprob.top)
            assert len(sampled.logprob.top) <= (state.params.logprobs or 0)
            if state.greedy:
                assert sampled.logprob.rank == 1
