"""Two answers to one request: what is the same, from where on it is not, and what form each keeps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_crds.sketch import Sketch
from paceline_shadow_traffic.answers import Answer, Asked, Mode, ToolCall, mode_of
from paceline_shadow_traffic.compare import compare
from paceline_shadow_traffic.counting import tally
from paceline_shadow_traffic.distance import edit_distance, first_divergence, normalised_edit_distance
from paceline_shadow_traffic.share import NOTHING, Share
from paceline_shadow_traffic.tally import Tally
from paceline_shadow_traffic.validity import json_valid, refused, tool_calls_valid

REPLAYED = Asked(Mode.REPLAYED)
SAMPLED = Asked(Mode.SAMPLED)
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def plain_levenshtein(left: list[int], right: list[int]) -> int:
    """The textbook's table (Wagner and Fischer 1974)."""
    row = list(range(len(right) + 1))
    for i, one in enumerate(left, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(right, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (one != other))
    return row[-1]


symbols = st.lists(st.integers(0, 4), max_size=90)


@settings(deadline=None)
@given(symbols, symbols)
def test_the_edit_distance_is_the_textbooks(left: list[int], right: list[int]) -> None:
    assert edit_distance(left, right) == plain_levenshtein(left, right)


@settings(deadline=None)
@given(symbols, symbols)
def test_the_first_divergence_is_where_the_common_beginning_ends(left: list[int], right: list[int]) -> None:
    at = first_divergence(left, right)
    if at is None:
        assert left == right
    else:
        assert left[:at] == right[:at]
        assert left[at : at + 1] != right[at : at + 1]


@pytest.mark.parametrize(("left", "right", "distance"), [("", "", 0.0), ("", "ab", 1.0), ("kitten", "sitting", 3 / 7)])
def test_the_distance_is_normalised_by_the_longer_one(left: str, right: str, distance: float) -> None:
    assert normalised_edit_distance(left, right) == pytest.approx(distance)


def test_replayed_answers_are_compared_by_token_where_tokens_are_known() -> None:
    base = Answer("a b c", (1, 2, 3), "stop")
    found = compare(REPLAYED, base, Answer("a b d e", (1, 2, 4, 5), "length"))
    assert (found.unit, found.exact, found.first_divergence, found.distance) == ("tokens", False, 2, 0.5)
    assert found.length_ratio == pytest.approx(4 / 3)
    assert found.same_finish_reason is False
    assert compare(REPLAYED, base, base).exact is True
    assert compare(REPLAYED, base, Answer("a b c", None, "stop")).unit == "characters"


def test_sampled_answers_are_not_held_against_each_other() -> None:
    """C073: two draws differ by right."""
    found = compare(SAMPLED, Answer("heads"), Answer("tails"))
    assert (found.exact, found.first_divergence, found.distance) == (None, None, None)
    assert tally([found]).different == NOTHING
    assert tally([found]).sides.candidate.answers == 1


def test_several_choices_and_unseeded_draws_are_not_replayed() -> None:
    """C073."""
    assert mode_of(0.0, 1, None, same_sampler=False) is Mode.REPLAYED
    assert mode_of(0.7, 1, None, same_sampler=True) is Mode.SAMPLED
    assert mode_of(0.7, 1, 42, same_sampler=True) is Mode.REPLAYED
    assert mode_of(0.7, 1, 42, same_sampler=False) is Mode.SAMPLED
    assert mode_of(0.0, 2, None, same_sampler=True) is None


def test_another_tool_call_is_another_answer() -> None:
    base = Answer("", (), "tool_calls", tool_calls=(ToolCall("look", '{"age": 3}'),))
    other = replace(base, tool_calls=(ToolCall("look", '{"age": 4}'),))
    assert compare(REPLAYED, base, other).exact is False


def test_a_ratio_to_an_empty_answer_is_not_known() -> None:
    assert compare(REPLAYED, Answer("", ()), Answer("x", (1,))).length_ratio is None


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"age": 3}', True),
        ('{"age": "three"}', False),
        ("{}", False),
        ('{"age": 3', False),
        ('{"age": NaN}', False),
        ("3", False),
        ("[" * 100_000, False),
    ],
)
def test_content_is_held_to_the_schema(text: str, valid: bool) -> None:
    assert json_valid(Answer(text), replace(REPLAYED, schema=PERSON)) is valid


