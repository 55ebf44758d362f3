"""What requests share: a prompt's blocks between its answers, cached prefixes, a step's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_crds.runtime_config import Isolation
from paceline_runtime.engine.batch import Batch, piece
from paceline_runtime.engine.block_manager import BlockManager, hash_seed
from paceline_runtime.engine.hashing import salted_root
from paceline_runtime.engine.limits import SchedulerLimits, SchedulingRules
from paceline_runtime.engine.request import Request, RequestState
from paceline_runtime.engine.scheduler import Finished, Refused, Scheduler
from paceline_runtime.messages import AddRequest, FinishReason, SamplingParams

SIZE = 4
LIMITS = SchedulerLimits(
    max_model_len=128, max_num_seqs=4, max_batched_tokens=32, prefill_chunk_tokens=16, max_waiting=1000
)
ISOLATED = SchedulingRules(isolation=Isolation.PER_TENANT)


class Drive:
    """A scheduler whose model makes the token 1 unless told otherwise."""

    def __init__(
        self, rules: SchedulingRules | None = None, limits: SchedulerLimits = LIMITS, blocks: int = 64, **cache: Any
    ) -> None:
        manager = BlockManager(blocks, SIZE, **{"prefix_caching": True, **cache})
        self.scheduler = Scheduler(limits, manager, frozenset({7}), rules)
        self.blocks = manager
        self.ended: dict[str, Finished] = {}
        self.made: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def add(
        self,
        name: str,
        prompt: int | Sequence[int],
        max_tokens: int = 4,
        sampling: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        ids = list(range(100, 100 + prompt)) if isinstance(prompt, int) else list(prompt)
        params = SamplingParams(max_tokens=max_tokens, **(sampling or {}))
        self.scheduler.add(
            AddRequest(request_id=name, prompt_token_ids=ids, sampling=params, arrival_time=0.0, **fields), seed=5
        )

    def step(self, tokens: dict[str, int] | None = None) -> Batch:
        batch = self.scheduler.schedule(0.0)
        assert batch is not None
        sampled = {c.request_id: (tokens or {}).get(c.request_id, 1) for seq in batch.seqs for c in seq.choices}
        for request, new, end in self.scheduler.update(batch, sampled):
            self.made.setdefault(request.request_id, []).extend(new)
            self.cached[request.request_id] = request.num_cached
            if end is not None:
                self.ended[request.request_id] = end
        self.scheduler.check_integrity()
        return batch

    def run(self) -> None:
        for _ in range(1000):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError("not done")

    def request(self, name: str) -> Request:
        return next(r for r in self.scheduler.requests() if r.request_id == name)


# --- several answers to one prompt ---


def test_one_prefill_serves_all_answers_and_each_draws_for_itself() -> None:
    drive = Drive()
    drive.add("a", 10, fork_ids=("b", "c"))
    assert drive.request("b").state is RequestState.FORKED
    assert drive.scheduler.num_waiting == 3
    batch = drive.step({"a": 1, "b": 2, "c": 3})
    assert [(seq.request.request_id, seq.count) for seq in batch.seqs] == [("a", 10)]
    assert [choice.request_id for choice in batch.seqs[0].choices] == ["a", "b", "c"]
    assert len({choice.seed for choice in batch.seqs[0].choices}) == 3
    assert batch.seqs[0].choices[0].seed == 5
    assert {name: drive.request(name).tokens[-1] for name in "abc"} == {"a": 1, "b": 2, "c": 3}
    assert drive.scheduler.num_running == 3
    assert drive.blocks.num_used == 3
    drive.run()
    assert drive.scheduler.totals.prompt_tokens == 10
    assert all(len(made) == 4 for made in drive.made.values())


def test_a_shared_half_full_block_is_copied_by_all_but_the_last_to_write_it() -> None:
    drive = Drive()
    drive.add("a", 10, fork_ids=("b", "c"))
    drive.step()
    shared = drive.request("a").blocks[2]
    batch = drive.step()
    assert [copy.source for copy in batch.copies] == [shared, shared]
    tails = [drive.request(name).blocks[2] for name in "abc"]
    assert len(set(tails)) == 3
    assert {copy.target for copy in batch.copies} == set(tails) - {shared}
    assert len({tuple(drive.request(name).blocks[:2]) for name in "abc"}) == 1
    assert not drive.step().copies


def test_answers_to_a_prompt_of_whole_blocks_copy_nothing() -> None:
    drive = Drive()
    drive.add("a", 8, fork_ids=("b",))
    drive.step()
    assert not drive.step().copies
    assert len(set(drive.request("a").blocks) & set(drive.request("b").blocks)) == 2


def test_each_answer_ends_and_is_dropped_alone() -> None:
    drive = Drive()
    drive.add("a", 6, max_tokens=6, fork_ids=("b", "c"))
    drive.step({"a": 7})
    assert drive.ended["a"].reason is FinishReason.STOP
    drive.step()
    assert drive.scheduler.abort("b")
    drive.run()
    assert drive.ended["c"].reason is FinishReason.LENGTH
    assert len(drive.made["c"]) == 6
    assert drive.blocks.num_used == 0


@pytest.mark.parametrize("steps", [0, 1], ids=["queued", "half computed"])
def test_when_the_first_answer_is_dropped_the_next_takes_its_prompt_over(steps: int) -> None:
    drive = Drive()
    drive.add("other", 1, max_tokens=30)
    drive.step()
    drive.add("a", 40, fork_ids=("b", "c"))
    drive.add("later", 8)
    for _ in range(steps):
        drive.step()
    computed = drive.request("a").num_computed
    assert drive.scheduler.abort("a")
    drive.scheduler.check_integrity()
    assert drive.request("b").num_computed == computed
    batch = drive.step()
    assert [seq.request.request_id for seq in batch.seqs][:2] == ["other", "b"]
    assert drive.scheduler.abort("c")
    drive.run()
    assert {"b", "later"} <= set(drive.ended)
    assert "a" not in drive.made
    assert "c" not in drive.made


def test_a_prompt_whose_log_probabilities_were_partly_told_begins_anew_for_the_next_answer() -> None:
    drive = Drive()
    drive.add("other", 1, max_tokens=30)
    drive.step()
    drive.add("a", 40, fork_ids=("b",), sampling={"prompt_logprobs": 1})
    drive.step()
    assert drive.request("a").num_computed == 16
    assert drive.scheduler.abort("a")
    drive.scheduler.check_integrity()
    counts = {seq.request.request_id: (seq.request.num_computed, seq.count) for seq in drive.step().seqs}
    assert counts["b"] == (16, 16), "the step began at the first token and computed sixteen"
    drive.run()
    assert set(drive.ended) == {"other", "b"}


def test_all_answers_need_a_place_in_the_batch() -> None:
    drive = Drive()
    drive.add("running", 4, max_tokens=8)
    drive.step()
    drive.add("a", 4, fork_ids=("b", "c", "d"))
    assert len(drive.step().seqs) == 1
    (event,) = drive.scheduler.take_events()
    assert event.reason == "BatchFull"
    assert event.numbers == {"running": 1, "places": 4, "needed": 4}
    with pytest.raises(Refused, match="5 answers are asked for; this replica runs at most 4 at once"):
        drive.add("x", 4, fork_ids=tuple("vwyz"))
    drive.run()
    assert set(drive.ended) == {"running", "a", "b", "c", "d"}


def test_answers_that_fill_the_cache_together_still_end() -> None:
    drive = Drive(blocks=8, prefix_caching=False)
    drive.add("a", 26, max_tokens=6, fork_ids=("b", "c", "d"))
    drive.run()
    assert all(len(made) == 6 for made in drive.made.values())
    assert drive.scheduler.totals.preemptions > 0


# --- the prefix cache ---


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17])
def test_hits_round_down_to_whole_blocks_and_leave_a_token_to_compute(length: int) -> None:
    """C140: prompts at and beside the end of a block."""
    drive = Drive()
    for name in ("cold", "hot"):
        drive.add(name, length, max_tokens=2)
        drive.run()
    assert drive.cached == {"cold": 0, "hot": (length - 1) // SIZE * SIZE}


@pytest.mark.parametrize("rules", [None, ISOLATED], ids=["shared", "isolated"])
def test_a_tenant_finds_anothers_blocks_only_where_tenants_share(rules: SchedulingRules | None) -> None:
    """C142: neither the time nor the count of cached tokens tells what others sent."""
    drive = Drive(rules)
    for name, tenant in (("first", "a"), ("other", "b"), ("again", "b"), ("nobody", "")):
        drive.add(name, 17, tenant=tenant)
        drive.run()
    assert drive.cached == {
        "first": 0,
        "other": 16 if rules is None else 0,
        "again": 16,
        "nobody": 16 if rules is None else 0,
    }


def test_a_salt_sets_requests_apart_and_is_no_tenant_and_no_adapter() -> None:
    """C137: what changes a key is tagged with its kind."""
    drive = Drive(ISOLATED)
    for name, tenant, salt in (("a", "x", ""), ("b", "", "x"), ("c", "x", "x"), ("d", "", "x")):
        drive.add(name, 17, tenant=tenant, cache_salt=salt)
        drive.run()
    assert drive.cached == {"a": 0, "b": 0, "c": 0, "d": 16}
    seed = hash_seed("sha256:m", 16, "float32")
    adapted = hash_seed("sha256:m", 16, "float32", adapter="x")
    roots = {
        seed,
        adapted,
        salted_root(seed, salt="x"),
        salted_root(seed, tenant="x"),
        salted_root(seed, tenant=""),
        salted_root(seed, private="x"),
        salted_root(adapted, salt="x"),
        salted_root(seed, tenant="x", salt="x"),
        salted_root(seed, tenant="xsalt", salt="x"),
    }
    assert len(roots) == 9
    assert salted_root(seed) == seed


def test_other_weights_under_the_same_name_find_nothing() -> None:
    """C139: the key has the digest of the weights, so the name does not matter."""
    old, new = (hash_seed(f"sha256:{digest}", SIZE, "float32", adapter=a) for digest, a in (("1", "t1"), ("1", "t2")))
    assert old != new
    drive = Drive(seed=old)
    drive.add("warm", 17)
    drive.run()
    drive.blocks.seed = new
    drive.add("cold", 17)
    drive.run()
    assert drive.cached["cold"] == 0


def test_prompt_logprobs_are_never_cut_short_by_a_hit() -> None:
    """C143: the cached part of a prompt has no logits, so it is computed again, and still serves others."""
    drive = Drive()
    for name in ("first", "second"):
        drive.add(name, 17, max_tokens=1, sampling={"prompt_logprobs": 1})
        drive.run()
        assert drive.cached[name] == 0
    assert drive.scheduler.totals.prompt_tokens == 34
    assert drive.scheduler.totals.prefix_query_tokens == 0
    drive.add("third", 17)
    drive.run()
    assert drive.cached["third"] == 16
    assert drive.scheduler.totals.prefix_query_tokens == 17
    assert drive.scheduler.totals.prefix_hit_tokens == 16


def test_no_tokens_asked_for_computes_the_prompt_and_ends() -> None:
    drive = Drive()
    drive.add("a", 20, max_tokens=0, sampling={"prompt_logprobs": 0}, fork_ids=("b",))
    batch = drive.step()
    assert [(seq.count, seq.choices) for seq in batch.seqs] == [(20, ())]
    assert drive.made == {"a": [], "b": []}
    assert {end.reason for end in drive.ended.values()} == {FinishReason.LENGTH}
    assert drive.blocks.num_used == 0


def test_a_preempted_request_finds_its_own_blocks_again_and_says_what_was_computed_twice() -> None:
    drive = Drive()
    drive.add("a", 18, max_tokens=8)
    for _ in range(3):
        drive.step()
    drive.scheduler.preempt("a")
    drive.run()
    # Of 20 computed tokens those in whole blocks were found.
    assert drive.scheduler.totals.recomputed_tokens == 0
    assert len(drive.made["a"]) == 8
    drive = Drive(prefix_caching=False)
    drive.add("a", 18, max_tokens=8)
    for _ in range(3):
        drive.step()
    drive.scheduler.preempt("a")
    drive.run()
    assert drive.scheduler.totals.recomputed_tokens == 20


def test_the_waste_is_half_a_block_for_each_sequence_on_average() -> None:
    drive = Drive(limits=replace(LIMITS, max_num_seqs=100, max_batched_tokens=4096, max_model_len=500), blocks=4000)
    for index in range(100):
        drive.add(str(index), [index, *range(17 * index % 61)], max_tokens=400)
    drive.step()
    unused = []
    for _ in range(40):
        drive.step()
        requests = list(drive.scheduler.requests())
        unused.append(sum(len(r.blocks) * SIZE - r.num_computed for r in requests) / len(requests))
    assert sum(unused) / len(unused) <= SIZE / 2


# --- a step's tokens ---

SHARES = replace(
    LIMITS, max_batched_tokens=100, prefill_chunk_tokens=60, prefill_min_chunk_tokens=10, max_step_share_percent=40
)


@pytest.mark.parametrize(
    ("wanted", "room", "decodes", "alone", "count"),
    [
        (500, 100, 0, True, 100),  # nobody else wants any
        (500, 100, 0, False, 40),  # the share of one request
        (25, 100, 0, False, 25),
        (500, 12, 8, False, 12),
        (500, 9, 8, False, 0),  # a crumb: it waits
        (5, 9, 8, False, 5),  # the rest of a prompt
        (500, 9, 91, False, 9),  # no later step would have more room
        (500, 0, 100, False, 0),
    ],
)
def test_pieces_of_prompts(wanted: int, room: int, decodes: int, alone: bool, count: int) -> None:
    assert piece(wanted, room, decodes, alone, SHARES) == count


def test_the_chunk_bounds_a_piece_where_the_share_is_larger() -> None:
    assert piece(500, 100, 0, False, replace(SHARES, max_step_share_percent=100)) == 60


def test_a_request_that_is_alone_takes_the_whole_step_and_shares_as_soon_as_another_comes() -> None:
    drive = Drive(limits=replace(LIMITS, max_step_share_percent=50))
    drive.add("a", 100)
    assert drive.step().num_tokens == 32
    drive.add("b", range(500, 600))
    assert [(seq.request.request_id, seq.count) for seq in drive.step().seqs] == [("a", 16), ("b", 16)]


@given(
    prompts=st.lists(st.integers(1, 120), min_size=1, max_size=12),
    least=st.integers(1, 16),
    share=st.integers(1, 100),
    budget=st.integers(16, 64),
)
@settings(max_examples=60, deadline=None)
def test_no_crumbs_no_waste_and_decodes_first(prompts: list[int], least: int, share: int, budget: int) -> None:
    limits = replace(LIMITS, max_batched_tokens=budget, prefill_min_chunk_tokens=least, max_step_share_percent=share)
    drive = Drive(limits=limits, blocks=400, prefix_caching=False)
    for index, length in enumerate(prompts):
        drive.add(str(index), [index] * length, max_tokens=3)
    while not drive.scheduler.idle:
        ready = {r.request_id for r in drive.scheduler.requests() if r.blocks and r.num_new == 1}
        rest = {r.request_id: r.num_new for r in drive.scheduler.requests()}
        batch = drive.step()
        assert batch.num_tokens <= budget
        counts = {seq.request.request_id: seq.count for seq in batch.seqs}
        assert ready <= set(counts), "a decode was held up"
        smallest = min(least, budget - sum(1 for count in counts.values() if count == 1))
        for name, count in counts.items():
            assert count >= min(smallest, rest[name])
            assert len(rest) == 1 or count <= max(budget * share // 100, least, 1)
    assert len(drive.ended) == len(prompts)
