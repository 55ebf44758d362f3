"""Sampling through the whole engine: against transformers' own generation, and the same in any batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline_runtime.config import resolve
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.messages import AddRequest, SamplingParams, TokenLogprob, TokenOutput

Run = Callable[..., dict[str, list[Any]]]

COUNT = 24
PROMPTS = [[5, 9, 77, 5, 9, 77, 5], [200], [i % 97 + 3 for i in range(150)], [7, 8] * 20]
SORTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "random": {"seed": 1},
    "hot": {"seed": 2, "temperature": 1.8, "logprobs": 3},
    "nucleus": {"seed": 3, "top_p": 0.8},
    "few": {"seed": 4, "top_k": 20, "min_p": 0.01, "logprobs": 0},
    "penalised": {"seed": 5, "repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": -0.3},
    "biased": {"seed": 6, "logit_bias": {10: 4.0, 11: -100.0}, "min_tokens": 10, "stop_token_ids": (10,)},
    "fenced": {"seed": 7, "allowed_token_ids": tuple(range(30, 90)), "bad_words": ((30, 31), (40,))},
}


def make_engine(folder: Path, **flags: Any) -> LLMEngine:
    defaults = {"max_model_len": 256, "kv_cache_memory": "4Mi", "max_batched_tokens": 256, "prefill_chunk_tokens": 128}
    return LLMEngine(resolve(source=str(folder), flags={**defaults, **flags}, environ={}))


def asked(**params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": COUNT, "ignore_eos": True, **params})


def answer(outputs: list[TokenOutput]) -> tuple[list[int], list[TokenLogprob]]:
    tokens = [token for output in outputs for token in output.new_token_ids]
    return tokens, [entry for output in outputs for entry in output.logprobs or ()]


def everything() -> dict[str, tuple[list[int], SamplingParams]]:
    return {
        f"{sort} {i}": (prompt, asked(**params)) for i, prompt in enumerate(PROMPTS) for sort, params in SORTS.items()
    }


def assert_same(got: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    for name, outputs in got.items():
        (tokens, reports), (want, reports_before) = answer(outputs), answer(expected[name])
        assert tokens == want, name
        assert [report.token_id for report in reports] == [report.token_id for report in reports_before]
        values = [report.logprob for report in reports]
        assert values == pytest.approx([report.logprob for report in reports_before], abs=1e-4)


@pytest.fixture(scope="module")
def alone(tiny_model_dir: Path, run_engine: Run) -> dict[str, list[Any]]:
    engine = make_engine(tiny_model_dir, prefix_caching=False)
    return {name: run_engine(engine, {name: request})[name] for name, request in everything().items()}


@pytest.mark.parametrize(
    "flags",
    [
        {"max_num_seqs": 32},
        {"prefill_chunk_tokens": 16, "max_num_seqs": 5},
        {"kv_cache_memory": "128Ki", "max_num_seqs": 32},
    ],
    ids=str,
)
def test_every_sort_of_request_gets_the_tokens_that_it_gets_alone(
    tiny_model_dir: Path, run_engine: Run, alone: dict[str, list[Any]], flags: dict[str, Any]
) -> None:
    engine = make_engine(tiny_model_dir, **flags)
    assert_same(run_engine(engine, everything()), alone)
    assert (engine.stats().preemptions_total > 0) == ("kv_cache_memory" in flags)


def test_what_was_asked_for_holds_in_each_answer(alone: dict[str, list[Any]]) -> None:
    for i in range(len(PROMPTS)):
        fenced = answer(alone[f"fenced {i}"])[0]
        assert set(fenced) <= set(range(30, 90)) - {40}
        assert (30, 31) not in set(pairwise(fenced))
        biased = answer(alone[f"biased {i}"])[0]
        assert 11 not in biased
        assert 10 not in biased[:10]
        for sort, count in (("hot", 3), ("few", 0), ("greedy", None)):
            tokens, reports = answer(alone[f"{sort} {i}"])
            assert len(reports) == (0 if count is None else len(tokens))
            assert all(len(report.top) == count for report in reports)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"min_tokens": COUNT, "ignore_eos": False}, {"min_new_tokens": COUNT}),
        ({"bad_words": ((9,), (77, 5), (8, 7, 8))}, {"bad_words_ids": [[9], [77, 5], [8, 7, 8]]}),
        ({"logit_bias": {20: 2.5, 21: 1.5}}, {"sequence_bias": [[[20], 2.5], [[21], 1.5]]}),
    ],
    ids=["repetition", "min_tokens", "bad_words", "bias"],
)
def test_greedy_generation_is_that_of_transformers(
    tiny_model_dir: Path, run_engine: Run, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    model.generation_config.eos_token_id = 2 if "min_new_tokens" in theirs else None
    requests = {str(i): (prompt, asked(temperature=0.0, **ours)) for i, prompt in enumerate(PROMPTS)}
    outputs = run_engine(make_engine(tiny_model_dir), requests)
    for i, prompt in enumerate(PROMPTS):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=COUNT, do_sample=False, **theirs)
        assert answer(outputs[str(i)])[0] == expected[0, len(prompt) :].tolist()


def run_choices(engine: LLMEngine, count: int, **params: Any) -> list[list[int]]:
    names = [f"choice {i}" for i in range(count)]
    engine.add_request(
        AddRequest(
            request_id=names[0],
            fork_ids=tuple(names[1:]),
            prompt_token_ids=PROMPTS[2],
            sampling=asked(**params),
            arrival_time=time.monotonic(),
        )
    )
    made: dict[str, list[int]] = {name: [] for name in names}
    while not engine.idle:
        step = engine.step()
        for output in step.outputs if step else ():
            made[output.request_id] += output.new_token_ids
    engine.check_integrity()
    return [made[name] for name in names]


def test_choices_differ_and_come_again_with_the_same_seed(tiny_model_dir: Path) -> None:
    engine = make_engine(tiny_model_dir)
    for seed in (7, 0, -1, 2**63 - 1):
        first = run_choices(engine, 4, seed=seed)
        assert run_choices(engine, 4, seed=seed) == first
        assert run_choices(engine, 1, seed=seed) == first[:1]
        assert len({tuple(tokens) for tokens in first}) == 4
        assert all(len(tokens) == COUNT for tokens in first)
    assert run_choices(engine, 2) != run_choices(engine, 2)


@pytest.mark.parametrize("count", [0, 1, 10])
def test_prompt_logprobs_are_those_of_transformers_in_any_chunks(
    tiny_model_dir: Path, run_engine: Run, count: int
) -> None:
    prompt = PROMPTS[2][:97]
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    for chunk in (32, 128):
        engine = make_engine(tiny_model_dir, prefill_chunk_tokens=chunk)
        beside = {str(i): (other, asked(temperature=0.0)) for i, other in enumerate(PROMPTS)}
        outputs = run_engine(engine, {**beside, "prompt": (prompt, asked(prompt_logprobs=count, max_tokens=1))})
        entries = [entry for output in outputs["prompt"] for entry in output.prompt_logprobs or ()]
        assert len(entries) == len(prompt)
        assert entries[0] is None
        for i, entry in enumerate(entries[1:], start=1):
            assert entry is not None
            assert entry.token_id == prompt[i]
            assert entry.logprob == pytest.approx(float(expected[i - 1, prompt[i]]), abs=1e-4)
            best = expected[i - 1].topk(count)
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
