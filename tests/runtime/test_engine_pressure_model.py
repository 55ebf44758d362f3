"""The whole engine on a cache that is too small, with memories below it: the same tokens as with room for all."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from paceline_runtime.config import resolve
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.engine.rates import Rates
from paceline_runtime.messages import AddRequest, FinishReason, SamplingParams

NEW = 24


def make_engine(folder: Path, **flags: Any) -> LLMEngine:
    defaults = {"max_model_len": 256, "max_batched_tokens": 128, "prefill_chunk_tokens": 64, "max_num_seqs": 6}
    return LLMEngine(resolve(source=str(folder), flags={**defaults, **flags}, environ={}))


def requests() -> list[tuple[str, list[int], tuple[str, ...]]]:
    rng = random.Random(3)
    system = [rng.randrange(3, 384) for _ in range(50)]
    return [
        (
            f"r{index}",
            [*system[: rng.choice((0, 16, 40, 50))], *(rng.randrange(3, 384) for _ in range(rng.randrange(1, 120)))],
            (f"r{index}b", f"r{index}c") if index % 4 == 0 else (),
        )
        for index in range(24)
    ]


def run(engine: LLMEngine, *, preempt: bool = False, abort: bool = False) -> dict[str, list[int]]:
    """Tokens of each answer; some are preempted at random steps, and neighbours come and go."""
    rng = random.Random(4)
    made: dict[str, list[int]] = {}
    waiting = list(requests())
    step = 0
    while waiting or not engine.idle:
        if waiting and step % 2 == 0:
            name, prompt, forks = waiting.pop(0)
            engine.add_request(
                AddRequest(
                    request_id=name,
                    fork_ids=forks,
                    prompt_token_ids=prompt,
                    sampling=SamplingParams(max_tokens=NEW, temperature=0.7, seed=len(prompt), ignore_eos=True),
                    arrival_time=time.monotonic(),
                )
            )
            if abort:
                engine.add_request(
                    AddRequest(
                        request_id=f"x{name}",
                        prompt_token_ids=prompt[::-1],
                        sampling=SamplingParams(max_tokens=NEW, seed=1),
                        arrival_time=time.monotonic(),
                    )
                )
        if abort and step % 3 == 2:
            for request in list(engine.scheduler.requests()):
                if request.request_id.startswith("x") and rng.random() < 0.5:
                    assert engine.abort(request.request_id)
        if preempt and step % 3 == 0:
            running = [request.request_id for request in engine.scheduler.requests() if request.blocks]
            if running:
                engine.scheduler.preempt(rng.choice(running), swap=rng.random() < 0.5)
        outputs = engine.step()
        step += 1
        if step % 10 == 0:
            engine.check_integrity()
        for output in outputs.outputs if outputs is not None else ():
            made.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                assert output.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
    engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0
    return {name: tokens for name, tokens in made.items() if not name.startswith("x")}


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path) -> dict[str, list[int]]:
    made = run(make_engine(tiny_model_dir, kv_cache_memory="16Mi", prefix_caching=False))
    assert all(len(tokens) == NEW for tokens in made.values())
    assert made["r0"] != made["r0b"]
    return made


@pytest.mark.parametrize(
    "flags",
    [
        {"prefix_caching": False},
        {},
        {"kv_host_memory": "1Mi"},
        {"kv_host_memory": "128Ki", "kv_disk_memory": "2Mi"},
        {"kv_host_memory": "1Mi", "prefix_caching": False},
    ],
    ids=["recompute", "prefix cache", "host", "host and disk", "swap only"],
)
def test_a_cache_that_is_too_small_changes_no_token(
    tiny_model_dir: Path, expected: dict[str, list[int]], flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tiny model computes a block sooner than it is copied; as if it were large, memories are used throughout.
    monkeypatch.setattr(Rates, "observe", lambda rates, *_: setattr(rates, "prefill_token_seconds", 1.0))
    # 40 blocks of 8 KiB: two or three of the longest requests.
    engine = make_engine(tiny_model_dir, kv_cache_memory="320Ki", **flags)
    assert run(engine, preempt=True, abort=True) == expected
    stats = engine.stats()
    assert stats.preemptions_total > 5
    ways = {entry.way for entry in stats.preemptions}
    assert ("swap" in ways) == ("kv_host_memory" in flags)
    for tier in stats.tiers:
        assert tier.stored_blocks_total > 0
        assert tier.blocks_used <= tier.blocks_total
    if "kv_host_memory" in flags:
        assert sum(tier.loaded_blocks_total for tier in stats.tiers) > 0
