"""E19 on the whole engine: an answer is the same, token by token and bit by bit of its log-probabilities, whatever
chunks its prompt was cut into, whatever ran beside it or was cancelled, and whichever memory its blocks went through.

What is compared with is the engine itself with one request at a time and nothing to share; that one is compared with
transformers in `test_parity_tiny` and `test_parity_smollm2`.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_crds.runtime_config import KVQuantization
from paceline_runtime.config import resolve
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.messages import AddRequest, FinishReason, SamplingParams, TokenOutput

Asked = dict[str, tuple[list[int], SamplingParams, tuple[str, ...]]]
"""Name → prompt, sampling, names of further answers."""

COUNT = 20


def make_engine(folder: Path, **flags: Any) -> LLMEngine:
    defaults = {"max_model_len": 256, "kv_cache_memory": "2Mi", "max_batched_tokens": 256, "prefill_chunk_tokens": 128}
    return LLMEngine(resolve(source=str(folder), flags={**defaults, **flags}, environ={}))


def make_requests() -> Asked:
    """Greedy and random ones, with and without penalties, alone and with further answers, some with a common start."""
    source = random.Random(5)
    common = [source.randrange(3, 384) for _ in range(64)]
    greedy = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True, logprobs=1)
    drawn = SamplingParams(max_tokens=COUNT, temperature=0.9, top_p=0.95, seed=11, ignore_eos=True, logprobs=0)
    penal = SamplingParams(
        max_tokens=COUNT, temperature=0, repetition_penalty=1.3, frequency_penalty=0.4, ignore_eos=True, logprobs=1
    )
    whole = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, prompt_logprobs=1)
    asked: Asked = {}
    for i in range(12):
        tail = [source.randrange(3, 384) for _ in range(source.choice((1, 5, 33, 90)))]
        prompt = (common[: source.choice((16, 31, 32, 64))] + tail) if i % 2 else tail
        asked[f"r{i}"] = (prompt, (greedy, drawn, penal, whole)[i % 4], (f"r{i}-b", f"r{i}-c") if i % 3 == 1 else ())
    return asked


REQUESTS = make_requests()


def message(name: str) -> AddRequest:
    prompt, sampling, forks = REQUESTS[name]
    return AddRequest(
        request_id=name, prompt_token_ids=prompt, sampling=sampling, fork_ids=forks, arrival_time=time.monotonic()
    )


Story = tuple[list[int], list[Any], list[Any], FinishReason | None]


def collect(outputs: list[TokenOutput]) -> Story:
    """Tokens, their log-probabilities, those of the prompt, and the end."""
    return (
        [token for output in outputs for token in output.new_token_ids],
        [entry for output in outputs for entry in output.logprobs or []],
        [entry for output in outputs for entry in output.prompt_logprobs or []],
        outputs[-1].finish_reason,
    )


@pytest.fixture(scope="module")
def alone(tiny_model_dir: Path) -> dict[str, Story]:
    return run_alone(tiny_model_dir)


def run_alone(folder: Path, **flags: Any) -> dict[str, Story]:
    """Each request by itself, in an engine that reuses nothing; each of several answers as the engine numbers it."""
    engine = make_engine(folder, prefix_caching=False, **flags)
    stories: dict[str, Story] = {}
    for name in REQUESTS:
        outputs: dict[str, list[TokenOutput]] = {}
        engine.add_request(message(name))
        while not engine.idle:
            step = engine.step()
            for output in step.outputs if step else ():
                outputs.setdefault(output.request_id, []).append(output)
        stories |= {answer: collect(list(found)) for answer, found in outputs.items()}
    assert len(stories) == sum(1 + len(forks) for _, _, forks in REQUESTS.values())
    return stories


CUTS = st.fixed_dictionaries(
    {
        "prefix_caching": st.booleans(),
        "max_num_seqs": st.sampled_from((3, 5, 16)),
        "max_batched_tokens": st.sampled_from((16, 50, 256)),
        "prefill_chunk_tokens": st.sampled_from((16, 47, 128)),
        # Blocks of 8 are summed in another order than those of 16 and more: other last bits, so not among these.
        "block_size": st.sampled_from((16, 32)),
        # 512 bytes a token: the smallest holds the longest request and not much more, so that there is preemption.
        "kv_cache_memory": st.sampled_from(("132Ki", "256Ki", "2Mi")),
        "kv_host_memory": st.sampled_from(("0", "64Ki", "1Mi")),
        "kv_disk_memory": st.sampled_from(("0", "256Ki")),
    }
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flags=CUTS, seed=st.integers(0, 2**32))
def test_an_answer_is_the_same_however_it_came_about(
    tiny_model_dir: Path, alone: dict[str, Story], flags: dict[str, Any], seed: int
) -> None:
    check_cut(tiny_model_dir, alone, flags, seed)


@pytest.fixture(scope="module")
def alone_in_8_bits(tiny_model_dir: Path) -> dict[KVQuantization, dict[str, Story]]:
    kinds = (KVQuantization.INT8, KVQuantization.FP8)
    return {kind: run_alone(tiny_model_dir, kv_cache_quantization=kind) for kind in kinds}


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from((KVQuantization.INT8, KVQuantization.FP8)), flags=CUTS, seed=st.integers(0, 2**32))
def test_an_answer_over_an_8_bit_cache_is_the_same_however_it_came_about(
    tiny_model_dir: Path,
    alone: dict[str, Story],
    alone_in_8_bits: dict[KVQuantization, dict[str, Story]],
    kind: KVQuantization,
    flags: dict[str, Any],
    seed: int,
) -> None:
    assert alone_in_8_bits[kind] != alone, "no number was rounded"
    # 160 bytes a token instead of 512.
    flags["kv_cache_memory"] = {"132Ki": "42Ki", "256Ki": "80Ki"}.get(flags["kv_cache_memory"], "2Mi")
    check_cut(tiny_model_dir, alone_in_8_bits[kind], {**flags, "kv_cache_quantization": kind}, seed)


def check_cut(folder: Path, alone: dict[str, Story], flags: dict[str, Any], seed: int) -> None:
    """All requests at random times, some of them aborted: what is left is told as it is when alone."""
    flags["max_num_seqs"] = min(flags["max_num_seqs"], flags["max_batched_tokens"])
    flags["prefill_chunk_tokens"] = min(flags["prefill_chunk_tokens"], flags["max_batched_tokens"])
    engine = make_engine(folder, **flags)
    dice = random.Random(seed)
    names = list(REQUESTS)
    dice.shuffle(names)
    outputs: dict[str, list[TokenOutput]] = {}
    dropped: set[str] = set()
    while names or not engine.idle:
        while names and (engine.idle or dice.random() < 0.4):
            engine.add_request(message(names.pop()))
        step = engine.step()
        for output in step.outputs if step else ():
            outputs.setdefault(output.request_id, []).append(output)
        if dice.random() < 0.02:
            unfinished = sorted(request.request_id for request in engine.scheduler.requests())
            if unfinished:
                gone = dice.choice(unfinished)
                assert engine.abort(gone)
                dropped.add(gone)
        engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0
    for name, expected in alone.items():
        if name in dropped:
            continue
        made = collect(outputs[name])
        if name.partition("-")[0] in dropped:
            # Whoever takes the place of the one that computed the prompt may tell of the prompt.
            made = (*made[:2], expected[2], made[3])
        assert made == expected, name


def test_preemption_and_both_lower_memories_were_really_tried(tiny_model_dir: Path, alone: dict[str, Story]) -> None:
    engine = make_engine(
        tiny_model_dir, kv_cache_memory="132Ki", kv_host_memory="64Ki", kv_disk_memory="1Mi", max_num_seqs=16
    )
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(3):
        outputs.clear()
        for name in REQUESTS:
            engine.add_request(message(name))
        while not engine.idle:
            step = engine.step()
            for output in step.outputs if step else ():
                outputs.setdefault(output.request_id, []).append(output)
        assert {name: collect(found) for name, found in outputs.items()} == alone
    stats = engine.stats()
    tiers = {tier.name: tier for tier in stats.tiers}
    assert stats.preemptions_total > 0
    assert sum(entry.count for entry in stats.preemptions) == stats.preemptions_total
    assert stats.prefix_hit_tokens_total > 0
    assert tiers["host"].loaded_blocks_total > 0
    assert tiers["disk"].stored_blocks_total > 0
