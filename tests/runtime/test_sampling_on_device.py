"""Draws that a device makes itself: the general sampler's tokens, with the same seeds."""

from __future__ import annotations

import pytest
import torch

from paceline_runtime.kernels.interface import select
from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.sampling import SamplingState, draws_of, sample

VOCAB, ROWS = 3000, 60


def state(number: int, **params: object) -> SamplingState:
    return SamplingState(SamplingParams(**params), number, [1, 2], [0], VOCAB)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"top_p": 0.9},
        {"top_p": 0.3, "temperature": 2.0},
        {"top_k": 1},
        {"top_k": 40, "top_p": 0.8},
        {"top_k": 40, "min_p": 0.05},
        {"min_p": 0.02},
        {"top_k": VOCAB},
        {"temperature": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", ["flat", "peaked", "tied"])
def test_a_device_draws_the_tokens_of_the_general_sampler(params: dict[str, float], shape: str) -> None:
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(3)) * (8 if shape == "peaked" else 2)
    if shape == "tied":
        logits = logits.round()
    states = [state(i, **params) for i in range(ROWS)]
    wanted = [one.token for one in sample(logits.clone(), states)]
    draws = draws_of(states, range(ROWS), ROWS)
    assert draws is not None
    highest = logits.max(dim=-1, keepdim=True).values
    scaled = (logits - highest) / torch.from_numpy(draws.temperature).unsqueeze(1)
    limits = (draws.top_k, draws.top_p, draws.min_p, draws.uniform)
    tokens = select(torch.device("cpu")).sample(scaled, *map(torch.from_numpy, limits))
    assert tokens.tolist() == wanted
    assert len(set(wanted)) > 1


@pytest.mark.parametrize(
    "params",
    [{"logprobs": 0}, {"frequency_penalty": 0.1}, {"logit_bias": {3: 1.0}}, {"bad_words": [[3]]}, {"min_tokens": 1}],
    ids=str,
)
def test_what_changes_logits_or_reports_is_left_to_the_general_sampler(params: dict[str, object]) -> None:
    assert draws_of([state(0), state(1)], [0, 1], 2) is not None
    assert draws_of([state(0), state(1, **params)], [0, 1], 2) is None


def test_rows_that_several_answers_share_are_left_to_the_general_sampler() -> None:
    assert draws_of([state(0), state(1)], [0, 0], 1) is None
    assert draws_of([state(0)], [1], 2) is None
    assert draws_of([state(0), state(1)], [1, 0], 2) is None


def test_a_row_without_numbers_gives_a_token_and_no_error() -> None:
    scaled = torch.full((2, 5), torch.nan)
    one, none = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    tokens = select(torch.device("cpu")).sample(scaled, torch.tensor([5, 2]), one, none, one / 2)
    assert all(0 <= token < 5 for token in tokens.tolist())
