from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_crds.routing import Shape
from paceline_router.shape.interference import HALF_SECONDS, Interference
from paceline_router.shape.split import Advice, Answer, Finding, advise, split_page
from paceline_router.shape.split_condition import MOST_CHARACTERS, condition_of
from paceline_router.table.policy import SHAPES

SHORT = SHAPES.index(Shape.SHORT_INPUT_SHORT_OUTPUT)
LONG = SHAPES.index(Shape.LONG_INPUT_SHORT_OUTPUT)


def traffic(
    *,
    share: float,
    drag: float,
    by_load: float = 0.0,
    requests: int = 12_000,
    seconds: float = HALF_SECONDS * 1.6,
    tokens: int = 100,
    seed: int = 1,
    in_flight: float = 1.0,
) -> Interference:
    """A pool whose requests overlap: a share of them is long and slows the others by `drag` times its part;
    every request in flight adds `by_load` of a time to each.
    """
    rng = random.Random(seed)
    recorder = Interference(0.0)
    flying: list[tuple[float, int, int, float]] = []
    now = 0.0
    for _ in range(requests):
        now += seconds / requests
        for done in [flight for flight in flying if flight[0] <= now]:
            flying.remove(done)
            recorder.leave(done[1], done[2], done[3], done[3] / 20, tokens, now)
        shape = LONG if rng.random() < share else SHORT
        long_ones = sum(flight[1] == LONG for flight in flying) / max(1.0, in_flight)
        ttft = 0.05 * rng.lognormvariate(0, 0.3) * (1 + by_load * len(flying)) * (1 + drag * long_ones)
        context = recorder.enter(shape)
        flying.append((now + rng.expovariate(1 / in_flight) * seconds / requests, shape, context, ttft))
    return recorder


def found(recorder: Interference, shape: Shape = Shape.LONG_INPUT_SHORT_OUTPUT) -> Finding:
    advice: Advice = advise(recorder.window(HALF_SECONDS * 1.7))
    return next(finding for finding in advice.findings if finding.shape is shape)


def test_a_large_shape_that_drags_the_others_gets_a_pool_of_its_own_with_the_figures() -> None:
    finding = found(traffic(share=0.4, drag=3.0))
    assert finding.answer is Answer.YES
    assert "40% of requests" in finding.words or "41% of requests" in finding.words or "39%" in finding.words
    assert "the others' P99 is" in finding.words
    assert "99 % interval" in finding.words


def test_a_busy_pool_where_some_of_every_shape_is_always_there_can_still_tell() -> None:
    recorder = traffic(share=0.4, drag=2.0, in_flight=40, requests=30_000)
    assert found(recorder).answer is Answer.YES
    assert found(recorder, Shape.SHORT_INPUT_SHORT_OUTPUT).answer is Answer.NO
    calm = traffic(share=0.4, drag=0.0, by_load=0.1, in_flight=40, requests=30_000)
    assert found(calm).answer is Answer.NO


def test_a_small_shape_gets_none_however_it_drags() -> None:
    finding = found(traffic(share=0.1, drag=3.0))
    assert finding.answer is Answer.NO
    assert "less than 30%" in finding.words


def test_a_large_shape_that_drags_nobody_gets_none() -> None:
    finding = found(traffic(share=0.4, drag=0.0))
    assert finding.answer is Answer.NO
    assert "no clear effect" in finding.words


def test_load_alone_is_no_effect_of_a_shape() -> None:
    finding = found(traffic(share=0.4, drag=0.0, by_load=2.0))
    assert finding.answer is Answer.NO
    ttft = finding.effects[0]
    assert ttft.p99_present is not None
    assert ttft.p99_absent is not None
    # Seen without the load, it would look like one.
    assert ttft.p99_present > ttft.p99_absent


def test_few_requests_are_not_known() -> None:
    finding = found(traffic(share=0.4, drag=3.0, requests=600))
    assert finding.answer is Answer.NOT_KNOWN
    assert "500 of each" in finding.words


def test_a_shape_that_is_alone_has_nobody_to_drag() -> None:
    finding = found(traffic(share=1.0, drag=3.0, requests=2000))
    assert finding.answer is Answer.NO
    assert "no requests of other shapes" in finding.words


