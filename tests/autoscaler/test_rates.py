"""Rates are found in what replicas say of their steps, never below zero, and not before enough was seen."""

from __future__ import annotations

import random

import pytest

from paceline_autoscaler.rates import Learnt, Work, learn, rates_of

FLOOR, PROMPT, ANSWER = 0.02, 1 / 10_000, 1 / 3_000


def work(steps: float, prefill: float, decode: float, noise: float = 1.0) -> Work:
    return Work((steps * FLOOR + prefill * PROMPT + decode * ANSWER) * noise, steps, prefill, decode)


def seen(*looks: Work) -> Learnt:
    learnt = Learnt()
    for look in looks:
        learnt = learn(learnt, look)
    return learnt


def test_the_rates_of_a_replica_are_found_in_noisy_looks() -> None:
    chance = random.Random(3)
    looks = []
    for _ in range(60):
        steps = chance.randint(50, 300)
        batch = chance.uniform(1, 64)
        looks.append(work(steps, chance.uniform(0, 40_000), steps * batch, chance.uniform(0.97, 1.03)))
    found = rates_of(seen(*looks), max_running=64, step_tokens=2048)
    assert found is not None
    assert found.prefill == pytest.approx(10_000, rel=0.1)
    assert found.decode == pytest.approx(3_000, rel=0.15)
    assert found.floor == pytest.approx(FLOOR, rel=0.2)
    assert found.full_step == pytest.approx(FLOOR + 2048 * PROMPT, rel=0.15)
    assert found.max_running == 64


@pytest.mark.parametrize(
    "looks",
    [
        [],
        [Work(0.0, 0, 0, 0)] * 50,
        [work(100, 0, 3_000)] * 9,
        [work(100, 30_000, 0)] * 9,
        [work(1, 100, 1)],
    ],
    ids=["nothing", "idle", "no prompt", "no answer", "hardly any work"],
)
def test_too_little_seen_is_not_known(looks: list[Work]) -> None:
    assert rates_of(seen(*looks)) is None


def test_what_cannot_be_told_apart_is_shared_and_explains_the_seconds_all_the_same() -> None:
    """A batch of one always: as many steps as answer tokens."""
    learnt = seen(*(work(100, 1_000, 100) for _ in range(50)))
    found = rates_of(learnt)
    assert found is not None
    told = 100 * found.floor + 1_000 / found.prefill + 100 / found.decode
    assert told == pytest.approx(work(100, 1_000, 100).seconds, rel=0.02)
    assert found.floor > 0


def test_a_column_that_would_be_below_zero_is_none_and_no_rate_is_infinite() -> None:
    """Noise that makes answers look as if they gave time back."""
    looks = [Work(1.0 - decode / 10_000, 10, 1_000, decode) for decode in range(0, 2_000, 50)]
    found = rates_of(seen(*looks))
    assert found is not None
    assert found.floor >= 0
    assert 0 < found.prefill < float("inf")
    assert 0 < found.decode < float("inf")


def test_what_was_seen_long_ago_counts_for_less() -> None:
    slow = [Work(20.0, 100, 3_000, 100 * batch) for batch in range(1, 40)]
    quick = [work(100, 1_000 * (batch % 7), 100 * batch) for batch in range(1, 40)] * 40
    found = rates_of(seen(*slow, *quick))
    assert found is not None
    assert found.prefill == pytest.approx(10_000, rel=0.1)
