"""The scheduler, driven without a model: what it admits, in which order, and what it gives back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline_runtime.engine.block_manager import BlockManager
from paceline_runtime.engine.scheduler import Batch, Finished, Refused, Scheduler, SchedulerLimits
from paceline_runtime.messages import AddRequest, FinishReason, RejectCode, SamplingParams

EOS = 7
LIMITS = SchedulerLimits(
    max_model_len=64, max_num_seqs=4, max_batched_tokens=16, prefill_chunk_tokens=8, max_waiting=1000
)


def make(limits: SchedulerLimits = LIMITS, blocks: int = 64, size: int = 4, prefix_caching: bool = True) -> Scheduler:
    return Scheduler(limits, BlockManager(blocks, size, prefix_caching=prefix_caching), frozenset({EOS}))


def add(
    scheduler: Scheduler, name: str, prompt: int | list[int], max_tokens: int | None = 4, *, stop: tuple[int, ...] = ()
) -> None:
    ids = [100] * prompt if isinstance(prompt, int) else prompt
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
    scheduler.add(AddRequest(request_id=name, prompt_token_ids=ids, sampling=sampling, arrival_time=0.0), seed=0)


def step(scheduler: Scheduler, token: int = 1) -> tuple[dict[str, int], dict[str, Finished]]:
    """One step that makes `token` for everybody: tokens scheduled by request, and what ended."""
    batch = scheduler.schedule(0.0)
    assert batch is not None
    counts = {seq.request.request_id: seq.count for seq in batch.seqs}
    results = scheduler.update(batch, {seq.request.request_id: token for seq in batch.seqs if seq.samples})
    return counts, {request.request_id: ending for request, _, ending in results if ending}


def run_out(scheduler: Scheduler, limit: int = 2000) -> dict[str, Finished]:
    ended: dict[str, Finished] = {}
    for _ in range(limit):
        if scheduler.idle:
            return ended
        ended |= step(scheduler)[1]
    raise AssertionError(f"not done after {limit} steps")


@pytest.mark.parametrize("flags", [{"counted": False}, {"probe": True}])
def test_what_the_house_asks_itself_is_in_no_total(flags: dict[str, bool]) -> None:
    """Whoever scales by these totals would never let an idle replica go: it is asked for a token every few seconds."""
    scheduler = make()
    sampling = SamplingParams(max_tokens=3)
    for name in ("first", "again"):
        scheduler.add(
            AddRequest(request_id=name, prompt_token_ids=[100] * 8, sampling=sampling, arrival_time=0.0, **flags),
            seed=0,
        )
        run_out(scheduler)
    totals = scheduler.totals
    assert (totals.prompt_tokens, totals.generation_tokens) == (0, 0)
    assert (totals.prefix_query_tokens, totals.prefix_hit_tokens) == (0, 0)
    add(scheduler, "somebody's", 8, 3)
    run_out(scheduler)
    assert (totals.prefix_query_tokens, totals.prefix_hit_tokens, totals.generation_tokens) == (8, 4, 3)


def test_a_long_prompt_comes_in_chunks_and_never_holds_up_a_decode() -> None:
    scheduler = make()
    add(scheduler, "short", 3, 20)
    step(scheduler)
    add(scheduler, "long", 30, 2)
    for chunk in (8, 8, 8, 6):
        counts, _ = step(scheduler)
        assert counts == {"short": 1, "long": chunk}
    assert step(scheduler)[0] == {"short": 1, "long": 1}


def test_prompts_share_the_budget_that_decodes_leave() -> None:
    scheduler = make()
    for name in "abc":
        add(scheduler, name, 30)
    counts, _ = step(scheduler)
    assert counts == {"a": 8, "b": 8}
    assert scheduler.num_waiting == 1


def test_first_come_first_served_up_to_max_num_seqs() -> None:
    scheduler = make()
    for index in range(6):
        add(scheduler, str(index), 2, 3)
    counts, _ = step(scheduler)
    assert list(counts) == ["0", "1", "2", "3"]
    step(scheduler)
    _, ended = step(scheduler)
    assert set(ended) == {"0", "1", "2", "3"}
    assert list(step(scheduler)[0]) == ["4", "5"]


@pytest.mark.parametrize(
    ("token", "stop", "reason", "stop_token"),
    [(EOS, (), FinishReason.STOP, EOS), (9, (9,), FinishReason.STOP, 9), (9, (), None, None)],
)
def test_end_of_sequence_and_stop_tokens_end_a_request(
    token: int, stop: tuple[int, ...], reason: FinishReason | None, stop_token: int | None
) -> None:
    scheduler = make()
    add(scheduler, "a", 3, 4, stop=stop)
    _, ended = step(scheduler, token)
    ending = ended.get("a")
    assert (ending.reason if ending else None) == reason
    assert (ending.stop_token_id if ending else None) == stop_token


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    scheduler = make()
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    scheduler.add(AddRequest(request_id="a", prompt_token_ids=[1], sampling=sampling, arrival_time=0.0), seed=0)
    assert not step(scheduler, EOS)[1]
    assert not step(scheduler, EOS)[1]
    assert step(scheduler, EOS)[1]["a"].reason is FinishReason.LENGTH


def test_without_max_tokens_the_model_length_ends_a_request() -> None:
    scheduler = make()
    add(scheduler, "a", 60, None)
    made = 0
    while not scheduler.idle:
        batch = scheduler.schedule(0.0)
        assert batch is not None
        made += len(scheduler.update(batch, {s.request.request_id: 1 for s in batch.seqs if s.samples}))
    assert made == 4


def test_logits_that_are_no_numbers_end_only_their_request() -> None:
    scheduler = make()
    add(scheduler, "bad", 2)
    add(scheduler, "good", 2)
    batch = scheduler.schedule(0.0)
    assert batch is not None
    results = scheduler.update(batch, {"bad": None, "good": 1})
    endings = {request.request_id: ending for request, _, ending in results}
    assert endings["bad"] is not None
    assert endings["bad"].reason is FinishReason.ERROR
    assert endings["good"] is None
    scheduler.check_integrity()


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "words"),
    [
        (0, 4, RejectCode.INVALID, "empty"),
        (3, 0, RejectCode.INVALID, "max_tokens is 0"),
        (64, None, RejectCode.CONTEXT_LENGTH, "at most 63"),
        (1000, 1, RejectCode.CONTEXT_LENGTH, "1000 tokens"),
        (60, 5, RejectCode.CONTEXT_LENGTH, "ask for at most 4"),
    ],
)
def test_what_can_never_be_served_is_refused_with_words(
    prompt: int, max_tokens: int | None, code: RejectCode, words: str
) -> None:
    with pytest.raises(Refused, match=words) as refused:
        add(make(), "a", prompt, max_tokens)
    assert refused.value.code is code


def test_what_fits_the_model_but_never_the_cache_is_refused_and_blocks_nobody() -> None:
    scheduler = make(replace(LIMITS, max_model_len=4096), blocks=64, size=16)
    with pytest.raises(Refused, match="whole KV cache of this replica holds 1024") as refused:
        add(scheduler, "huge", 2000, 10)
    assert refused.value.code is RejectCode.CONTEXT_LENGTH
    add(scheduler, "small", 10, 2)
    assert set(run_out(scheduler)) == {"small"}


def test_the_longest_request_that_fits_the_cache_runs_to_its_end() -> None:
    scheduler = make(replace(LIMITS, max_model_len=33, reserve_blocks=2), blocks=8, size=4)
    add(scheduler, "exact", 30, 3)
    assert run_out(scheduler)["exact"].reason is FinishReason.LENGTH
    assert scheduler.totals.preemptions == 0


def test_the_queue_is_bounded() -> None:
    scheduler = make(replace(LIMITS, max_waiting=2))
    add(scheduler, "a", 3)
    add(scheduler, "b", 3)
    with pytest.raises(Refused, match="2 requests wait already") as refused:
        add(scheduler, "c", 3)
    assert refused.value.code is RejectCode.QUEUE_FULL


def test_an_id_in_use_is_refused_and_may_be_used_again_later() -> None:
    scheduler = make()
    add(scheduler, "a", 3)
    with pytest.raises(Refused, match="in use"):
        add(scheduler, "a", 3)
    run_out(scheduler)
    add(scheduler, "a", 3)


def test_an_abort_frees_blocks_at_once_whatever_the_request_was_doing() -> None:
    scheduler = make()
    add(scheduler, "decoding", 3, 20)
    step(scheduler)
    add(scheduler, "prefilling", 30, 2)
    step(scheduler)
    for index in range(5):
        add(scheduler, f"queued{index}", 30, 2)
    for name in ("decoding", "prefilling", *(f"queued{index}" for index in range(5))):
        assert scheduler.abort(name)
        assert not scheduler.abort(name)
    assert scheduler.idle
    assert scheduler.blocks.num_used == 0
    assert scheduler.prefill_tokens == 0
    scheduler.check_integrity()


def test_when_blocks_run_out_the_last_admitted_gives_way_and_comes_back_before_those_that_never_ran() -> None:
    scheduler = make(blocks=8, prefix_caching=False)
    add(scheduler, "first", 12, 16)
    add(scheduler, "second", 12, 16)
    add(scheduler, "third", 12, 2)
    ended: list[str] = []
    preempted: set[str] | None = None
    while not scheduler.idle:
        counts, endings = step(scheduler)
        ended += endings
        if scheduler.totals.preemptions and preempted is None:
            preempted = {r.request_id for r in scheduler.requests()} - set(counts)
        if preempted and "third" in counts:
            assert "second" in counts or "second" in ended
    assert preempted == {"second", "third"}
    assert ended[0] == "first"
    assert set(ended) == {"first", "second", "third"}
    scheduler.check_integrity()


def test_two_prompts_that_do_not_fit_together_do_not_wait_for_each_other() -> None:
    scheduler = make(replace(LIMITS, max_model_len=128), blocks=32, prefix_caching=False)
    for name in ("a", "b"):
        add(scheduler, name, 80, 4)
    assert set(run_out(scheduler)) == {"a", "b"}
    assert scheduler.totals.preemptions == 0


def test_a_new_request_leaves_room_for_those_that_run() -> None:
    scheduler = make(replace(LIMITS, reserve_blocks=3), blocks=8, prefix_caching=False)
    add(scheduler, "running", 8, 20)
    add(scheduler, "new", 16, 2)
    assert set(step(scheduler)[0]) == {"running"}


def test_a_prefix_hit_is_computed_once_and_counted() -> None:
    scheduler = make()
    prompt = list(range(100, 118))
    add(scheduler, "cold", prompt, 1)
    run_out(scheduler)
    assert scheduler.totals.prompt_tokens == 18
    add(scheduler, "hot", [*prompt[:9], 1, 2, 3], 1)
    counts, _ = step(scheduler)
    assert counts == {"hot": 4}
    assert scheduler.totals.prefix_query_tokens == 18 + 12
    assert scheduler.totals.prefix_hit_tokens == 8


def test_scheduler_and_block_manager_need_no_torch() -> None:
    code = "import sys, paceline_runtime.engine.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class AnyTraffic(RuleBasedStateMachine):
    """Random arrivals, aborts and steps on a cache that is too small for them."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = SchedulerLimits(
            max_model_len=40,
            max_num_seqs=5,
            max_batched_tokens=12,
            prefill_chunk_tokens=7,
            max_waiting=12,
            reserve_blocks=1,
        )
        self.scheduler = make(self.limits, blocks=12, size=4)
        self.added = 0
        self.open: set[str] = set()
        self.steps = 0

    @rule(
        length=st.integers(1, 42),
        alphabet=st.integers(1, 2),
        max_tokens=st.one_of(st.none(), st.integers(1, 39)),
    )
    def arrive(self, length: int, alphabet: int, max_tokens: int | None) -> None:
        name = f"r{self.added}"
        self.added += 1
        if length >= 40 or (max_tokens is not None and length + max_tokens > 40):
            with pytest.raises(Refused, match="takes at most"):
                self.add(name, length, alphabet, max_tokens)
        elif self.scheduler.num_waiting >= self.limits.max_waiting:
            with pytest.raises(Refused, match="wait already"):
                self.add(name, length, alphabet, max_tokens)
        else:
            self.add(name, length, alphabet, max_tokens)
            self.open.add(name)

    def add(self, name: str, length: int, alphabet: int, max_tokens: int | None) -> None:
        add(self.scheduler, name, [100 + i % alphabet for i in range(length)], max_tokens)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        assert self.scheduler.abort(name)
        self.open.discard(name)

    @rule(token=st.sampled_from([1, 2, EOS]), count=st.integers(1, 6))
    def steps_run(self, token: int, count: int) -> None:
        for _ in range(count):
            self.one_step(token)

    def one_step(self, token: int) -> None:
        batch = self.scheduler.schedule(float(self.steps))
        self.steps += 1
        if batch is None:
            assert not self.open, "requests are there, but no step has work"
            return
        self.budget_is_kept(batch)
        sampled = {seq.request.request_id: token for seq in batch.seqs if seq.samples}
        for request, tokens, ending in self.scheduler.update(batch, sampled):
            assert tokens == [token]
            assert len(request.tokens) <= request.max_len
            if ending is not None:
                self.open.discard(request.request_id)

    def budget_is_kept(self, batch: Batch) -> None:
        assert batch.num_tokens <= self.limits.max_batched_tokens
        assert len(batch.seqs) <= self.limits.max_num_seqs
        assert len({seq.request.request_id for seq in batch.seqs}) == len(batch.seqs)
        for seq in batch.seqs:
            assert seq.count >= 1
            assert len(self.open) == 1 or seq.count <= self.limits.prefill_chunk_tokens
            assert len(seq.request.blocks) * 4 >= seq.request.num_computed + seq.count

    @invariant()
    def books_are_right(self) -> None:
        self.scheduler.check_integrity()
        assert {r.request_id for r in self.scheduler.requests()} == self.open
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.open)
        waiting = [r for r in self.scheduler.requests() if not r.blocks]
        running = [r for r in self.scheduler.requests() if r.blocks]
        owed = sum(len(r.tokens) for r in waiting) + sum(r.num_new for r in running if r.num_new > 1)
        assert self.scheduler.prefill_tokens == owed

    def teardown(self) -> None:
        # Nobody starves: with no more arrivals each open request ends within the steps that it needs alone, one by one.
        bound = sum(r.max_len for r in self.scheduler.requests()) + 1
        for _ in range(bound):
            if not self.open:
                break
            self.one_step(1)
        assert not self.open
        assert self.scheduler.idle
        assert self.scheduler.blocks.num_used == 0
        self.scheduler.check_integrity()


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
