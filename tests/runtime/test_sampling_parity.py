"""What changes logits does what transformers' processors do; what they lack does what its formula says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.sampling import SamplingState, sample
from paceline_runtime.model.sampling.adjust import adjust

VOCAB = 300
EOS = (4, 11)
ROWS = 6


def histories(prompt_len: int = 12, output_len: int = 20) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and answers with many repetitions."""
    rng = np.random.default_rng(2)
    return rng.integers(0, 40, (ROWS, prompt_len)).tolist(), rng.integers(20, 60, (ROWS, output_len)).tolist()


def random_logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def states(prompts: list[list[int]], outputs: list[list[int]], **params: Any) -> list[SamplingState]:
    made = []
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        state = SamplingState(SamplingParams(**params), i, prompt, EOS, VOCAB)
        for token in output:
            state.append(token)
        made.append(state)
    return made


def adjusted(logits: torch.Tensor, prompts: list[list[int]], outputs: list[list[int]], **params: Any) -> torch.Tensor:
    logits = logits.clone()
    adjust(logits, states(prompts, outputs, **params))
    return logits


@pytest.mark.parametrize("penalty", [1.3, 0.7, 100.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    prompts, outputs = histories()
    together = torch.tensor([p + o for p, o in zip(prompts, outputs, strict=True)])
    expected = hf.RepetitionPenaltyLogitsProcessor(penalty)(together, random_logits())
    assert torch.equal(adjusted(random_logits(), prompts, outputs, repetition_penalty=penalty), expected)


@pytest.mark.parametrize(
    "words",
    [
        [[5]],
        [[5, 6], [5, 6, 7], [6, 8], [250]],
        [[5, 5, 5, 9], [5, 5, 10]],
        [[1, 2, 3, 4], [2, 3, 5], [3, 6], [2, 9]],
    ],
)
def test_bad_words_are_those_of_transformers(words: list[list[int]]) -> None:
    processor = hf.NoBadWordsLogitsProcessor(words)
    texts = [[5], [5, 6], [9, 5, 5, 5], [5, 5, 5], [1, 2, 3], [1, 2, 3, 6]]
    for split in range(5):
        prompts = [text[:split] or text[:1] for text in texts]
        outputs = [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
        got = adjusted(random_logits(), prompts, outputs, bad_words=tuple(map(tuple, words)))
        for row, text in enumerate(texts):
            expected = processor(torch.tensor([text]), random_logits()[row : row + 1])[0]
            assert torch.equal(got[row], expected), text


@pytest.mark.parametrize("made", [0, 19, 20, 21])
def test_no_end_before_min_tokens_as_in_transformers(made: int) -> None:
    prompts, outputs = histories(output_len=made)
    processor = hf.MinNewTokensLengthLogitsProcessor(12, 20, [*EOS, 77], device="cpu")
    together = torch.tensor([p + o for p, o in zip(prompts, outputs, strict=True)])
    expected = processor(together, random_logits())
    assert torch.equal(adjusted(random_logits(), prompts, outputs, min_tokens=20, stop_token_ids=(77,)), expected)


def test_allowed_tokens_suppress_all_others_as_in_transformers() -> None:
    prompts, outputs = histories()
    allowed = (3, 50, 299, 7, 3)
    others = sorted(set(range(VOCAB)) - set(allowed))
    expected = hf.SuppressTokensLogitsProcessor(others)(torch.tensor(outputs), random_logits())
    assert torch.equal(adjusted(random_logits(), prompts, outputs, allowed_token_ids=allowed), expected)


def test_bias_is_that_of_transformers() -> None:
    prompts, outputs = histories()
    bias = {5: 3.5, 299: -100.0, 0: 0.25}
    processor = hf.SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])
    expected = processor(torch.tensor(outputs), random_logits())
    assert torch.equal(adjusted(random_logits(), prompts, outputs, logit_bias=bias), expected)


def test_frequency_and_presence_follow_their_formula() -> None:
    prompts, outputs = histories()
    expected = random_logits().numpy().astype(np.float64)
    for row, output in enumerate(outputs):
        for token in range(VOCAB):
            count = output.count(token)
            expected[row, token] -= 0.4 * count + (1.1 if count else 0)
    got = adjusted(random_logits(), prompts, outputs, frequency_penalty=0.4, presence_penalty=1.1)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)


def test_all_changes_come_in_the_stated_order() -> None:
    prompts, outputs = histories()
    got = adjusted(
        random_logits(),
        prompts,
        outputs,
        repetition_penalty=1.5,
        frequency_penalty=0.3,
        presence_penalty=-0.5,
        logit_bias={25: 2.0, 30: -3.0},
        allowed_token_ids=tuple(range(20, 70)),
        bad_words=((33,),),
        stop_token_ids=(40,),
        min_tokens=50,
    )
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        for token in range(VOCAB):
            value = float(random_logits()[row, token])
            if token in prompt or token in output:
                value = value * 1.5 if value < 0 else value / 1.5
            value -= 0.3 * output.count(token) - (0.5 if token in output else 0)
            value += {25: 2.0, 30: -3.0}.get(token, 0)
            if not 20 <= token < 70 or token in (33, 40, *EOS):
                value = -math.inf
            assert float(got[row, token]) == pytest.approx(value, abs=1e-5)


def test_a_mask_set_from_outside_forbids_what_it_says() -> None:
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[[8, 200]] = True
    masked, plain = (SamplingState(SamplingParams(temperature=0.0), 0, (), EOS, VOCAB) for _ in range(2))
    logits = random_logits()[:2]
    masked.allowed_mask = mask
    first, second = sample(logits.clone(), [masked, plain])
    assert first.token == (8 if logits[0, 8] >= logits[0, 200] else 200)
    assert second.token == int(logits[1].argmax())
    masked.allowed_mask = None
    assert sample(logits.clone(), [masked, plain])[0].token == int(logits[0].argmax())


class At(SamplingState):
    """An answer whose next random number is known."""

    __slots__ = ("number",)

    def uniform(self) -> float:
        return self.number


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7},
        {"temperature": 2.5},
        {"top_k": 17},
        {"top_p": 0.83},
        {"min_p": 0.03},
        {"temperature": 1.7, "top_k": 60, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 0.4, "top_p": 0.97},
    ],
    ids=str,
)
def test_tokens_are_drawn_from_the_distribution_that_transformers_samples_from(params: dict[str, Any]) -> None:
    logits = random_logits(4)[:1]
    warped = logits.clone()
    nothing = torch.zeros(1, 0, dtype=torch.int64)
    if "temperature" in params:
        warped = hf.TemperatureLogitsWarper(params["temperature"])(nothing, warped)
    if "top_k" in params:
        warped = hf.TopKLogitsWarper(params["top_k"])(nothing, warped)
    if "top_p" in params:
        warped = hf.TopPLogitsWarper(params["top_p"])(nothing, warped)
    if "min_p" in params:
        warped = hf.MinPLogitsWarper(params["min_p"])(nothing, warped)
    expected = warped.double().softmax(-1)[0].numpy()

    points = 4000
    answers = []
    for i in range(points):
        answer = At(SamplingParams(**params), 0, (), EOS, VOCAB)
        answer.number = (i + 0.5) / points
        answers.append(answer)
    counts = np.zeros(VOCAB)
    for sampled in sample(logits, answers, [0] * points):
        assert sampled.token is not None
        counts[sampled.token] += 1
    # Each token has one interval of the random number, in which evenly spaced points fall short by one at most.
    np.testing.assert_allclose(counts / points, expected, atol=1.01 / points)
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(expected))
