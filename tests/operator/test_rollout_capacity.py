"""Two revisions beside each other: what fits, said beforehand, and what each gets at every step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.rollout.asked import Policy, Step
from paceline_operator.rollout.capacity import Way, bases, candidates, fit, split

POLICY = Policy((Step(5, 600.0, 3600.0, replicas=1), Step(25, 1800.0, 7200.0), Step(100, 600.0, 600.0)))


@pytest.mark.parametrize(
    ("total", "free", "way"),
    [
        (4, 4, Way.WARM),
        (4, 3, Way.SURGE),
        (4, 2, Way.ONE_BY_ONE),
        (4, 0, Way.ONE_BY_ONE),
        (1, 1, Way.WARM),
        (1, 0, Way.REFUSED),
        (4, None, Way.NOT_KNOWN),
        (0, None, Way.WARM),
    ],
)
def test_the_way_follows_the_room(total: int, free: int | None, way: Way) -> None:
    """C048: with one GPU that is taken no canary is begun that would wait for ever."""
    found = fit(POLICY, total, free)
    assert found.way is way
    assert found.message


def test_a_refusal_says_what_to_write() -> None:
    assert "Recreate" in fit(POLICY, 1, 0).message


def test_one_by_one_exchanges_one_replica_a_step() -> None:
    found = fit(POLICY, 4, 0)
    assert [step.weight for step in found.steps] == [5, 25, 50, 75, 100]
    assert sum(step.hold for step in found.steps) == pytest.approx(sum(step.hold for step in POLICY.steps))
    assert all(step.hold <= step.most for step in found.steps)


@pytest.mark.parametrize("total", [1, 3, 10])
@pytest.mark.parametrize("weight", [1, 10, 33, 99])
def test_no_version_with_traffic_is_without_a_replica(total: int, weight: int) -> None:
    """C061."""
    step = Step(weight, 0.0, 0.0)
    assert candidates(total, step) >= 1
    assert bases(total, step) >= 1


weights = st.lists(st.integers(1, 99), max_size=5, unique=True).map(lambda found: [*sorted(found), 100])


@settings(deadline=None)
@given(weights, st.integers(1, 40), st.integers(0, 45))
def test_no_step_needs_more_room_than_was_said(shares: list[int], total: int, free: int) -> None:
    policy = Policy(tuple(Step(weight, 60.0, 600.0) for weight in shares))
    capacity = fit(policy, total, free)
    if capacity.way is Way.REFUSED:
        assert total == 1
        assert free == 0
        return
    now: Step | None = None
    for coming in (*capacity.steps, None):
        found = split(capacity, total, now, coming)
        assert found.base >= 1
        assert found.candidate >= 1
        assert found.base + found.candidate <= total + free
        assert found.base + found.candidate <= total + capacity.extra
        if now is not None:
            # What serves can carry its part, but for the one replica that is exchanged.
            short = 1 if capacity.way is Way.ONE_BY_ONE else 0
            assert found.base >= bases(total, now) - short
            assert found.candidate >= candidates(total, now) - short
        now = coming


@settings(deadline=None)
@given(weights, st.integers(2, 40))
def test_finer_steps_end_where_the_policys_do(shares: list[int], total: int) -> None:
    policy = Policy(tuple(Step(weight, 60.0, 600.0) for weight in shares))
    steps = fit(policy, total, 0).steps
    found = [step.weight for step in steps]
    assert found == sorted(set(found))
    assert set(shares) <= set(found)


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (Step(50, 0.0, 0.0),),
        (Step(50, 0.0, 0.0), Step(50, 0.0, 0.0), Step(100, 0.0, 0.0)),
        (Step(0, 0.0, 0.0), Step(100, 0.0, 0.0)),
        (Step(100, 60.0, 0.0),),
        (Step(100, 0.0, 0.0, replicas=0),),
    ],
)
def test_steps_that_cannot_be_followed_are_refused_with_words(steps: tuple[Step, ...]) -> None:
    with pytest.raises(ValueError, match="write"):
        Policy(steps)
