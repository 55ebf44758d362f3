"""The sampler: exact where it is greedy, right in distribution where it is not, and blind to the rest of the batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from paceline_runtime.engine.arrival import answer_seed
from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.sampling import SamplingState, sample
from paceline_runtime.model.sampling.stream import uniform

EOS = 9


def state(vocab: int, seed: int = 0, prompt: tuple[int, ...] = (), **params: Any) -> SamplingState:
    return SamplingState(SamplingParams(**params), seed, prompt, (EOS,), vocab)


class At(SamplingState):
    """An answer whose next random number is known."""

    __slots__ = ("number",)

    def uniform(self) -> float:
        return self.number


def at(number: float, vocab: int, **params: Any) -> At:
    known = At(SamplingParams(**params), 0, (), (EOS,), vocab)
    known.number = number
    return known


def tokens(logits: torch.Tensor, states: list[Any], rows: list[int] | None = None) -> list[int | None]:
    return [sampled.token for sampled in sample(logits.clone(), states, rows)]


def shares(probabilities: tuple[float, ...], points: int = 1000, **params: Any) -> dict[int, float]:
    """How often each token comes out over evenly spaced random numbers: exact up to one point a token."""
    logits = torch.tensor(probabilities).log().unsqueeze(0)
    states = [at((i + 0.5) / points, len(probabilities), **params) for i in range(points)]
    counts = Counter(tokens(logits, states, [0] * points))
    return {int(token or 0): count / points for token, count in counts.items()}


def expected_token(logits: np.ndarray, params: SamplingParams, number: float) -> tuple[int, float]:
    """The plainest way, over everything in order: the token, and how near the number is to a border between two."""
    scaled = (logits.astype(np.float64) - logits.max()) / params.temperature
    weights = np.exp(scaled)
    order = np.arange(len(logits))
    top_k = params.top_k if params.top_k < len(logits) else 0
    if top_k or params.top_p < 1 or params.min_p:
        order = np.lexsort((order, -logits))
        weights = weights[order]
        if top_k:
            weights[top_k:] = 0
        before = np.concatenate(([0.0], np.cumsum(weights)[:-1]))
        keep = (before < params.top_p * weights.sum()) & (weights >= params.min_p * weights[0])
        weights = weights * keep
    running = np.cumsum(weights)
    place = int(np.searchsorted(running, number * running[-1], side="right"))
    return int(order[place]), float(np.abs(running / running[-1] - number).min())


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3])
def test_almost_no_temperature_is_greedy_and_never_breaks(temperature: float) -> None:
    logits = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0)) * 5
    assert tokens(logits, [state(1000, i, temperature=temperature) for i in range(8)]) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1.0, 2.0, 1e30, 1e300])
def test_forbidden_tokens_stay_so_at_any_temperature(temperature: float) -> None:
    logits = torch.zeros(1, 100)
    points = [at((i + 0.5) / 50, 100, temperature=temperature, allowed_token_ids=(3, 7)) for i in range(50)]
    assert set(tokens(logits, points, [0] * 50)) == {3, 7}


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0.0}])
def test_a_cut_to_one_token_leaves_the_likeliest(params: dict[str, float]) -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(1))
    assert tokens(logits, [state(100, i, **params) for i in range(4)]) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("vocab", [3, 16, 65, 1000, 4099])
def test_of_equally_likely_tokens_greedy_takes_the_lowest(vocab: int) -> None:
    logits = torch.zeros(2, vocab)
    logits[1, [vocab - 2, vocab - 1]] = 4.0
    assert tokens(logits, [state(vocab, temperature=0.0)] * 2) == [0, vocab - 2]


def test_tokens_come_out_as_often_as_they_should() -> None:
    assert shares((0.5, 0.3, 0.15, 0.05)) == pytest.approx({0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05}, abs=0.0011)


def test_temperature_flattens() -> None:
    assert shares((0.8, 0.2), temperature=2.0)[0] == pytest.approx(0.8**0.5 / (0.8**0.5 + 0.2**0.5), abs=0.0011)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 4}, {0, 1, 2, 3}),
        ({"top_k": 1000}, {0, 1, 2, 3}),
        ({"top_p": 0.79}, {0, 1}),
        ({"top_p": 0.81}, {0, 1, 2}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"top_k": 3, "top_p": 0.6}, {0, 1}),
        ({"top_p": 0.96, "min_p": 0.4}, {0, 1}),
    ],
)
def test_truncation_keeps_what_it_says_and_scales_the_rest_up(params: dict[str, float], kept: set[int]) -> None:
    probabilities = (0.5, 0.3, 0.15, 0.05)
    total = sum(probabilities[token] for token in kept)
    expected = {token: probabilities[token] / total for token in kept}
    assert shares(probabilities, **params) == pytest.approx(expected, abs=0.0011)


def test_a_cut_between_equally_likely_tokens_keeps_the_lowest() -> None:
    assert set(shares((0.25, 0.25, 0.25, 0.25), top_k=2)) == {0, 1}
    assert set(shares((0.1, 0.3, 0.3, 0.3), top_p=0.5)) == {1, 2}


SHAPES = {
    "peaked": lambda vocab: -1.5 * np.log(1 + np.random.default_rng(5).permutation(vocab)),
    "flat": lambda vocab: np.random.default_rng(6).normal(size=vocab),
    "full of ties": lambda vocab: np.random.default_rng(7).integers(0, 4, vocab) * 1.5,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vocab", [70, 2500, 20_011])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"top_p": 0.5},
        {"top_p": 0.9, "temperature": 0.8},
        {"top_p": 0.99999},
        {"top_k": 40},
        {"top_k": 2400, "temperature": 1.5},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.02},
        {"min_p": 0.05},
        {"min_p": 1e-7, "top_p": 0.97},
    ],
    ids=str,
)
def test_each_random_number_gives_the_token_that_sorting_everything_gives(
    shape: str, vocab: int, params: dict[str, Any]
) -> None:
    logits = SHAPES[shape](vocab).astype(np.float32)
    numbers = [0.0, *np.linspace(0.003, 0.997, 25).tolist(), 1 - 2**-53]
    got = tokens(torch.from_numpy(logits).unsqueeze(0), [at(u, vocab, **params) for u in numbers], [0] * len(numbers))
    for token, number in zip(got, numbers, strict=True):
        expected, margin = expected_token(logits, SamplingParams(**params), number)
        # On the border between two tokens rounding decides.
        assert token == expected or margin < 1e-6, (number, token, expected)


def test_a_token_without_weight_is_never_drawn() -> None:
    logits = torch.full((1, 200), -torch.inf)
    logits[0, [10, 150]] = 0.0
    numbers = [0.0, 0.2, 0.499, 0.5, 0.9, 1 - 2**-53]
    for params in ({}, {"top_p": 0.99}, {"top_k": 100}, {"min_p": 0.01}):
        assert tokens(logits, [at(u, 200, **params) for u in numbers], [0] * 6) == [10, 10, 10, 150, 150, 150]


def test_greedy_and_random_rows_do_not_see_each_other() -> None:
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) * 3
    states = [
        state(500, 1, temperature=0.0, allowed_token_ids=(0, 1, 2, 3, 4)),
        state(500, 2, temperature=0.7),
        state(500, 3, temperature=0.0, top_k=1),
        state(500, 4, top_p=1e-6),
        state(500, 5, temperature=1.3, top_p=0.9, top_k=40),
        state(500, 6, min_p=0.05),
    ]
    together = tokens(logits, states)
    assert together[0] == int(logits[0, :5].argmax())
    assert together[2] == int(logits[2].argmax())
    assert together == [tokens(logits[i : i + 1], [states[i]])[0] for i in range(6)]
    assert tokens(logits.flip(0), states[::-1]) == together[::-1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"frequency_penalty": 1.0, "logprobs": 2}]
)
def test_logits_that_are_no_numbers_give_no_token_and_spoil_no_neighbour(bad: float, params: dict[str, Any]) -> None:
    logits = torch.zeros(3, 10)
    logits[0, 3] = bad
    logits[1, 4] = 100.0
    logits[2] = -torch.inf
    first, second, third = sample(logits, [state(10, **params) for _ in range(3)])
    assert first.token is None
    assert first.logprob is None
    assert "not a number" in (first.fault or "")
    assert second.token == 4
    assert second.fault is None
    assert third.token is None


def test_a_request_that_allows_nothing_is_told_so() -> None:
    asked = state(10, temperature=0.0, allowed_token_ids=(EOS,), min_tokens=2)
    lone, neighbour = sample(torch.zeros(2, 10), [asked, state(10, temperature=0.0)])
    assert lone.token is None
    assert "min_tokens" in (lone.fault or "")
    assert neighbour.token == 0


def test_answers_to_one_prompt_share_its_row() -> None:
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(3))
    choices = [state(300, answer_seed(7, i)) for i in range(4)]
    shared = tokens(logits, [*choices, state(300, temperature=0.0)], [1, 1, 1, 1, 0])
    assert shared[:4] == [tokens(logits[1:], [choice])[0] for choice in choices]
    assert shared[4] == int(logits[0].argmax())
    with pytest.raises(ValueError, match="which row"):
        sample(logits, choices)


def test_choices_differ_and_come_again_with_the_same_seed() -> None:
    logits = torch.zeros(1, 50_000)

    def answer(choice: SamplingState) -> list[int]:
        made = []
        for _ in range(16):
            token = tokens(logits, [choice])[0]
            assert token is not None
            choice.append(token)
            made.append(token)
        return made

    for seed in (7, 0, -1, 2**63 - 1, -(2**63)):
        first = [answer(state(50_000, answer_seed(seed, i))) for i in range(4)]
        assert first == [answer(state(50_000, answer_seed(seed, i))) for i in range(4)]
        assert len({tuple(made) for made in first}) == 4
        assert first[0] == answer(state(50_000, seed))


def test_seeds_and_positions_have_streams_of_their_own() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63)]
    seeds += [answer_seed(seed, choice) for seed in seeds for choice in range(1, 5)]
    numbers = [uniform(seed, index) for seed in seeds for index in range(50)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.03)
    assert answer_seed(5, 0) == 5


def test_random_streams_are_the_same_in_every_version() -> None:
    assert [uniform(7, 0), uniform(7, 1), uniform(-1, 0)] == [
        0.18444399292877356,
        0.004920374705817632,
        0.4326987276350922,
    ]
    assert answer_seed(7, 1) == 5553609203046970859
