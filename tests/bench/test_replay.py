"""A slice of a trace keeps what is shared between its prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_bench.router import choice, replay
from paceline_bench.router.replay import BLOCK, Turn

turns = st.lists(
    st.builds(
        lambda at, conversation, turns, rest: Turn(
            at, (0, conversation, *(1000 * conversation + n for n in range(turns))), BLOCK * (turns + 1) + rest, 3
        ),
        st.floats(0, 1e6),
        st.integers(1, 9),
        st.integers(0, 6),
        st.integers(1, BLOCK),
    ),
    min_size=1,
    max_size=30,
)


@given(turns, st.integers(1, 5000))
def test_a_slice_has_whole_conversations_in_order_and_no_more_than_one_too_many(drawn: list[Turn], work: int) -> None:
    piece = replay.draw(drawn, work)
    keys = {replay.conversation(turn) for turn in piece}
    assert sorted(piece, key=repr) == sorted((t for t in drawn if replay.conversation(t) in keys), key=repr)
    assert [turn.at_ms for turn in piece] == sorted(turn.at_ms for turn in piece)
    most = max(sum(t.work for t in piece if replay.conversation(t) == key) for key in keys)
    assert sum(turn.work for turn in piece) < work + most


@given(turns)
def test_prompts_share_exactly_the_blocks_that_the_trace_says(drawn: list[Turn]) -> None:
    texts = [replay.text(turn, choice.WORDS, "a").split() for turn in drawn]
    for turn, words in zip(drawn, texts, strict=True):
        assert len(words) == turn.prompt_tokens
        for other, others in zip(drawn, texts, strict=True):
            same = 0
            for mine, theirs in zip(turn.blocks, other.blocks, strict=False):
                if mine != theirs:
                    break
                same += BLOCK
            shared = min(same, len(words), len(others))
            assert words[:shared] == others[:shared]


def test_another_salt_is_another_text() -> None:
    turn = Turn(0.0, (0, 1, 2), 3 * BLOCK, 1)
    assert replay.text(turn, choice.WORDS, "a") != replay.text(turn, choice.WORDS, "b")


@given(turns, st.floats(0.1, 100))
def test_arrivals_keep_their_order_and_fit_the_time(drawn: list[Turn], seconds: float) -> None:
    ordered = sorted(drawn, key=lambda turn: turn.at_ms)
    times = replay.arrivals(ordered, seconds)
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] <= seconds * (1 + 1e-9)


def test_what_an_endless_cache_would_find_counts_leading_blocks_only() -> None:
    first = Turn(0.0, (0, 1), 2 * BLOCK, 1)
    assert replay.reusable([first]) == 0
    assert replay.reusable([first, first]) == 0.5
    assert replay.reusable([first, Turn(1.0, (9, 1), 2 * BLOCK, 1)]) == 0
    assert replay.reusable([]) == 0


def test_a_trace_is_read_with_its_lengths_divided_and_what_does_not_fit_left_out(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 5, "input_length": 1024, "output_length": 64, "hash_ids": [0, 1]},
        {"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [0]},
        {"timestamp": 2, "input_length": 126_000, "output_length": 1, "hash_ids": [0] * 247},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert replay.read(path) == [Turn(1, (0,), 16, 1), Turn(5, (0, 1), 32, 2)]


@pytest.mark.parametrize("content", ["{", "[]", '{"timestamp": 1}'])
def test_what_is_no_trace_is_said(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(replay.TraceError, match="is not Mooncake's conversation trace"):
        replay.read(path)
    with pytest.raises(replay.TraceError):
        replay.read(tmp_path / "missing")
