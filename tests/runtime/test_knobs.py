"""Limits that change while the engine runs: what is refused, what becomes of those that run, and that answers stay."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_crds.runtime_config import RuntimeParameters
from paceline_runtime.config import resolve
from paceline_runtime.engine.block_manager import BlockManager
from paceline_runtime.engine.knobs import in_effect, tuned
from paceline_runtime.engine.limits import limits_of
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.engine.scheduler import Refused, Scheduler
from paceline_runtime.messages import AddRequest, SamplingParams

STARTED = RuntimeParameters(
    max_model_len=64,
    max_num_seqs=8,
    max_batched_tokens=64,
    prefill_chunk_tokens=32,
    prefill_min_chunk_tokens=4,
    max_step_share_percent=100,
)
LIMITS = limits_of(STARTED, 64)


def scheduler() -> Scheduler:
    return Scheduler(LIMITS, BlockManager(256, 16, prefix_caching=False), frozenset({7}))


def add(to: Scheduler, name: str, prompt: int = 4, max_tokens: int = 40, forks: int = 0) -> None:
    ids = [100 + n % 50 for n in range(prompt)]
    forked = tuple(f"{name}-{n}" for n in range(forks))
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    to.add(
        AddRequest(request_id=name, prompt_token_ids=ids, sampling=sampling, arrival_time=0.0, fork_ids=forked), seed=0
    )


def step(of: Scheduler) -> dict[str, int]:
    """One step; tokens by request."""
    batch = of.schedule(0.0)
    assert batch is not None
    of.update(batch, {choice.request_id: 1 for seq in batch.seqs for choice in seq.choices})
    return {seq.request.request_id: seq.count for seq in batch.seqs}


# What is refused.


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"maxNumSeqs": 9}, "write at most 8"),
        ({"maxBatchedTokens": 65}, "write at most 64"),
        ({"prefillChunkTokens": 33}, "write at most 32"),
        ({"maxNumSeqs": 0}, "maxNumSeqs"),
        ({"maxBatchedTokens": 16}, "prefillChunkTokens 32 is more than maxBatchedTokens 16"),
        ({"blockSize": 32}, "blockSize cannot change while the engine runs"),
        ({"maxNumSeqs": 4, "kvCacheMemory": 1}, "kvCacheMemory cannot change while the engine runs"),
    ],
    ids=str,
)
def test_what_the_engine_was_not_started_for_is_refused_with_what_to_write(knobs: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tuned(STARTED, LIMITS, knobs)


def test_a_knob_that_is_not_named_goes_back_to_the_start_and_nothing_else_changes() -> None:
    lower = tuned(STARTED, LIMITS, {"maxNumSeqs": 2, "prefillChunkTokens": 16})
    assert in_effect(lower) == {"maxNumSeqs": 2, "maxBatchedTokens": 64, "prefillChunkTokens": 16}
    assert in_effect(tuned(STARTED, lower, {"maxNumSeqs": 3})) == {
        "maxNumSeqs": 3,
        "maxBatchedTokens": 64,
        "prefillChunkTokens": 32,
    }
    assert tuned(STARTED, lower, {}) == LIMITS
    assert replace(lower, max_num_seqs=8, prefill_chunk_tokens=32) == LIMITS


# What becomes of requests.


def test_who_runs_goes_on_and_nobody_is_let_in_until_enough_have_ended() -> None:
    of = scheduler()
    for n in range(6):
        add(of, f"r{n}")
    step(of)
    of.limit(tuned(STARTED, LIMITS, {"maxNumSeqs": 2}))
    add(of, "late")
    for _ in range(5):
        assert step(of) == dict.fromkeys([f"r{n}" for n in range(6)], 1)
    for n in range(4):
        of.abort(f"r{n}")
    assert set(step(of)) == {"r4", "r5"}
    of.abort("r4")
    assert set(step(of)) == {"r5", "late"}
    of.check_integrity()


def test_every_running_request_gets_its_token_though_the_step_has_become_smaller_than_the_batch() -> None:
    started = STARTED.model_copy(update={"max_num_seqs": 40, "prefill_chunk_tokens": 16})
    limits = limits_of(started, 64)
    of = Scheduler(limits, BlockManager(256, 16, prefix_caching=False), frozenset({7}))
    for n in range(40):
        add(of, f"r{n}", prompt=1)
    step(of)
    of.limit(tuned(started, limits, {"maxNumSeqs": 4, "maxBatchedTokens": 16}))
    assert step(of) == dict.fromkeys([f"r{n}" for n in range(40)], 1)


def test_a_request_that_is_wider_than_the_limit_has_become_runs_alone_and_is_not_refused() -> None:
    of = scheduler()
    add(of, "first", max_tokens=3)
    step(of)
    of.limit(tuned(STARTED, LIMITS, {"maxNumSeqs": 2}))
    add(of, "wide", forks=5, max_tokens=3)
    add(of, "behind", max_tokens=3)
    ran = []
    while not of.idle:
        ran.append(set(step(of)))
    assert {"wide", *(f"wide-{n}" for n in range(5))} in ran
    assert not any("wide" in names and names & {"first", "behind"} for names in ran)
    assert any("behind" in names for names in ran)
    with pytest.raises(Refused, match="runs at most 8 at once"):
        add(of, "wider", forks=8)


def test_a_smaller_chunk_holds_from_the_very_next_step() -> None:
    of = scheduler()
    add(of, "long", prompt=60, max_tokens=2)
    add(of, "other", prompt=60, max_tokens=2)
    assert step(of)["long"] == 32
    of.limit(tuned(STARTED, LIMITS, {"prefillChunkTokens": 16}))
    assert step(of)["long"] == 16
    of.limit(LIMITS)
    assert step(of)["long"] == 12


def test_a_step_never_becomes_larger_than_memory_was_taken_for() -> None:
    with pytest.raises(ValueError, match="more than the 64 of the start"):
        scheduler().limit(replace(LIMITS, max_batched_tokens=128))


# That answers stay.

COUNT = 16
SPEC: dict[str, Any] = {
    "max_model_len": 256,
    "kv_cache_memory": "1Mi",
    "max_num_seqs": 8,
    "max_batched_tokens": 128,
    "prefill_chunk_tokens": 64,
    "prefill_min_chunk_tokens": 4,
}


def questions() -> dict[str, tuple[list[int], SamplingParams]]:
    source = random.Random(3)
    greedy = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True, logprobs=0)
    drawn = SamplingParams(max_tokens=COUNT, temperature=0.9, top_p=0.9, seed=5, ignore_eos=True, logprobs=0)
    lengths = (3, 40, 90, 120, 17, 150, 64, 33, 5, 100)
    return {
        f"r{n}": ([source.randrange(3, 384) for _ in range(length)], (greedy, drawn)[n % 2])
        for n, length in enumerate(lengths)
    }


QUESTIONS = questions()
Answers = Mapping[str, tuple[list[int], list[float]]]


def answers(folder: Path, changes: Mapping[int, Mapping[str, int]]) -> Answers:
    """Tokens and their log-probabilities; before the steps that `changes` names, the knobs are changed."""
    engine = LLMEngine(resolve(source=str(folder), flags=SPEC, environ={}))
    for name, (ids, sampling) in QUESTIONS.items():
        engine.add_request(
            AddRequest(request_id=name, prompt_token_ids=ids, sampling=sampling, arrival_time=time.monotonic())
        )
    found: dict[str, tuple[list[int], list[float]]] = {name: ([], []) for name in QUESTIONS}
    number = 0
    while not engine.idle:
        if number in changes:
            engine.tune(changes[number])
        number += 1
        made = engine.step()
        for output in made.outputs if made else ():
            found[output.request_id][0].extend(output.new_token_ids)
            found[output.request_id][1].extend(one.logprob for one in output.logprobs or [])
    engine.check_integrity()
    return found


@pytest.fixture(scope="module")
def unchanged(tiny_model_dir: Path) -> Answers:
    found = answers(tiny_model_dir, {})
    assert all(len(tokens) == COUNT for tokens, _ in found.values())
    return found


KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "maxNumSeqs": st.integers(1, 8),
        "maxBatchedTokens": st.integers(64, 128),
        "prefillChunkTokens": st.integers(16, 64),
    },
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.integers(0, 30), KNOBS, min_size=1, max_size=6))
def test_answers_are_the_same_bit_for_bit_whatever_is_changed_in_their_middle(
    tiny_model_dir: Path, unchanged: Answers, changes: dict[int, dict[str, int]]
) -> None:
    assert answers(tiny_model_dir, changes) == unchanged