def test_json_without_a_schema_has_to_be_an_object() -> None:
    asked = replace(REPLAYED, wants_json=True)
    assert json_valid(Answer("{}"), asked) is True
    assert json_valid(Answer("[]"), asked) is False


def test_what_nobody_asked_for_is_not_judged() -> None:
    assert json_valid(Answer("hello"), REPLAYED) is None
    assert tool_calls_valid(Answer("hello"), REPLAYED) is None
    assert json_valid(Answer("I'm sorry, but I can't help with that."), replace(REPLAYED, schema=PERSON)) is None


@pytest.mark.parametrize("reference", ["https://127.0.0.1:1/schema.json", "file:///etc/hostname"])
def test_a_schema_that_points_elsewhere_is_not_fetched_and_judges_nothing(reference: str) -> None:
    assert json_valid(Answer("{}"), replace(REPLAYED, schema={"$ref": reference})) is None


def test_a_schema_that_is_none_judges_nothing() -> None:
    assert json_valid(Answer("{}"), replace(REPLAYED, schema={"type": "no such type"})) is None


def test_half_a_character_as_a_name_is_no_json_whatever_the_schema() -> None:
    """It is the candidate's fault, and no pair that could not be compared."""
    assert json_valid(Answer('{"\\ud800": 1}'), replace(REPLAYED, schema=PERSON)) is False


def test_a_pattern_that_would_backtrack_for_ever_does_not() -> None:
    """Checked by the result: an engine that backtracks would not end, and the test would time out."""
    schema = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
    assert json_valid(Answer(json.dumps({"a": "a" * 40_000 + "!"})), replace(REPLAYED, schema=schema)) is False


@pytest.mark.parametrize(
    ("call", "valid"),
    [
        (ToolCall("look", '{"age": 3}'), True),
        (ToolCall("look", '{"age": null}'), False),
        (ToolCall("look", "age=3"), False),
        (ToolCall("invented", '{"age": 3}'), False),
    ],
)
def test_tool_calls_are_held_to_the_tools_of_the_request(call: ToolCall, valid: bool) -> None:
    asked = replace(REPLAYED, tools={"look": PERSON})
    assert tool_calls_valid(Answer("", tool_calls=(call,)), asked) is valid


@pytest.mark.parametrize(
    ("answer", "declines"),
    [
        (Answer("I\u2019m sorry, but I can\u2019t assist with that request."), True),
        (Answer("I cannot provide medical advice."), True),
        (Answer("", refusal="No."), True),
        (Answer("Yes", finish_reason="content_filter"), True),
        (Answer("I can't recommend this film enough."), False),
        (Answer("Sorry, I meant the other one: 4."), False),
    ],
)
def test_refusals_are_told_by_field_filter_and_beginning(answer: Answer, declines: bool) -> None:
    assert refused(answer) is declines


def test_tallies_add_up() -> None:
    same = compare(REPLAYED, Answer("ab", (1, 2), "stop"), Answer("ab", (1, 2), "stop"))
    other = compare(REPLAYED, Answer("ab", (1, 2), "stop"), Answer("ax", (1, 3), None))
    drawn = compare(SAMPLED, Answer("ab", (1, 2), "stop"), Answer("abcd", (1, 2, 3, 4), "length"))
    total = tally([same, other, drawn])
    assert total == tally([same]) + tally([other, drawn]) + Tally()
    assert total.different == Share(1, 2)
    assert total.distance == Share(0.5, 2)
    assert total.divergences == {1: 1}
    assert total.finish_changed == Share(0, 1)
    assert total.sides.candidate.truncated == Share(1, 3)
    assert total.sides.candidate.length == Sketch.of([0.002, 0.002, 0.004])
    assert NOTHING.value is None
