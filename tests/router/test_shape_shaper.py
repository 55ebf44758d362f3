from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.routing import RoutingSpec, Shape, ShapeThresholds
from paceline_router.shape.asked import COMPLETIONS, text_of
from paceline_router.shape.classes import Structure, Thresholds, classify, reason
from paceline_router.shape.output_length import PRIOR_HIGH_TOKENS, PRIOR_TOKENS, Basis
from paceline_router.shape.shaper import Shaped, Shaper
from paceline_router.table.policy import SHAPES
from paceline_router.wire.requests import parse_body

PATH = b"/v1/chat/completions"
SENTENCE = "The whole city had turned out to see the regatta. "


def shaped(shaper: Shaper, words: int = 10, tenant: str = "a", version: str = "", **fields: Any) -> Shaped:
    fields.setdefault("messages", [{"role": "user", "content": SENTENCE * (words // 10)}])
    body = parse_body(json.dumps({"model": "m", **fields}).encode())
    return shaper.shape(body, text_of(body, PATH), tenant, PATH, version)


def name(found: Shaped) -> Shape:
    return SHAPES[found.shape]


def teach(shaper: Shaper, tokens: int, times: int = 60, **fields: Any) -> None:
    for _ in range(times):
        shaper.learn(shaped(shaper, **fields), None, tokens)


def test_a_short_question_of_a_stranger_is_short_and_says_that_its_answer_is_not_known() -> None:
    shaper = Shaper()
    found = shaped(shaper)
    assert name(found) is Shape.SHORT_INPUT_SHORT_OUTPUT
    assert (found.basis, found.output_tokens, found.output_high) == (Basis.PRIOR, PRIOR_TOKENS, PRIOR_HIGH_TOKENS)
    assert "not known yet" in shaper.explain(found)


def test_a_long_input_is_long_whatever_the_answer() -> None:
    shaper = Shaper()
    assert name(shaped(shaper, 3000)) is Shape.LONG_INPUT_SHORT_OUTPUT
    teach(shaper, 900)
    found = shaped(shaper, 3000)
    assert name(found) is Shape.LONG_INPUT_SHORT_OUTPUT
    assert "a long input decides, though the answer is expected at" in shaper.explain(found)


def test_a_tenant_whose_answers_are_long_is_known_by_them() -> None:
    shaper = Shaper()
    teach(shaper, 900, tenant="writer")
    teach(shaper, 20, tenant="grader")
    assert name(shaped(shaper, tenant="writer")) is Shape.SHORT_INPUT_LONG_OUTPUT
    assert name(shaped(shaper, tenant="grader")) is Shape.SHORT_INPUT_SHORT_OUTPUT


def test_a_tenants_long_prompts_and_its_prompt_versions_have_lengths_of_their_own() -> None:
    shaper = Shaper()
    for _ in range(60):
        for words, version, tokens in ((10, "a", 30), (10, "b", 300), (1500, "a", 100)):
            shaper.learn(shaped(shaper, words, version=version), None, tokens)
    assert shaped(shaper, 10, version="a").output_tokens == pytest.approx(30, rel=0.05)
    assert shaped(shaper, 10, version="b").output_tokens == pytest.approx(300, rel=0.05)
    assert shaped(shaper, 1500, version="a").output_tokens == pytest.approx(100, rel=0.05)
    assert "prompt version and about this length" in shaper.explain(shaped(shaper, 10, version="a"))
    assert "the tenant's requests to this path" in shaper.explain(shaped(shaper, 10, version="c"))


def test_the_clients_bound_holds_for_every_estimate() -> None:
    shaper = Shaper()
    teach(shaper, 900)
    found = shaped(shaper, max_tokens=100)
    assert (found.output_tokens, found.output_high) == (100, 100)
    assert "bounded by max_tokens" in shaper.explain(found)
    assert shaped(shaper, max_tokens=9, max_completion_tokens=100).output_tokens == 100
    assert shaped(shaper, max_tokens=-3).max_tokens is None


def test_very_long_by_tokens_or_by_turns() -> None:
    shaper = Shaper()
    assert name(shaped(shaper, 20_000)) is Shape.VERY_LONG
    talk = [{"role": "user", "content": SENTENCE * 20}] * 12
    found = shaped(shaper, messages=talk)
    assert name(found) is Shape.VERY_LONG
    assert "12 messages are 12 or more" in shaper.explain(found)
    assert name(shaped(shaper, messages=talk[:11])) is Shape.LONG_INPUT_SHORT_OUTPUT


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 2}, "2 answers"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "text"}}}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_structured_or_parallel(fields: dict[str, Any], words: str) -> None:
    shaper = Shaper()
    found = shaped(shaper, **fields)
    assert name(found) is Shape.STRUCTURED_OR_PARALLEL
    assert words in shaper.explain(found)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"n": None},
        {"n": 0},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tools": None},
        {"tools": 7, "n": "two"},
    ],
)
def test_what_only_looks_structured_is_not(fields: dict[str, Any]) -> None:
    assert name(shaped(Shaper(), **fields)) is not Shape.STRUCTURED_OR_PARALLEL or fields.get("tools") == 7


