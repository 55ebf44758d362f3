"""What is known of one replica's load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.choice.load import (
    CONTEXT_WEIGHT,
    KV_PRESSURE_MOST,
    OUTPUT_WEIGHT,
    STALE_AFTER,
    WARM_ANSWERS,
    WARM_LEAST,
    WARM_SECONDS,
    ReplicaLoad,
    imbalance,
)


def test_a_whole_report_is_weighed() -> None:
    load = ReplicaLoad(0.0)
    load.take(running=2, waiting=1, kv_percent=50, ptok=4000, dtok=1000, sequence=1, now=0.0)
    assert load.others == 3
    assert load.work == pytest.approx(4000 + 1000 * CONTEXT_WEIGHT + 3 * 256 * OUTPUT_WEIGHT)


def test_what_was_sent_since_the_report_is_added_and_what_it_saw_is_not_counted_twice() -> None:
    load = ReplicaLoad(0.0)
    load.take(0, 0, 0, 0, 0, 1, 0.0)
    mark = load.begin(1000, 100, cached_tokens=400)
    sent = 600 + 1000 * CONTEXT_WEIGHT + 100 * OUTPUT_WEIGHT
    assert load.work == pytest.approx(sent)
    load.take(0, 1, 0, 600, 0, 2, 0.1)
    assert load.work == pytest.approx(600 + 100 * OUTPUT_WEIGHT)
    load.answered(1000, 400, mark)
    assert load.work == pytest.approx(600 + 100 * OUTPUT_WEIGHT)  # the report, until the next says otherwise
    load.take(1, 0, 0, 0, 1000, 3, 0.2)
    assert load.work == pytest.approx(1000 * CONTEXT_WEIGHT + 100 * OUTPUT_WEIGHT)


def test_a_replica_that_never_reports_is_weighed_by_own_requests() -> None:
    load = ReplicaLoad(0.0)
    one = load.begin(1000, 100)
    two = load.begin(500, 100)
    load.answered(1000, 0, one)
    load.end(1000, 100, 0, one, answered=True)
    assert load.work == pytest.approx(500 * (1 + CONTEXT_WEIGHT) + 100 * OUTPUT_WEIGHT)
    load.end(500, 100, 0, two, answered=False)
    assert (load.work, load.in_flight) == (0.0, 0)


def test_a_full_cache_weighs_and_half_a_cache_does_not() -> None:
    works = []
    for percent in (0, 80, 90, 95, 100):
        load = ReplicaLoad(0.0)
        load.take(0, 0, percent, 0, 0, 1, 0.0)
        works.append(load.work)
    assert works[:2] == [0.0, 0.0]
    assert 0.0 < works[2] < works[3] < works[4] == KV_PRESSURE_MOST


def test_a_restarted_engine_gives_up_its_place_in_the_index() -> None:
    load = ReplicaLoad(0.0)
    load.slot = 7
    assert load.take(1, 0, 0, 0, 0, 900, 0.0)
    assert not load.take(1, 0, 0, 0, 0, 2, STALE_AFTER / 2)
    assert load.slot == 7
    assert load.take(1, 0, 0, 0, 0, 2, STALE_AFTER * 2)
    assert load.slot == -1


@pytest.mark.parametrize(
    ("seconds", "answers", "share"), [(0, 0, WARM_LEAST), (0.5, 0, 0.5), (0.25, 0.25, 0.5), (1, 0, 1)]
)
def test_a_new_replica_grows_by_time_and_by_answers(seconds: float, answers: float, share: float) -> None:
    load = ReplicaLoad(0.0)
    load.warm_up(100.0)
    assert load.plain_from == 100.0 + WARM_SECONDS
    for _ in range(int(answers * WARM_ANSWERS)):
        load.end(10, 10, 0, mark := load.begin(10, 10), answered=not load.answered(10, 0, mark))  # type: ignore[func-returns-value]
    assert load.share(100.0 + seconds * WARM_SECONDS) == pytest.approx(share)


def test_enough_answers_end_the_warm_up_early() -> None:
    load = ReplicaLoad(0.0)
    load.warm_up(0.0)
    for _ in range(WARM_ANSWERS):
        mark = load.begin(10, 10)
        load.answered(10, 0, mark)
        load.end(10, 10, 0, mark, answered=True)
    assert load.share(1.0) == 1.0
    assert load.plain_from == 0.0


def test_one_time_says_when_nothing_speaks_against_it() -> None:
    load = ReplicaLoad(0.0)
    load.busy(5.0)
    load.busy(3.0)
    assert load.plain_from == 5.0
    load.connect_failed(0.0)
    load.connect_failed(10.0)
    assert load.plain_from > 10.0
    load.connected()
    assert load.plain_from == 5.0
    load.draining = True
    assert load.plain_from == float("inf")
    load.draining = False
    assert load.plain_from == 5.0


def test_imbalance_is_not_known_of_one_or_of_nothing() -> None:
    loads = [ReplicaLoad(0.0) for _ in range(4)]
    assert imbalance(lambda load: load.work, loads) is None
    loads[0].work = 100.0
    assert imbalance(lambda load: load.work, loads) == 4.0
    assert imbalance(lambda load: load.work, loads[:1]) is None


@given(st.lists(st.tuples(st.sampled_from(["begin", "answer", "end", "report"]), st.integers(0, 9999)), max_size=80))
def test_work_is_never_negative_and_nothing_is_left_at_the_end(steps: list[tuple[str, int]]) -> None:
    load = ReplicaLoad(0.0)
    waiting: list[tuple[int, int, int]] = []
    running: list[tuple[int, int, int]] = []
    sequence = 0
    for step, number in steps:
        if step == "begin":
            waiting.append((number, number // 2, load.begin(number, number % 500, number // 2)))
        elif step == "answer" and waiting:
            one = waiting.pop(number % len(waiting))
            load.answered(*one)
            running.append(one)
        elif step == "end" and (waiting or running):
            answered = bool(running) and (number % 2 == 0 or not waiting)
            prompt, cached, mark = (running if answered else waiting).pop()
            load.end(prompt, prompt % 500, cached, mark, answered)
        elif step == "report":
            sequence += 1
            load.take(len(running), len(waiting), 0, sum(p - c for p, c, _ in waiting), 0, sequence, 0.0)
        assert load.work >= -1e-6
        assert load.in_flight == len(waiting) + len(running)
    for one, answered in [(one, False) for one in waiting] + [(one, True) for one in running]:
        load.end(one[0], one[0] % 500, one[1], one[2], answered)
    load.take(0, 0, 0, 0, 0, sequence + 1, 0.0)
    assert load.work == 0.0


def test_the_size_of_the_cache_is_learnt_from_what_fills_it() -> None:
    load = ReplicaLoad(0.0)
    load.take(1, 0, 5, 0, 1000, 1, 0.0)
    assert (load.kv_tokens, load.kv_news) == (0, False)
    load.take(9, 0, 40, 0, 40_000, 2, 0.0)
    assert (load.kv_tokens, load.kv_news) == (100_000, True)
    load.kv_news = False
    load.take(9, 0, 50, 0, 45_000, 3, 0.0)
    assert (load.kv_tokens, load.kv_news) == (100_000, False)
