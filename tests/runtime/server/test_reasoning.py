"""Thoughts are parted from the answer, whatever the tokens' borders are (C150, C151)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.messages import FinishReason, TokenOutput
from paceline_runtime.server.generation import Answer, AnswerOptions
from paceline_runtime.server.reasoning import ReasoningSplitter


def parted(pieces: list[str], *, inside: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(inside=inside)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.flush()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


def every_split(text: str) -> list[list[str]]:
    return [[text[:a], text[a:b], text[b:]] for a in range(len(text) + 1) for b in range(a, len(text) + 1)]


def test_a_marker_is_seen_for_every_split_of_it() -> None:
    for pieces in every_split("a</think>b"):
        assert parted(pieces, inside=True) == ("a", "b")
    for pieces in every_split("<think>a</think>b"):
        assert parted(pieces, inside=False) == ("a", "b")


@pytest.mark.parametrize(
    ("text", "inside", "want"),
    [
        ("no thoughts here", False, ("", "no thoughts here")),
        (" <thin air", False, ("", " <thin air")),
        ("\n<think>\nwell\n\n</think>\n\nyes", False, ("well", "yes")),
        ("well, 1 < 2</thin", True, ("well, 1 < 2</thin", "")),
        ("cut", True, ("cut", "")),
        ("</think>yes", True, ("", "yes")),
        ("yes</think>no", False, ("", "yes</think>no")),
        ("a</think>b</think>c", True, ("a", "b</think>c")),
    ],
)
def test_thoughts_and_answer(text: str, inside: bool, want: tuple[str, str]) -> None:
    assert parted([text], inside=inside) == want
    assert parted(list(text), inside=inside) == want


@given(text=st.text(alphabet="<think>/ \na", max_size=40), cuts=st.sets(st.integers(0, 40)), inside=st.booleans())
def test_the_result_does_not_depend_on_how_the_text_was_cut(text: str, cuts: set[int], inside: bool) -> None:
    at = sorted({0, len(text)} | {cut for cut in cuts if cut <= len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise(at)]
    assert parted(pieces, inside=inside) == parted([text], inside=inside)


def finished(answer: Answer, token_ids: list[int]) -> Answer:
    for token_id in token_ids:
        answer.accept(TokenOutput(request_id="r", new_token_ids=[token_id]))
        if answer.finish_reason is not None:
            return answer
    answer.accept(TokenOutput(request_id="r", new_token_ids=[], finish_reason=FinishReason.LENGTH))
    return answer


def test_stop_strings_are_looked_for_in_the_visible_answer_only(tiny_tokenizer: Any) -> None:
    """C151."""
    options = AnswerOptions(stops=["\n\n"], thinking=False)
    text = "<think>step 1\n\nstep 2</think>Answer: 4\n\nand more"
    answer = finished(Answer(tiny_tokenizer, options), tiny_tokenizer.encode(text))
    assert (answer.reasoning, answer.text) == ("step 1\n\nstep 2", "Answer: 4")
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "\n\n")


def test_an_answer_of_thoughts_only_is_empty_and_says_why_it_ended(tiny_tokenizer: Any) -> None:
    answer = finished(Answer(tiny_tokenizer, AnswerOptions(thinking=True)), tiny_tokenizer.encode("thinking on"))
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("thinking on", "", "length")


def test_stop_strings_and_markers_never_hold_back_half_of_each_other(tiny_tokenizer: Any) -> None:
    """C150: the stop string begins like the marker."""
    for tokens in (["a", "</th", "ink>", "b"], ["a</think>b"], ["a", "<", "/think>b"]):
        ids = [token_id for token in tokens for token_id in tiny_tokenizer.encode(token)]
        answer = finished(Answer(tiny_tokenizer, AnswerOptions(stops=["<x>", "</thanks>"], thinking=True)), ids)
        assert (answer.reasoning, answer.text) == ("a", "b")
