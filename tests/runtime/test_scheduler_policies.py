"""In which order requests run, whom they make room for, and what they are told meanwhile."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_crds.runtime_config import PressurePolicy, QueuePolicy
from paceline_runtime.engine.block_manager import BlockManager
from paceline_runtime.engine.limits import MAX_PREEMPTIONS, SchedulerLimits, SchedulingRules
from paceline_runtime.engine.policy import QUOTA
from paceline_runtime.engine.request import Request
from paceline_runtime.engine.scheduler import Finished, Refused, Scheduler
from paceline_runtime.messages import (
    AddRequest,
    EventKind,
    FinishReason,
    Preemptions,
    RejectCode,
    RequestEvent,
    SamplingParams,
)

LIMITS = SchedulerLimits(
    max_model_len=256, max_num_seqs=4, max_batched_tokens=64, prefill_chunk_tokens=64, max_waiting=1000
)
PRIORITY = SchedulingRules(QueuePolicy.PRIORITY)
DEADLINE = SchedulingRules(QueuePolicy.DEADLINE)
FAIR = SchedulingRules(fair_share=True)
SHORTEST = SchedulingRules(under_pressure=PressurePolicy.SHORTEST_REMAINING)


class Drive:
    """A scheduler whose model makes the token 1, and whose steps take one second each."""

    def __init__(
        self, rules: SchedulingRules | None = None, limits: SchedulerLimits = LIMITS, blocks: int = 400, size: int = 4
    ) -> None:
        self.scheduler = Scheduler(limits, BlockManager(blocks, size, prefix_caching=False), frozenset(), rules)
        self.now = 0.0
        self.started: list[str] = []
        self.ended: dict[str, Finished] = {}
        self.events: list[RequestEvent] = []

    def add(self, name: str, prompt: int = 4, max_tokens: int = 4, **fields: Any) -> None:
        self.scheduler.add(
            AddRequest(
                request_id=name,
                prompt_token_ids=[100] * prompt,
                sampling=SamplingParams(max_tokens=max_tokens),
                arrival_time=self.now,
                **fields,
            ),
            seed=0,
        )

    def step(self) -> dict[str, int]:
        """Tokens by request."""
        self.now += 1
        batch = self.scheduler.schedule(self.now)
        self.ended |= {request.request_id: end for request, end in self.scheduler.take_ended()}
        self.events += self.scheduler.take_events()
        if batch is None:
            return {}
        counts = {seq.request.request_id: seq.count for seq in batch.seqs}
        self.started += [name for name in counts if name not in self.started]
        sampled: dict[str, int | None] = {c.request_id: 1 for seq in batch.seqs for c in seq.choices}
        results = self.scheduler.update(batch, sampled, self.now)
        self.ended |= {request.request_id: end for request, _, end in results if end is not None}
        self.scheduler.observe(1.0, batch)
        self.scheduler.check_integrity()
        return counts

    def run(self, limit: int = 3000) -> list[str]:
        """To the end of everything: in which order requests started."""
        for _ in range(limit):
            if self.scheduler.idle:
                return self.started
            self.step()
        raise AssertionError(f"not done after {limit} steps")

    def told(self, name: str, kind: EventKind) -> list[RequestEvent]:
        return [event for event in self.events if event.request_id == name and event.kind is kind]

    def running(self) -> set[str]:
        return {r.request_id for r in self.scheduler.requests() if r.blocks}


# --- order ---


def test_without_a_policy_priorities_and_deadlines_change_nothing() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=1))
    for index, name in enumerate("abcd"):
        drive.add(name, priority=-index, deadline=1000.0 - index)
    assert drive.run() == ["a", "b", "c", "d"]


def test_an_urgent_request_starts_in_the_next_step_in_the_place_of_a_lesser_one() -> None:
    """C130: four long requests of class 10 hold all places when one of class 0 comes."""
    drive = Drive(PRIORITY, blocks=60)
    for name in "abcd":
        drive.add(name, prompt=20, max_tokens=30, priority=10)
    drive.step()
    drive.add("urgent", prompt=8, max_tokens=30, priority=0)
    assert "urgent" in drive.step()
    assert drive.scheduler.preemptions() == [Preemptions("Priority", "recompute", "other", 1)]
    (victim,) = {"a", "b", "c", "d"} - drive.running()
    assert victim != "a", "the oldest of them is spared"
    drive.add("later", prompt=8, max_tokens=2, priority=10)
    drive.run()
    assert drive.started.index("later") > 4
    admitted = [event.request_id for event in drive.events if event.kind is EventKind.ADMITTED]
    assert admitted.index(victim) < admitted.index("later"), "who was preempted is back before those that never ran"
    assert set(drive.ended) == {"a", "b", "c", "d", "urgent", "later"}


def test_an_urgent_request_takes_the_blocks_that_it_needs_and_no_more() -> None:
    drive = Drive(PRIORITY, blocks=20)
    for name in "abc":
        drive.add(name, prompt=20, max_tokens=4, priority=1)
    drive.step()
    assert drive.running() == {"a", "b", "c"}
    drive.add("urgent", prompt=24, max_tokens=4)
    drive.step()
    assert drive.running() >= {"urgent", "a"}
    assert drive.scheduler.totals.preemptions == 1
    drive.run()


def test_nobody_is_preempted_for_an_urgent_request_that_only_lacks_tokens_of_the_step() -> None:
    limits = replace(
        LIMITS, max_num_seqs=16, max_batched_tokens=16, prefill_chunk_tokens=16, prefill_min_chunk_tokens=8
    )
    drive = Drive(PRIORITY, limits=limits)
    for index in range(15):
        drive.add(f"r{index}", prompt=1, max_tokens=10, priority=1)
    drive.step()
    drive.add("urgent", prompt=40, max_tokens=2)
    drive.run()
    assert drive.scheduler.totals.preemptions == 0


def test_nobody_is_preempted_for_an_urgent_request_that_would_not_fit_even_then() -> None:
    drive = Drive(PRIORITY, blocks=20)
    drive.add("first", prompt=40, max_tokens=4, priority=0)
    drive.add("lesser", prompt=8, max_tokens=20, priority=1)
    drive.step()
    drive.add("large", prompt=60, max_tokens=4, priority=0)
    drive.step()
    assert drive.scheduler.totals.preemptions == 0
    drive.run()


def test_a_lesser_class_gets_its_quota_under_an_endless_stream_of_a_better_one() -> None:
    drive = Drive(PRIORITY, limits=replace(LIMITS, max_num_seqs=1))
    drive.add("patient", max_tokens=1, priority=5)
    for index in range(40):
        drive.add(f"urgent{index}", max_tokens=1)
    assert drive.run().index("patient") < QUOTA


def test_least_slack_counts_the_work_that_is_left_to_do() -> None:
    drive = Drive(DEADLINE, limits=replace(LIMITS, max_num_seqs=1, max_model_len=1000))
    drive.add("warm", prompt=64, max_tokens=3)
    drive.run()
    # One second per step: of two equal deadlines the longer answer has to start first.
    drive.add("running", max_tokens=20)
    drive.step()
    drive.add("short", max_tokens=2, deadline=drive.now + 300)
    drive.add("long", max_tokens=200, deadline=drive.now + 300)
    drive.run()
    assert drive.started[2:] == ["long", "short"]


def test_a_request_without_a_deadline_is_not_starved_by_those_with_one() -> None:
    drive = Drive(DEADLINE, limits=replace(LIMITS, max_num_seqs=1))
    drive.add("patient", max_tokens=4)
    for index in range(60):
        drive.add(f"r{index}", max_tokens=2, deadline=drive.now + 20 + 4 * index)
        drive.step()
        drive.step()
    assert "patient" in drive.started


def test_the_shortest_goes_first_while_the_cache_is_nearly_full_and_only_then() -> None:
    for blocks, expected in ((400, ["long", "short"]), (24, ["short", "long"])):
        drive = Drive(SHORTEST, blocks=blocks)
        drive.add("first", prompt=60, max_tokens=4)
        drive.add("second", prompt=20, max_tokens=8)
        drive.step()
        drive.add("long", prompt=50, max_tokens=10)
        drive.add("short", prompt=8, max_tokens=2)
        assert drive.run()[2:] == expected


def test_a_long_request_is_let_through_however_many_shorter_ones_come() -> None:
    drive = Drive(SHORTEST, limits=replace(LIMITS, max_num_seqs=4), blocks=20)
    drive.add("first", prompt=60, max_tokens=8)
    drive.step()
    drive.add("long", prompt=60, max_tokens=10)
    for index in range(200):
        drive.add(f"short{index}", prompt=8, max_tokens=4)
        drive.step()
    assert "long" in drive.started


# --- tenants ---


def test_tenants_share_by_the_tokens_they_were_served_and_by_weight() -> None:
    drive = Drive(FAIR, limits=replace(LIMITS, max_num_seqs=2))
    for index in range(120):
        drive.add(f"big{index}", prompt=12, max_tokens=4, tenant="big", tenant_weight=1.0)
        drive.add(f"small{index}", prompt=2, max_tokens=2, tenant="small", tenant_weight=2.0)
    for _ in range(100):
        drive.step()
    tokens = {
        name: sum((16 if name == "big" else 4) for request in drive.ended if request.startswith(name))
        for name in ("big", "small")
    }
    assert tokens["small"] / tokens["big"] == pytest.approx(2.0, rel=0.2)


def test_an_empty_batch_is_shared_too() -> None:
    drive = Drive(FAIR, limits=replace(LIMITS, max_num_seqs=8))
    for index in range(20):
        drive.add(f"a{index}", prompt=6, tenant="a")
    for index in range(20):
        drive.add(f"b{index}", prompt=6, tenant="b")
    drive.step()
    assert sum(name.startswith("a") for name in drive.running()) == 4


def test_who_floods_the_queue_delays_others_by_one_turn_only() -> None:
    drive = Drive(FAIR, limits=replace(LIMITS, max_num_seqs=1))
    for index in range(50):
        drive.add(f"flood{index}", tenant="flood")
    for _ in range(10):
        drive.step()
    drive.add("other", tenant="other")
    before = len(drive.started)
    while "other" not in drive.started:
        drive.step()
    assert len(drive.started) - before <= 2


def test_a_tenant_that_rests_saves_up_nothing() -> None:
    drive = Drive(FAIR, limits=replace(LIMITS, max_num_seqs=1))
    drive.add("early", tenant="rests", max_tokens=1)
    for index in range(60):
        drive.add(f"works{index}", tenant="works", max_tokens=1)
    for _ in range(30):
        drive.step()
    for index in range(20):
        drive.add(f"back{index}", tenant="rests", max_tokens=1)
    begun = len(drive.started)
    for _ in range(20):
        drive.step()
    share = sum(name.startswith("back") for name in drive.started[begun:])
    assert 8 <= share <= 12


@pytest.mark.parametrize("own", [0, 2], ids=["of the engine", "of the request"])
def test_a_tenant_keeps_to_its_places_and_others_pass_it(own: int) -> None:
    drive = Drive(limits=replace(LIMITS, tenant_max_seqs=1 if own == 0 else 0))
    for index in range(6):
        drive.add(f"a{index}", max_tokens=12, tenant="a", tenant_slots=own)
    drive.add("b", max_tokens=12, tenant="b", tenant_slots=own)
    for _ in range(20):
        drive.step()
        assert sum(name.startswith("a") for name in drive.running()) <= max(own, 1)
    assert "b" in drive.started[:3]
    assert "TenantSlots" in {event.reason for event in drive.told("a2", EventKind.WAITS)}
    assert set(drive.run()) == {*(f"a{i}" for i in range(6)), "b"}


@given(
    traffic=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.integers(1, 6), st.integers(-1, 2)), max_size=30
    ),
    rules=st.sampled_from([SchedulingRules(), PRIORITY, DEADLINE, FAIR, SHORTEST]),
    slots=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_everything_ends_and_tenants_keep_to_their_places_under_any_rule(
    traffic: list[tuple[str, int, int, int]], rules: SchedulingRules, slots: int
) -> None:
    drive = Drive(rules, limits=replace(LIMITS, tenant_max_seqs=slots, reserve_blocks=1), blocks=9)
    names = [f"{tenant}{index}" for index, (tenant, *_) in enumerate(traffic)]
    for name, (tenant, prompt, max_tokens, priority) in zip(names, traffic, strict=True):
        drive.add(name, prompt, max_tokens, tenant=tenant, priority=priority)
    for _ in range(3000):
        if drive.scheduler.idle:
            break
        drive.step()
        for tenant in "abc":
            assert not slots or sum(name.startswith(tenant) for name in drive.running()) <= slots
        assert all(r.num_preemptions <= MAX_PREEMPTIONS for r in drive.scheduler.requests())
    assert set(drive.ended) == set(names)


# --- pressure ---


def test_the_same_request_is_not_preempted_again_and_again() -> None:
    """C130: everything ends, and none loses its blocks more often than the bound."""
    drive = Drive(limits=replace(LIMITS, max_num_seqs=8), blocks=24)
    for index in range(16):
        drive.add(f"r{index}", prompt=8, max_tokens=60)
    most = 0
    while not drive.scheduler.idle:
        drive.step()
        most = max([most, *(r.num_preemptions for r in drive.scheduler.requests())])
    assert 1 <= most <= MAX_PREEMPTIONS
    assert len(drive.ended) == 16


def test_the_one_with_the_least_to_lose_gives_way_and_not_the_last() -> None:
    drive = Drive(blocks=20, limits=replace(LIMITS, max_num_seqs=3))
    drive.add("old", prompt=20, max_tokens=40)
    drive.add("small", prompt=4, max_tokens=40)
    drive.add("last", prompt=40, max_tokens=40)
    while not drive.scheduler.totals.preemptions:
        drive.step()
    (event,) = [event for event in drive.events if event.kind is EventKind.PREEMPTED]
    assert event.request_id == "small"
    assert event.numbers["contextTokens"] < 40
    assert event.numbers["preemptions"] == 1
    drive.run()


def test_preemptions_make_admission_leave_more_room_for_a_while() -> None:
    def preemptions(percent: int) -> tuple[int, int]:
        drive = Drive(limits=replace(LIMITS, max_num_seqs=16, cushion_percent=percent), blocks=100)
        for index in range(80):
            drive.add(f"r{index}", prompt=12, max_tokens=60)
        drive.run()
        return drive.scheduler.totals.preemptions, drive.scheduler.totals.recomputed_tokens

    with_cushion, without = preemptions(25), preemptions(0)
    assert with_cushion[0] < without[0] / 2
    assert with_cushion[1] < without[1] / 2


def test_two_requests_that_want_most_of_the_cache_get_on_within_two_steps() -> None:
    """C131: need is reserved at admission, so two half-computed prompts never wait for each other."""
    drive = Drive(blocks=32)
    drive.add("a", prompt=78, max_tokens=4)
    drive.add("b", prompt=78, max_tokens=4)
    assert drive.step() == {"a": 64}
    assert "a" in drive.step()
    assert set(drive.run()) == {"a", "b"}
    assert drive.scheduler.totals.preemptions == 0


# --- admission ---


def test_the_retry_time_comes_from_the_queue_and_the_rate_at_which_it_empties() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=1, max_waiting=20))
    for index in range(20):
        drive.add(f"r{index}", max_tokens=2)
    with pytest.raises(Refused, match="20 requests wait already") as refused:
        drive.add("over")
    assert refused.value.retry_after is None, "no rate is known yet"
    for _ in range(20):
        drive.step()
    while drive.scheduler.num_waiting < 20:
        drive.add(f"s{drive.now}{drive.scheduler.num_waiting}", max_tokens=2)
    with pytest.raises(Refused) as refused:
        drive.add("over")
    # A request every two seconds: half of the queue is gone after twenty.
    assert refused.value.retry_after == pytest.approx(20, rel=0.25)


def test_one_tenant_cannot_fill_the_queue() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=1, max_waiting=20, tenant_max_waiting=3))
    for index in range(3):
        drive.add(f"r{index}", tenant="a")
    with pytest.raises(Refused, match="3 requests of this tenant wait already, of the 3") as refused:
        drive.add("over", tenant="a")
    assert refused.value.code is RejectCode.TENANT_LIMIT
    drive.add("other", tenant="b")


def test_a_deadline_that_has_passed_is_refused_at_once() -> None:
    drive = Drive()
    drive.now = 10.0
    with pytest.raises(Refused, match=r"passed 1\.000 s ago") as refused:
        drive.add("late", deadline=9.0)
    assert refused.value.code is RejectCode.DEADLINE


def test_a_deadline_that_the_work_ahead_makes_impossible_is_refused_with_the_arithmetic() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=1))
    drive.add("warm", prompt=64, max_tokens=3)
    drive.run()
    drive.add("running", max_tokens=100)
    drive.step()
    for index in range(10):
        drive.add(f"r{index}", prompt=64, max_tokens=2)
    with pytest.raises(Refused, match="640 prompt tokens ahead") as refused:
        drive.add("late", prompt=64, deadline=drive.now + 8)
    assert refused.value.code is RejectCode.DEADLINE
    drive.add("in-time", prompt=64, deadline=drive.now + 100)


def test_a_waiting_request_is_dropped_when_it_can_no_longer_be_in_time() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=1))
    drive.add("warm", prompt=64, max_tokens=3)
    drive.run()
    drive.add("running", max_tokens=100)
    drive.step()
    drive.add("late", prompt=64, max_tokens=2, deadline=drive.now + 10)
    begun = drive.now
    while "late" not in drive.ended:
        drive.step()
    # Its own work takes two seconds: it is dropped while it is still hopeless, not when the deadline has passed.
    assert 7 <= drive.now - begun <= 9
    assert drive.ended["late"].reason is FinishReason.DEADLINE
    (event,) = drive.told("late", EventKind.DROPPED)
    assert event.reason == "Deadline"
    assert event.numbers["left"] < event.numbers["ownWork"]
    assert drive.scheduler.waiting_by_reason() == {}


def test_all_answers_to_a_late_prompt_are_dropped_together() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=3))
    drive.add("warm", prompt=64, max_tokens=3)
    drive.run()
    drive.add("running", max_tokens=100)
    drive.step()
    drive.add("late", prompt=64, max_tokens=2, deadline=drive.now + 10, fork_ids=("b", "c"))
    while "late" not in drive.ended:
        drive.step()
    assert {"late", "b", "c"} <= set(drive.ended)
    assert drive.scheduler.num_waiting == 0


def test_a_running_request_ends_at_its_deadline_and_frees_its_blocks() -> None:
    drive = Drive()
    drive.add("a", max_tokens=100, deadline=5.0)
    while not drive.ended:
        drive.step()
    assert drive.now == 6.0
    assert drive.ended["a"].reason is FinishReason.DEADLINE
    assert drive.scheduler.blocks.num_used == 0


# --- probes ---


def test_a_probe_passes_a_full_queue_a_full_batch_and_the_reserve() -> None:
    drive = Drive(limits=replace(LIMITS, max_waiting=2, reserve_blocks=4), blocks=48)
    for index in range(4):
        drive.add(f"r{index}", prompt=40, max_tokens=30)
        drive.step()
    drive.add("q0", prompt=40)
    drive.add("q1", prompt=40)
    drive.add("probe", prompt=1, max_tokens=1, probe=True)
    assert drive.step().get("probe") == 1
    assert drive.ended["probe"].reason is FinishReason.LENGTH


def test_a_probe_gets_a_token_of_a_step_that_decodes_would_fill() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=4, max_batched_tokens=4, prefill_chunk_tokens=4))
    for index in range(4):
        drive.add(f"r{index}", prompt=1, max_tokens=30)
    drive.step()
    drive.add("probe", prompt=1, max_tokens=1, probe=True)
    counts = drive.step()
    assert counts["probe"] == 1
    assert len(counts) == 4
    assert len(drive.step()) == 4


# --- what requests are told ---


def test_reasons_are_told_once_per_change_with_true_numbers() -> None:
    drive = Drive(blocks=20, limits=replace(LIMITS, max_num_seqs=2, reserve_blocks=1))
    drive.add("running", prompt=40, max_tokens=8)
    drive.step()
    drive.add("large", prompt=40, max_tokens=8)
    drive.add("behind", prompt=4, max_tokens=8)
    for _ in range(5):
        drive.step()
    (event,) = drive.told("large", EventKind.WAITS)
    assert event.reason == "NoBlocks"
    assert event.numbers == {"needed": 10, "free": 9, "reserved": 1}
    assert event.message == "10 blocks are needed and 9 are free, of which 1 are kept for requests that run"
    (queued,) = drive.told("behind", EventKind.WAITS)
    assert queued.reason == "Queued"
    assert queued.numbers == {"waiting": 1, "waitingTokens": 44, "running": 1}
    assert drive.scheduler.waiting_by_reason() == {"NoBlocks": 1, "Queued": 1}
    drive.run()
    (admitted,) = drive.told("large", EventKind.ADMITTED)
    assert admitted.reason == "FCFS"
    assert admitted.at == event.at + admitted.numbers["sinceArrivalSeconds"] - 1
    assert drive.scheduler.waiting_by_reason() == {}


def test_who_is_admitted_at_once_is_told_nothing() -> None:
    drive = Drive()
    drive.add("a")
    drive.run()
    assert drive.events == []


def test_a_reason_that_goes_to_and_fro_is_not_told_for_ever() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=1))
    for index in range(300):
        drive.add(f"r{index}", max_tokens=1)
    drive.run()
    assert max(len(drive.told(f"r{index}", EventKind.WAITS)) for index in range(300)) <= 2


# --- abort in every state ---


def test_aborts_in_every_state_free_everything() -> None:
    """C134, C136: queued, half computed, decoding, just ended, preempted."""
    drive = Drive(blocks=24, limits=replace(LIMITS, max_num_seqs=3))
    drive.add("ended", prompt=1, max_tokens=1)
    drive.add("decoding", prompt=4, max_tokens=60)
    drive.step()
    drive.add("computing", prompt=80, max_tokens=4)
    drive.step()
    drive.add("queued", prompt=60, max_tokens=4)
    drive.scheduler.preempt("computing")
    drive.step()
    assert drive.told("computing", EventKind.PREEMPTED)
    assert "ended" in drive.ended
    for name in ("decoding", "computing", "queued"):
        assert drive.scheduler.abort(name)
        assert not drive.scheduler.abort(name)
        drive.scheduler.check_integrity()
    assert not drive.scheduler.abort("ended")
    assert drive.scheduler.idle
    assert drive.scheduler.blocks.num_used == 0
    assert drive.scheduler.prefill_tokens == drive.scheduler.decode_tokens == 0


# --- memory ---


@pytest.mark.parametrize("rules", [SchedulingRules(QueuePolicy.PRIORITY, True), DEADLINE, SHORTEST])
def test_requests_that_ended_are_forgotten(rules: SchedulingRules) -> None:
    drive = Drive(rules, limits=replace(LIMITS, max_num_seqs=4), blocks=30)
    for index in range(1500):
        drive.add(f"r{index}", max_tokens=1, tenant=f"t{index}", priority=index % 3, deadline=1e9)
        if index % 4 == 3:
            drive.step()
    drive.run()
    drive.ended.clear()
    gc.collect()
    assert sum(type(item) is Request for item in gc.get_objects()) < 400
