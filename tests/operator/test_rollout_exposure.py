"""Shapes in order: what has the most requests meets a new revision first, what is sensitive last."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.rollout.exposure import Shape, dealt, exposure

CHAT, CODE = Shape("Chat", 0.6), Shape("Code", 0.3)
LEGAL, RARE = Shape("Legal", 0.1, sensitive=True), Shape("Rare", None)
ORDER = dealt((LEGAL, RARE, CODE, CHAT))


def test_the_most_requests_come_first_sensitive_ones_late_and_what_is_not_known_last() -> None:
    assert [name for name, _ in ORDER] == ["Chat", "Code", "Legal", "Rare"]


def test_a_shape_gets_something_when_the_one_before_has_all() -> None:
    assert exposure(ORDER, 30) == {"Chat": 50, "Code": 0, "Legal": 0, "Rare": 0}
    assert exposure(ORDER, 75) == {"Chat": 100, "Code": 50, "Legal": 0, "Rare": 0}
    assert exposure(ORDER, 95) == {"Chat": 100, "Code": 100, "Legal": 50, "Rare": 0}
    assert exposure(ORDER, 100) == dict.fromkeys(("Chat", "Code", "Legal", "Rare"), 100)
    assert set(exposure(ORDER, 0).values()) == {0}


def test_without_shapes_there_is_nothing_to_deal() -> None:
    assert exposure((), 40) == {}


shapes = st.lists(
    st.builds(
        Shape,
        name=st.sampled_from("abcdefgh"),
        share=st.one_of(st.none(), st.just(0.0), st.floats(0.001, 1.0)),
        sensitive=st.booleans(),
    ),
    min_size=1,
    unique_by=lambda shape: shape.name,
)


@settings(deadline=None)
@given(shapes, st.integers(0, 99))
def test_no_shape_falls_as_the_weight_rises_and_the_sum_is_the_weight(found: list[Shape], weight: int) -> None:
    order = dealt(found)
    now, then = exposure(order, weight), exposure(order, weight + 1)
    assert all(now[name] <= then[name] for name in now)
    assert set(now) == {shape.name for shape in found}
    whole = sum(share for _, share in order)
    if whole > 0.0:
        got = sum(share * now[name] for name, share in order) / whole
        assert abs(got - weight) <= 1.0 + 1e-6
    partly = [name for name, percent in now.items() if 0 < percent < 100]
    assert len(partly) <= 1
