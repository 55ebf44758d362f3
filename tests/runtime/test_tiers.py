"""Memories below the cache: what is kept, what comes back, when it is not worth it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_runtime.engine.block_manager import BlockManager
from paceline_runtime.engine.integrity import IntegrityError
from paceline_runtime.engine.limits import SchedulerLimits
from paceline_runtime.engine.scheduler import Scheduler
from paceline_runtime.engine.tiers import Memory, MoveReport, Place, TierStack, Transfer
from paceline_runtime.engine.tiers.switch import LEAST_SAMPLE, RETRY_SECONDS, Tally, TierSwitch
from paceline_runtime.engine.tiers.tier import Tier
from paceline_runtime.messages import AddRequest, EventKind, Preemptions, SamplingParams

SIZE = 4
LIMITS = SchedulerLimits(
    max_model_len=200, max_num_seqs=4, max_batched_tokens=256, prefill_chunk_tokens=256, max_waiting=100
)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Drive:
    """A scheduler over memories whose copies take as long as told."""

    def __init__(self, blocks: int, *tiers: tuple[Memory, int], seconds: float = 0.001, **cache: Any) -> None:
        self.tiers = TierStack(tiers, SIZE)
        manager = BlockManager(
            blocks, SIZE, tiers=self.tiers, **{"prefix_caching": True, "watermark_percent": 75, **cache}
        )
        self.scheduler = Scheduler(LIMITS, manager, frozenset())
        self.seconds = seconds
        self.now = 0.0
        self.cached: dict[str, int] = {}
        self.moves: list[Transfer] = []
        self.lost: set[bytes] = set()

    def add(self, name: str, start: int, length: int, max_tokens: int = 1) -> None:
        self.scheduler.add(
            AddRequest(
                request_id=name,
                prompt_token_ids=list(range(start, start + length)),
                sampling=SamplingParams(max_tokens=max_tokens),
                arrival_time=self.now,
            ),
            seed=0,
        )

    def step(self, prefill_seconds: float = 0.5) -> None:
        self.now += 1
        batch = self.scheduler.schedule(self.now)
        if batch is None:
            return
        if batch.transfers:
            self.moves += batch.transfers
            failed = tuple(t for t in batch.transfers if t.key in self.lost and t.target.memory is Memory.DEVICE)
            directions = [(t.source.memory, t.target.memory) for t in batch.transfers]
            seconds = {direction: self.seconds * directions.count(direction) for direction in directions}
            batch = self.scheduler.transferred(batch, MoveReport(failed, seconds), self.now)
        sampled: dict[str, int | None] = {c.request_id: 1 for seq in batch.seqs for c in seq.choices}
        for request, _, _ in self.scheduler.update(batch, sampled, self.now):
            self.cached[request.request_id] = request.num_cached
        self.scheduler.observe(prefill_seconds, batch)
        self.scheduler.check_integrity()

    def run(self) -> None:
        for _ in range(500):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError("not done")

    def stats(self, name: str) -> Any:
        return next(stats for stats in self.scheduler.tier_stats() if stats.name == name)


def churn(drive: Drive, rounds: int = 12) -> None:
    """Other requests, until what was there before is gone from the cache."""
    for index in range(rounds):
        drive.add(f"churn{index}-{drive.now}", 10_000 + 100 * index, 20)
        drive.run()


def test_a_prompt_that_left_the_cache_comes_back_from_host_memory() -> None:
    drive = Drive(40, (Memory.HOST, 100))
    drive.add("first", 0, 33)
    drive.run()
    churn(drive)
    drive.add("again", 0, 33)
    drive.run()
    assert drive.cached["again"] == 32
    stats = drive.stats("host")
    assert stats.hit_tokens_total == 32
    assert stats.loaded_blocks_total == 8
    assert stats.stored_blocks_total >= 8
    # Each step of the model took half a second for its tokens, and a copy one millisecond.
    assert stats.saved_seconds_total > 32 * 0.5 / 33 * 0.5
    assert stats.cost_seconds_total == pytest.approx(0.001 * len(drive.moves))
    assert stats.active


def test_what_leaves_host_memory_goes_to_disk_and_comes_back_from_there() -> None:
    drive = Drive(40, (Memory.HOST, 10), (Memory.DISK, 200))
    drive.add("first", 0, 33)
    drive.run()
    churn(drive, 20)
    assert drive.stats("disk").stored_blocks_total > 0
    drive.add("again", 0, 33)
    drive.run()
    assert drive.cached["again"] == 32
    assert drive.stats("disk").hit_tokens_total > 0
    directions = {(move.source.memory, move.target.memory) for move in drive.moves}
    assert directions >= {(Memory.DEVICE, Memory.HOST), (Memory.HOST, Memory.DISK), (Memory.DISK, Memory.DEVICE)}


def test_disk_alone_works_too() -> None:
    drive = Drive(40, (Memory.HOST, 0), (Memory.DISK, 100))
    drive.add("first", 0, 33)
    drive.run()
    churn(drive)
    drive.add("again", 0, 33)
    drive.run()
    assert drive.cached["again"] == 32
    assert [stats.name for stats in drive.scheduler.tier_stats()] == ["disk"]


def test_nothing_is_stored_twice() -> None:
    drive = Drive(40, (Memory.HOST, 300))
    for _ in range(4):
        for index in range(8):
            drive.add(f"r{index}-{drive.now}", 100 * index, 20)
            drive.run()
    stored = [move.key for move in drive.moves if move.target.memory is Memory.HOST]
    assert len(stored) == len(set(stored))


def test_a_damaged_block_is_computed_again_and_forgotten() -> None:
    drive = Drive(40, (Memory.HOST, 100))
    drive.add("first", 0, 33)
    drive.run()
    churn(drive)
    drive.lost = {move.key for move in drive.moves if move.target.memory is Memory.HOST}
    drive.add("again", 0, 33)
    drive.step()
    assert drive.scheduler.preemptions() == [Preemptions("TierFault", "recompute", "0", 1)]
    hits = drive.scheduler.totals.prefix_hit_tokens
    drive.run()
    # What was said to be cached is what was: the first blocks may still have been in the cache itself.
    assert drive.cached["again"] == drive.scheduler.totals.prefix_hit_tokens - hits < 32
    assert drive.scheduler.totals.prefix_query_tokens == 2 * 33 + 12 * 20
    assert drive.stats("host").hit_tokens_total == 0
    (event,) = [e for e in drive.scheduler.take_events() if e.kind is EventKind.PREEMPTED]
    assert "damaged" in event.message


def test_a_preempted_request_is_kept_in_host_memory_where_that_is_cheaper() -> None:
    drive = Drive(14, (Memory.HOST, 40), prefix_caching=False)
    for name in "ab":
        drive.add(name, 0, 20, max_tokens=20)
    drive.run()
    ways = {
        way for _, way, _, _ in ((p.reason, p.way, p.priority_class, p.count) for p in drive.scheduler.preemptions())
    }
    assert ways == {"swap"}
    # At most the last, partly filled block is computed again each time.
    assert drive.scheduler.totals.recomputed_tokens <= SIZE * drive.scheduler.totals.preemptions
    assert drive.stats("host").hit_tokens_total > 0


def test_a_preempted_request_is_computed_again_where_copies_are_slower() -> None:
    drive = Drive(14, (Memory.HOST, 40), prefix_caching=False, seconds=50.0)
    for index in range(3):
        for name in "ab":
            drive.add(f"{name}{index}", 0, 20, max_tokens=20)
        drive.run()
    # The first time nothing is known of the copies.
    ways = [(p.way, p.count) for p in drive.scheduler.preemptions()]
    assert dict(ways)["swap"] <= 2
    assert dict(ways)["recompute"] >= 2


def test_blocks_of_a_preempted_request_are_kept_until_it_is_back_or_gone() -> None:
    """C136: a request that is dropped while its blocks are elsewhere leaves nothing behind there."""
    drive = Drive(14, (Memory.HOST, 6), prefix_caching=False)
    drive.add("a", 0, 20, max_tokens=30)
    for _ in range(5):
        drive.step()
    drive.scheduler.preempt("a", swap=True)
    drive.add("b", 500, 40, max_tokens=3)
    drive.step()
    held = drive.stats("host").blocks_used
    assert held == 6
    assert drive.scheduler.abort("a")
    drive.scheduler.check_integrity()
    drive.run()
    assert drive.tiers.room() == 6


def test_frees_that_are_pending_stop_further_preemptions() -> None:
    """C131: blocks of a swapped request are free in the next step only; nobody else is preempted meanwhile."""
    drive = Drive(15, (Memory.HOST, 100), prefix_caching=False)
    for name in "abc":
        drive.add(name, 0, 16, max_tokens=40)
    before = 0
    for _ in range(200):
        if drive.scheduler.idle:
            break
        drive.step()
        assert drive.scheduler.totals.preemptions - before <= 1
        before = drive.scheduler.totals.preemptions
    assert drive.scheduler.idle
    assert before > 0


# --- the memories' own books ---


def test_room_that_is_read_or_written_in_a_step_is_not_given_away_in_it() -> None:
    tier = Tier(Memory.HOST, 2)
    assert tier.reserve(key(1)) == Place(Memory.HOST, 0)
    assert tier.find(key(1)) is None, "it has not arrived"
    assert tier.reserve(key(2)) is not None
    assert tier.reserve(key(3)) is None, "both are being written"
    tier.commit()
    assert tier.find(key(1)) is not None
    tier.use(key(1))
    assert tier.reserve(key(3)) == Place(Memory.HOST, 1), "the other one is being read"
    tier.commit()
    assert tier.find(key(1)) is not None
    assert tier.find(key(2)) is None


def test_what_somebody_counts_on_stays() -> None:
    tier = Tier(Memory.HOST, 2)
    for number in (1, 2):
        tier.reserve(key(number))
    tier.commit()
    tier.pin(key(1), 1)
    tier.pin(key(1), 1)
    assert tier.num_available == 1
    assert tier.reserve(key(3)) is not None
    assert tier.reserve(key(4)) is None
    tier.commit()
    tier.pin(key(1), -1)
    tier.pin(key(1), -1)
    assert tier.num_available == 2


def test_a_stack_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one with room"):
        TierStack([(Memory.HOST, 0), (Memory.DISK, 0)], SIZE)


def test_pins_that_nobody_asked_for_are_found() -> None:
    stack = TierStack([(Memory.HOST, 2)], SIZE)
    stack.reserve(key(1))
    stack.commit()
    stack.pin(key(1))
    stack.check([key(1)])
    with pytest.raises(IntegrityError, match="gone"):
        stack.check([])


# --- is it worth it ---


@pytest.fixture
def tallies() -> tuple[TierSwitch, Tally]:
    return TierSwitch(capacity=100, block_size=SIZE), Tally()


def test_it_stays_on_while_hits_save_more_than_copies_cost(tallies: tuple[TierSwitch, Tally]) -> None:
    switch, tally = tallies
    for turn in range(20):
        tally.stored += 50
        tally.store_seconds += 0.05
        tally.loaded += 20
        tally.load_seconds += 0.02
        tally.saved += 20 * SIZE * 0.01
        assert switch.judge(tally, 0.01, float(turn))
    assert "20 of 50 blocks were asked for again" in switch.reason or "40 of 100" in switch.reason
    assert "1.00 ms to store" in switch.reason


def test_it_is_given_up_after_a_whole_turnover_without_enough_hits_and_not_before(
    tallies: tuple[TierSwitch, Tally],
) -> None:
    switch, tally = tallies
    tally.stored, tally.store_seconds = 99, 0.99
    assert switch.judge(tally, 0.01, 0.0), "each block should have had its full time"
    tally.stored, tally.store_seconds, tally.loaded, tally.load_seconds, tally.saved = 100, 1.0, 5, 0.05, 0.2
    assert not switch.judge(tally, 0.01, 1.0)
    assert "5 of 100 blocks were asked for again, which saved 0.20 s and cost 1.05 s" in switch.reason


def test_it_is_given_up_at_once_where_a_copy_takes_longer_than_the_work(tallies: tuple[TierSwitch, Tally]) -> None:
    switch, tally = tallies
    tally.stored, tally.store_seconds = LEAST_SAMPLE, LEAST_SAMPLE * 0.03
    assert not switch.judge(tally, 0.01, 0.0)
    assert "30.00 ms to store and 30.00 ms to load, 40.00 ms to compute" in switch.reason


def test_it_is_tried_again_later_and_more_rarely_each_time(tallies: tuple[TierSwitch, Tally]) -> None:
    switch, tally = tallies
    now, pauses = 0.0, []
    for _ in range(6):
        tally.stored += LEAST_SAMPLE
        tally.store_seconds += LEAST_SAMPLE * 0.03
        assert not switch.judge(tally, 0.01, now)
        stopped = now
        now += 10
        while not switch.judge(tally, None, now):
            now += 10
        pauses.append(now - stopped)
    assert pauses == [300, 600, 1200, 2400, 3600, 3600]
    assert pauses[0] == RETRY_SECONDS


def test_nothing_is_judged_before_rates_are_known(tallies: tuple[TierSwitch, Tally]) -> None:
    switch, tally = tallies
    tally.stored, tally.store_seconds = 1000, 100.0
    assert switch.judge(tally, None, 0.0)
    assert "too few to judge" in switch.reason


def test_hits_on_disk_count_for_the_host_memory_that_passed_the_blocks_down() -> None:
    """Host memory alone turns over without a hit, but what it passed down is asked for."""
    stack = TierStack([(Memory.HOST, 40), (Memory.DISK, 400)], SIZE)
    host, disk = Place(Memory.HOST, 0), Place(Memory.DISK, 0)
    device = Place(Memory.DEVICE, 0)
    down = [Transfer(device, host, key(n)) for n in range(50)] + [Transfer(host, disk, key(n)) for n in range(50)]
    seconds = {(Memory.DEVICE, Memory.HOST): 0.05, (Memory.HOST, Memory.DISK): 0.05}
    stack.moved(down, MoveReport((), seconds), 0.01, 0.0)
    up = [Transfer(disk, device, key(n)) for n in range(30)]
    stack.moved(up, MoveReport((), {(Memory.DISK, Memory.DEVICE): 0.06}), 0.01, 1.0)
    told = {stats.name: stats for stats in stack.stats()}
    assert told["host"].active
    assert told["disk"].active
    assert (told["host"].hit_tokens_total, told["disk"].hit_tokens_total) == (0, 30 * SIZE)
    assert "30 of 50 blocks were asked for again, which saved 1.20 s and cost 0.16 s" in told["host"].reason
    before = told["host"].reason
    stack.retry(2.0)
    assert {stats.name: stats for stats in stack.stats()}["host"].reason == before


def test_what_is_held_is_served_after_storing_was_given_up() -> None:
    drive = Drive(40, (Memory.HOST, 100), seconds=10.0)
    drive.add("first", 0, 33)
    drive.run()
    churn(drive, 20)
    assert not drive.stats("host").active
    stored = drive.stats("host").stored_blocks_total
    churn(drive, 5)
    assert drive.stats("host").stored_blocks_total == stored
    drive.add("again", 0, 33)
    drive.run()
    assert drive.cached["again"] == 32