def test_several_answers_are_expected_and_learned_each_by_itself() -> None:
    shaper = Shaper()
    teach(shaper, 400, n=4)
    assert shaped(shaper).output_tokens == pytest.approx(100, rel=0.05)
    assert shaped(shaper, n=4).output_tokens == pytest.approx(400, rel=0.05)
    assert shaped(shaper, n=10**9).output_high < 10**6


def test_tools_count_as_part_of_the_prompt() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x y " * 500}}
    shaper = Shaper()
    assert shaped(shaper, tools=[tool]).prompt_tokens > shaped(shaper).prompt_tokens + 400


def test_token_ids_have_no_margin_and_teach_nothing() -> None:
    shaper = Shaper()
    body = parse_body(json.dumps({"model": "m", "prompt": list(range(5000))}).encode())
    found = shaper.shape(body, text_of(body, COMPLETIONS), "a", COMPLETIONS, "")
    assert (found.prompt_tokens, found.prompt_low, found.prompt_high) == (5000, 5000, 5000)
    shaper.learn(found, 5001, None)
    assert shaper.samples().prompt_error_median is None


def test_the_bounds_of_a_prompt_hold_what_is_reported() -> None:
    shaper = Shaper()
    for turn in range(200):
        found = shaped(shaper, 400)
        shaper.learn(found, 900 + turn % 40, 10)
    found = shaped(shaper, 400)
    assert found.prompt_low <= 900
    assert found.prompt_high >= 940
    assert found.margin < 0.25
    assert shaper.samples().prompt_error_median is not None


def test_calibration_is_reported_by_shape_and_basis() -> None:
    shaper = Shaper()
    for turn in range(600):
        shaper.learn(shaped(shaper), None, 50 + (turn * 37) % 100)
    lines = {line.basis: line for line in shaper.samples().calibration}
    assert set(lines) >= {Basis.PRIOR, Basis.ALIKE}
    assert lines[Basis.ALIKE].below_median == pytest.approx(0.5, abs=0.1)
    assert lines[Basis.ALIKE].below_high == pytest.approx(0.9, abs=0.06)


def test_a_p90_that_did_not_hold_is_widened_within_the_clients_bound() -> None:
    shaper = Shaper()
    teach(shaper, 50, 200)
    # Answers that keep growing are always ahead of what was learned.
    for turn in range(400):
        shaper.learn(shaped(shaper), None, 60 + 3 * turn)
    found = shaped(shaper)
    assert found.output_high >= 2 * found.output_tokens
    assert shaped(shaper, max_tokens=300).output_high <= 300


def test_thresholds_of_the_spec_hold_and_what_was_learned_stays() -> None:
    shaper = Shaper()
    teach(shaper, 100)
    shaper.use(RoutingSpec(shapes=ShapeThresholds(long_output_tokens=64, parallel_samples=3)))
    assert name(shaped(shaper)) is Shape.SHORT_INPUT_LONG_OUTPUT
    assert name(shaped(shaper, n=2)) is not Shape.STRUCTURED_OR_PARALLEL
    shaper.use(None)
    assert name(shaped(shaper)) is Shape.SHORT_INPUT_SHORT_OUTPUT


COUNTS = st.integers(0, 40_000)


@given(COUNTS, COUNTS, st.integers(0, 100), st.sampled_from(Structure))
def test_every_request_has_a_shape_and_the_reason_names_what_decided(
    prompt: int, output: int, turns: int, structure: Structure
) -> None:
    limits = Thresholds()
    found = SHAPES[classify(prompt, output, turns, structure, limits)]
    words = reason(prompt, output, turns, structure, 2, limits)
    sign = {
        Shape.VERY_LONG: ("16384 or more", "12 or more"),
        Shape.STRUCTURED_OR_PARALLEL: ("it asks for", "it has tools"),
        Shape.LONG_INPUT_SHORT_OUTPUT: ("tokens of input are 2048 or more",),
        Shape.SHORT_INPUT_LONG_OUTPUT: ("expected tokens of output are 512 or more",),
        Shape.SHORT_INPUT_SHORT_OUTPUT: ("expected of output under 512",),
    }[found]
    assert any(part in words for part in sign)


@given(COUNTS, COUNTS, st.integers(0, 100), st.sampled_from(Structure), COUNTS)
def test_more_input_never_makes_a_request_less_long(
    prompt: int, output: int, turns: int, structure: Structure, more: int
) -> None:
    limits = Thresholds()
    before = SHAPES[classify(prompt, output, turns, structure, limits)]
    after = SHAPES[classify(prompt + more, output, turns, structure, limits)]
    if before is Shape.VERY_LONG:
        assert after is Shape.VERY_LONG
    if before is Shape.LONG_INPUT_SHORT_OUTPUT:
        assert after in (Shape.LONG_INPUT_SHORT_OUTPUT, Shape.VERY_LONG)


@given(st.binary(max_size=600), st.none() | st.integers(-5, 10**12), st.none() | st.integers(-5, 10**12))
def test_any_text_and_any_numbers_have_a_shape(text: bytes, limit: int | None, n: int | None) -> None:
    body = parse_body(json.dumps({"model": "m", "max_tokens": limit, "n": n}).encode())
    shaper = Shaper()
    found = shaper.shape(body, text, "a", PATH, None)
    assert found.prompt_low <= found.prompt_tokens <= found.prompt_high
    assert 0 <= found.output_tokens <= found.output_high
    shaper.learn(found, 1, 1)
    assert shaper.explain(found)
