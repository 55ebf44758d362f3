"""Pools that are too short for the request shapes they claim are told, and serve all the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.conditions import ConditionType, Reason
from paceline_crds.routing import Shape, ShapeThresholds
from paceline_operator.observed import Observed
from paceline_operator.reach import least_tokens
from paceline_operator.rendering import Renderer
from paceline_operator.situation import Situation
from paceline_operator.status import judge
from paceline_router.shape.classes import Structure, Thresholds, classify
from paceline_router.table.policy import SHAPES


def service(shapes: list[str], length: int | None = None, **spec: Any) -> dict[str, Any]:
    pool = {"name": "long", "shapes": shapes, **({"runtime": {"maxModelLen": length}} if length else {})}
    return {
        "metadata": {"name": "chat", "namespace": "demo", "uid": "u"},
        "spec": {"model": {"source": "package://m"}, "pools": [pool], **spec},
    }


def words(obj: dict[str, Any]) -> str:
    return Renderer("r:1")(obj, Observed("demo", "chat", "u", 1)).out_of_reach


def test_a_pool_that_can_serve_none_of_its_shapes_is_told_with_what_to_write() -> None:
    said = words(service(["LongInputShortOutput", "VeryLong"]))
    assert said.startswith(
        "pool long claims LongInputShortOutput (from 2049 tokens on), VeryLong (from 2049 tokens on)"
    )
    assert "takes 2048 tokens" in said
    assert "write runtime.maxModelLen of that pool: 2049 at least" in said
    assert words(service(["LongInputShortOutput", "VeryLong"], length=2049)) == "", "what is advised is enough"


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        (service(["ShortInputShortOutput", "StructuredOrParallel"], 16), False),
        (service(["ShortInputLongOutput"], 512), True),
        (service(["ShortInputLongOutput"], 513), False),
        (service(["LongInputShortOutput"], routing={"shapes": {"longInputTokens": 1024}}), False),
        (service(["VeryLong", "ShortInputShortOutput"], 1024), True),
        ({**service([]), "spec": {"model": {"source": "package://m"}, "runtime": {"maxModelLen": 64}}}, False),
    ],
)
def test_only_what_no_request_of_the_shape_can_pass_is_told(obj: dict[str, Any], told: bool) -> None:
    assert bool(words(obj)) is told


def test_it_is_a_condition_beside_the_others_and_goes_with_its_cause() -> None:
    def conditions(length: int | None) -> dict[ConditionType, Any]:
        observed = Observed("demo", "chat", "u", 1)
        return dict(judge(Situation(observed, Renderer("r:1")(service(["VeryLong"], length), observed))))

    short, long = conditions(None), conditions(4096)
    assert short.pop(ConditionType.SHAPES_OUT_OF_REACH).reason is Reason.POOL_TOO_SHORT
    assert {kind: verdict.reason for kind, verdict in short.items()} == {
        kind: verdict.reason for kind, verdict in long.items()
    }, "it holds nothing up"


@given(
    spec=st.builds(
        ShapeThresholds,
        long_input_tokens=st.none() | st.integers(1, 5000),
        long_output_tokens=st.none() | st.integers(1, 5000),
        very_long_tokens=st.none() | st.integers(1, 20_000),
    ),
    prompt=st.integers(1, 20_000),
    output=st.integers(1, 20_000),
    turns=st.integers(1, 20),
    structure=st.sampled_from(list(Structure)),
)
def test_no_request_that_the_router_gives_a_shape_is_shorter_than_the_least_of_it(
    spec: ShapeThresholds, prompt: int, output: int, turns: int, structure: Structure
) -> None:
    shape = Shape(SHAPES[classify(prompt, output, turns, structure, Thresholds.of(spec))])
    assert prompt + output >= least_tokens(shape, spec)


def test_the_shortest_request_of_a_shape_is_one_of_it_for_the_router() -> None:
    at = Thresholds()
    shortest = {
        Shape.LONG_INPUT_SHORT_OUTPUT: (at.long_input, 1, 1),
        Shape.SHORT_INPUT_LONG_OUTPUT: (1, at.long_output, 1),
        Shape.VERY_LONG: (at.long_input, 1, at.many_turns),
        Shape.SHORT_INPUT_SHORT_OUTPUT: (1, 1, 1),
    }
    for shape, (prompt, output, turns) in shortest.items():
        assert Shape(SHAPES[classify(prompt, output, turns, 0, at)]) is shape
        assert least_tokens(shape, None) == prompt + output