def test_what_is_older_than_the_window_falls_out() -> None:
    recorder = traffic(share=0.4, drag=3.0)
    assert advise(recorder.window(10 * HALF_SECONDS)) == Advice(0.0, 0, ())
    half = advise(recorder.window(2.5 * HALF_SECONDS)).requests
    assert 0 < half < advise(recorder.window(1.7 * HALF_SECONDS)).requests


def test_answers_without_times_count_as_traffic_only() -> None:
    recorder = Interference(0.0)
    recorder.leave(SHORT, recorder.enter(SHORT), None, None, 7, 1.0)
    window = recorder.window(2.0)
    assert window.halves[0].tokens[SHORT] == 7
    assert not window.halves[0].ttft


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_without_an_effect_nobody_is_told_to_split(seed: int) -> None:
    assert found(traffic(share=0.5, drag=0.0, requests=4000, seed=seed)).answer is not Answer.YES


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1e9) | st.none(), st.floats(0, 1e9) | st.none()), max_size=100)
)
def test_cells_are_bounded_and_presence_is_exact(requests: list[tuple[int, float | None, float | None]]) -> None:
    recorder = Interference(0.0)
    flying = [(shape, recorder.enter(shape), ttft, tpot) for shape, ttft, tpot in requests]
    for shape, context, ttft, tpot in flying:
        recorder.leave(shape, context, ttft, tpot, 1, 1.0)
    half = recorder.window(2.0).halves[0]
    assert sum(half.requests) == len(requests)
    assert sum(half.ttft.values()) == sum(ttft is not None for _, ttft, _ in requests)
    assert recorder.enter(0) == 0
    for at, (_, context, _, _) in enumerate(flying):
        before = {other for other, *_ in flying[:at]}
        assert context & 31 & ~sum(1 << other for other in before) == 0
        assert context >> 5 == at.bit_length()


def pool(*answers: str, split: Sequence[str] = (), requests: int = 4000) -> dict[str, Any]:
    return {"requests": requests, "split": list(split), "shapes": [{"answer": answer} for answer in answers]}


@pytest.mark.parametrize(
    ("pools", "status", "reason"),
    [
        ({"default": pool("yes", "no", split=["VeryLong"])}, "True", "ShapeSlowsOthers"),
        ({"default": pool("not known"), "long": pool("yes", split=["VeryLong"])}, "True", "ShapeSlowsOthers"),
        ({"default": pool("no", "no"), "long": pool("no")}, "False", "NoClearEffect"),
        ({"default": pool("no", "not known")}, "Unknown", "NotEnoughRequests"),
        ({"default": pool()}, "Unknown", "NotEnoughRequests"),
        ({}, "Unknown", "NotEnoughRequests"),
    ],
)
def test_the_advice_is_a_condition_for_the_status(pools: dict[str, Any], status: str, reason: str) -> None:
    condition = condition_of(pools)
    assert (condition["type"], condition["status"], condition["reason"]) == ("SplitAdvised", status, reason)
    assert condition["requests"] == 4000 * len(pools)


def test_the_condition_names_pool_and_shapes_and_stays_the_same_while_the_advice_does() -> None:
    one, other = ({"default": pool("yes", split=["VeryLong"], requests=n)} for n in (4000, 4321))
    message = condition_of(one)["message"]
    assert "(pool default: VeryLong)" in message
    assert condition_of(other)["message"] == message
    many = {f"pool-{number:02}": pool("yes", split=[shape.value for shape in SHAPES]) for number in range(17)}
    assert len(condition_of(many)["message"]) <= MOST_CHARACTERS


def test_the_page_is_json_by_pool() -> None:
    page = split_page({"default": traffic(share=0.4, drag=3.0).window(HALF_SECONDS * 1.7)})
    assert json.loads(json.dumps(page)) == page
    assert page["default"]["split"] == ["LongInputShortOutput"]
    (effect, _) = page["default"]["shapes"][1]["effects"]
    assert effect["demonstrated"] is True
    assert effect["ratio"] == pytest.approx((effect["low"] * effect["high"]) ** 0.5)
