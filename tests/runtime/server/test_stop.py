"""Stop strings are found wherever they lie in the tokens, and no part of them is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.server.stop import StopMatcher

LETTERS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first stop string to be complete ends the text; of those that end there, the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_the_result_does_not_depend_on_how_the_text_was_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown, at, n = "", 0, 0
    while at < len(text):
        size = cuts[n % len(cuts)]
        shown += matcher.feed(text[at : at + size])
        at, n = at + size, n + 1
    shown += matcher.flush() if matcher.matched is None else ""
    assert (shown, matcher.matched) == reference(text, stops)


@given(text=LETTERS, stops=STOPS)
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for n, character in enumerate(text, 1):
        shown += matcher.feed(character)
        if matcher.matched is not None:
            break
        held = text[len(shown) : n]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize("pieces", [["answer</th", "ink>rest"], ["answer<", "/", "think", ">"], ["answer</think>"]])
def test_a_marker_is_cut_whole_for_every_split(pieces: list[str]) -> None:
    matcher = StopMatcher(["</think>"])
    assert "".join(matcher.feed(piece) for piece in pieces) == "answer"
    assert matcher.matched == "</think>"


def test_nothing_is_shown_after_the_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.feed("ax") == "a"
    assert matcher.feed("more") == ""
    assert matcher.flush() == ""
