"""What is kept of one answer is what counting it all again would give."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.sampling import SamplingState
from paceline_runtime.model.sampling.bad_words import BadWords

TOKENS = st.lists(st.integers(0, 30), max_size=200)
FEW = st.integers(0, 3)
WORDS = st.lists(st.lists(FEW, min_size=1, max_size=5), min_size=1, max_size=8)


def begun(params: SamplingParams, prompt: list[int]) -> SamplingState:
    return SamplingState(params, 1, prompt, (2,), 500)


def tables(state: SamplingState) -> tuple[dict[int, int], dict[int, float]]:
    table = state.penalties
    assert table is not None
    assert len(set(table.token_ids.tolist())) == len(table.token_ids)
    ids = table.token_ids.tolist()
    return (
        dict(zip(ids, table.counts.tolist(), strict=True)),
        dict(zip(ids, table.subtract.tolist(), strict=True)),
    )


@given(prompt=TOKENS, output=TOKENS)
@settings(max_examples=60, deadline=None)
def test_counts_kept_step_by_step_are_those_of_a_recount(prompt: list[int], output: list[int]) -> None:
    params = SamplingParams(repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.25)
    state = begun(params, prompt)
    for token in output:
        state.append(token)
    counted = Counter(output)
    counts, subtract = tables(state)
    assert counts == {token: counted[token] for token in {*prompt, *output}}
    for token, value in subtract.items():
        expected = 0.5 * counted[token] + 0.25 if counted[token] else 0.0
        assert value == np.float32(expected)
    assert state.num_output == len(output)


@given(prompt=TOKENS, output=TOKENS)
@settings(max_examples=30, deadline=None)
def test_without_a_repetition_penalty_the_prompt_does_not_count(prompt: list[int], output: list[int]) -> None:
    state = begun(SamplingParams(presence_penalty=1.0), prompt)
    for token in output:
        state.append(token)
    assert tables(state)[0] == Counter(output)


@given(words=WORDS, text=st.lists(FEW, max_size=30), split=st.integers(0, 30))
@settings(max_examples=200, deadline=None)
def test_forbidden_ends_are_those_found_by_looking_at_all_the_text(
    words: list[list[int]], text: list[int], split: int
) -> None:
    automaton = BadWords(words)
    split = min(split, len(text))
    state = automaton.start(text[:split])
    for end in range(split, len(text) + 1):
        before = text[:end]
        expected = {word[-1] for word in words if [*before, word[-1]][-len(word) :] == word}
        assert {int(token) for piece in automaton.forbidden(state) for token in piece} == expected
        if end < len(text):
            state = automaton.advance(state, text[end])


@given(words=WORDS, choices=st.lists(st.integers(0, 3), min_size=40, max_size=40))
@settings(max_examples=60, deadline=None)
def test_an_answer_that_avoids_forbidden_tokens_has_no_bad_word(words: list[list[int]], choices: list[int]) -> None:
    state = SamplingState(SamplingParams(bad_words=tuple(map(tuple, words))), 0, (), (), 4)
    text: list[int] = []
    for choice in choices:
        forbidden = {int(token) for piece in state.forbidden() for token in piece}
        open_tokens = sorted(set(range(4)) - forbidden)
        if not open_tokens:
            break
        text.append(open_tokens[choice % len(open_tokens)])
        state.append(text[-1])
    for word in words:
        assert word not in [text[i : i + len(word)] for i in range(len(text))]


def test_plain_requests_need_nothing() -> None:
    assert begun(SamplingParams(temperature=0.0), [1]).needs == 0
    assert begun(SamplingParams(temperature=1.0, top_k=1), [1]).greedy
    waiting = begun(SamplingParams(temperature=0.0, min_tokens=2), [1])
    for _ in range(2):
        assert waiting.needs != 0
        waiting.append(7)
    assert waiting.needs == 0
