import asyncio
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paceline_operator.queue import Backoff, Schedule, WorkQueue


def test_repeated_adds_are_one_piece_of_work() -> None:
    schedule: Schedule[str] = Schedule()
    for _ in range(100):
        schedule.add("a")
    assert schedule.depth() == 1
    assert schedule.take(0) == "a"
    assert schedule.take(0) is None


def test_a_key_added_while_being_worked_on_comes_back_once_after_done() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a")
    schedule.take(0)
    schedule.add("a")
    schedule.add("a")
    assert schedule.take(0) is None
    schedule.done("a")
    assert schedule.take(0) == "a"
    schedule.done("a")
    assert schedule.take(0) is None


def test_keys_come_in_the_order_they_became_ready() -> None:
    schedule: Schedule[str] = Schedule()
    for key in "cab":
        schedule.add(key)
    schedule.add_at("z", 1.0)
    assert [schedule.take(0.5) for _ in range(4)] == ["c", "a", "b", None]
    assert schedule.take(1.0) == "z"


def test_of_several_times_the_earliest_counts() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add_at("a", 10)
    schedule.add_at("a", 3)
    schedule.add_at("a", 7)
    assert schedule.next_due() == 3
    assert schedule.take(3) == "a"
    schedule.done("a")
    assert schedule.next_due() is None
    assert schedule.take(100) is None


def test_ending_work_that_was_not_taken_is_an_error() -> None:
    with pytest.raises(ValueError, match="was not taken"):
        Schedule[str]().done("a")


def test_delays_double_up_to_the_bound_and_start_anew_after_success() -> None:
    backoff: Backoff[str] = Backoff(first=1, most=8, rng=random.Random(7))
    for low, high in [(0.5, 1), (1, 2), (2, 4), (4, 8), (4, 8)]:
        assert low <= backoff.next("a") <= high
    assert backoff.failures("b") == 0
    backoff.forget("a")
    assert backoff.next("a") <= 1


def test_a_thousand_failures_do_not_overflow() -> None:
    backoff: Backoff[str] = Backoff(first=1, most=60)
    assert all(backoff.next("a") <= 60 for _ in range(2000))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_waiting_worker_gets_a_key_added_later() -> None:
    queue: WorkQueue[str] = WorkQueue()
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await asyncio.wait_for(worker, 5) == "a"


async def test_a_key_comes_back_after_its_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.05)
    assert queue.depth() == 0
    assert await asyncio.wait_for(queue.get(), 5) == "a"


async def test_a_nearer_time_wakes_a_worker_that_sleeps_for_a_farther_one() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("far", 3600)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0.01)
    queue.add_after("near", 0.02)
    assert await asyncio.wait_for(worker, 5) == "near"


async def test_the_servers_wish_outlasts_a_short_delay() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    assert queue.add_failed("a", at_least=30) == 30
    clock.now = 29.9
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.02)
    clock.now = 30
    assert await queue.get() == "a"


async def test_no_key_is_worked_on_twice_at_once() -> None:
    queue: WorkQueue[int] = WorkQueue()
    busy: set[int] = set()
    passes: dict[int, int] = {}

    async def worker() -> None:
        while (key := await queue.get()) is not None:
            assert key not in busy
            busy.add(key)
            await asyncio.sleep(0)
            busy.discard(key)
            passes[key] = passes.get(key, 0) + 1
            queue.done(key)

    workers = [asyncio.create_task(worker()) for _ in range(4)]
    for i in range(500):
        queue.add(i % 5)
        if i % 7 == 0:
            await asyncio.sleep(0)
    while queue.depth() or queue.processing():
        await asyncio.sleep(0)
    queue.close()
    await asyncio.gather(*workers)
    assert set(passes) == set(range(5))
    assert sum(passes.values()) < 500


async def test_a_paused_queue_takes_in_and_hands_out_nothing() -> None:
    queue: WorkQueue[str] = WorkQueue(paused=True)
    queue.add("a")
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0.01)
    assert not worker.done()
    queue.resume()
    assert await asyncio.wait_for(worker, 5) == "a"
    queue.done("a")
    queue.pause()
    queue.add("b")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.02)


async def test_closing_sends_every_worker_home_and_takes_nothing_more() -> None:
    queue: WorkQueue[str] = WorkQueue()
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    queue.add("late")
    assert await asyncio.gather(*workers, queue.get()) == [None] * 4


class ScheduleMachine(RuleBasedStateMachine):
    """Against the plainest model: sets of what is asked for, and a promise that no wish is ever lost."""

    keys = st.sampled_from("abc")

    def __init__(self) -> None:
        super().__init__()
        self.schedule: Schedule[str] = Schedule()
        self.now = 0.0
        self.wanted: set[str] = set()
        self.later: dict[str, float] = {}
        self.taken: set[str] = set()

    @rule(key=keys)
    def add(self, key: str) -> None:
        self.schedule.add(key)
        self.wanted.add(key)

    @rule(key=keys, delay=st.integers(0, 5))
    def add_at(self, key: str, delay: int) -> None:
        due = self.now + delay
        self.schedule.add_at(key, due)
        self.later[key] = min(due, self.later.get(key, due))

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        key = self.schedule.take(self.now)
        for name, due in list(self.later.items()):
            if due <= self.now:
                self.wanted.add(name)
                del self.later[name]
        if key is None:
            assert not self.wanted - self.taken
            return
        assert key in self.wanted
        assert key not in self.taken
        self.wanted.discard(key)
        self.taken.add(key)

    @rule(key=keys)
    def done(self, key: str) -> None:
        if key in self.taken:
            self.schedule.done(key)
            self.taken.discard(key)

    @invariant()
    def the_next_time_is_the_earliest(self) -> None:
        assert self.schedule.next_due() == min(self.later.values(), default=None)
        assert self.schedule.processing() == len(self.taken)
        assert self.schedule.waiting() == len(self.later)


TestSchedule: Any = ScheduleMachine.TestCase
TestSchedule.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


async def test_a_time_that_is_no_number_holds_up_no_other_key() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=lambda: 0.0)
    queue.add_after("odd", float("nan"))
    queue.add_after("due", 0.0)
    assert [await queue.get(), await queue.get()] == ["odd", "due"]
