"""The engine against transformers on small random models: every option of the network, every way to cut the work."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from paceline_runtime.config import resolve
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.engine.scheduler import Refused
from paceline_runtime.messages import AddRequest, FinishReason, RejectCode, SamplingParams

COUNT = 24
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True)

Reference = Callable[[Any, list[int], int], list[int]]
Run = Callable[..., dict[str, list[Any]]]


def make_engine(folder: Path, **flags: Any) -> LLMEngine:
    defaults = {"max_model_len": 512, "kv_cache_memory": "4Mi", "max_batched_tokens": 256, "prefill_chunk_tokens": 128}
    return LLMEngine(resolve(source=str(folder), flags={**defaults, **flags}, environ={}))


def make_prompts(count: int = 12, vocabulary: int = 384) -> list[list[int]]:
    source = random.Random(1)
    shared = [source.randrange(3, vocabulary) for _ in range(200)]
    prompts = [[source.randrange(3, vocabulary) for _ in range(source.choice((1, 7, 40, 150)))] for _ in range(count)]
    # Block ends are where off-by-one faults live: whole blocks, one more, one less, and parts shared by several.
    return [*prompts, shared[:16], shared[:17], shared[:15], shared[:32], shared[:24], [*shared[:24], 5, 6], shared]


def tokens(outputs: list[Any]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def load_reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine is made with the native kernels, then with the PyTorch reference."""
    monkeypatch.setenv("PACELINE_NATIVE", "1" if request.param == "native" else "0")
    return str(request.param)


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path, greedy_reference: Reference) -> list[list[int]]:
    model = load_reference(tiny_model_dir)
    return [greedy_reference(model, prompt, COUNT) for prompt in make_prompts()]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("chunk", [16, 128])
def test_greedy_tokens_are_those_of_transformers_however_the_work_is_cut(
    tiny_model_dir: Path, expected: list[list[int]], run_engine: Run, chunk: int, prefix_caching: bool
) -> None:
    engine = make_engine(tiny_model_dir, prefill_chunk_tokens=chunk, prefix_caching=prefix_caching)
    requests = {str(i): (prompt, GREEDY) for i, prompt in enumerate(make_prompts())}
    want = {str(i): ids for i, ids in enumerate(expected)}
    together = run_engine(engine, requests)
    assert {name: tokens(outputs) for name, outputs in together.items()} == want
    hot = {name: run_engine(engine, {name: request})[name] for name, request in requests.items()}
    assert {name: tokens(outputs) for name, outputs in hot.items()} == want
    cached = {name: outputs[0].num_cached_tokens for name, outputs in hot.items()}
    assert cached == {
        name: (len(request[0]) - 1) // 16 * 16 if prefix_caching else 0 for name, request in requests.items()
    }


@pytest.mark.usefixtures("kernels")
def test_preempted_requests_end_with_the_same_tokens(
    tiny_model_dir: Path, expected: list[list[int]], run_engine: Run
) -> None:
    engine = make_engine(tiny_model_dir, kv_cache_memory="128Ki", max_model_len=256)
    assert engine.scheduler.blocks.num_blocks == 16
    outputs = run_engine(engine, {str(i): (prompt, GREEDY) for i, prompt in enumerate(make_prompts())})
    assert [tokens(outputs[str(i)]) for i in range(len(expected))] == expected
    assert engine.stats().preemptions_total > 0
    assert max(output.num_preemptions for items in outputs.values() for output in items) > 0


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "options",
    [
        {"tie_word_embeddings": False},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ],
    ids=lambda options: "-".join(options),
)
def test_each_option_of_the_network_is_that_of_transformers(
    tiny_model_factory: Callable[..., Path], options: dict[str, Any], greedy_reference: Reference, run_engine: Run
) -> None:
    folder = tiny_model_factory(**options)
    model = load_reference(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)  # they start at zero, which would show nothing
    model.save_pretrained(folder)
    prompts = make_prompts(4)
    outputs = run_engine(make_engine(folder), {str(i): (prompt, GREEDY) for i, prompt in enumerate(prompts)})
    for i, prompt in enumerate(prompts):
        assert tokens(outputs[str(i)]) == greedy_reference(model, prompt, COUNT)


@pytest.mark.usefixtures("kernels")
def test_qwen2_is_that_of_transformers(tmp_path: Path, greedy_reference: Reference, run_engine: Run) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=384,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
    model.save_pretrained(tmp_path)
    prompts = make_prompts(4)
    outputs = run_engine(make_engine(tmp_path), {str(i): (prompt, GREEDY) for i, prompt in enumerate(prompts)})
    for i, prompt in enumerate(prompts):
        assert tokens(outputs[str(i)]) == greedy_reference(model, prompt, COUNT)


def test_a_seed_gives_the_same_tokens_whatever_runs_beside_it(tiny_model_dir: Path, run_engine: Run) -> None:
    engine = make_engine(tiny_model_dir)
    prompt = make_prompts()[3]
    seeded = SamplingParams(max_tokens=16, temperature=1.0, top_p=0.95, seed=7, ignore_eos=True)
    alone = tokens(run_engine(engine, {"a": (prompt, seeded)})["a"])
    crowd = {str(i): (other, GREEDY) for i, other in enumerate(make_prompts())}
    crowd["a"] = (prompt, seeded)
    crowd["b"] = (prompt, SamplingParams(max_tokens=16, temperature=1.0, top_p=0.95, seed=8, ignore_eos=True))
    together = run_engine(engine, crowd)
    assert tokens(together["a"]) == alone
    assert tokens(together["b"]) != alone
    unseeded = SamplingParams(max_tokens=16, temperature=1.0, ignore_eos=True)
    first, second = (tokens(run_engine(engine, {"a": (prompt, unseeded)})["a"]) for _ in range(2))
    assert first != second


def test_an_end_of_sequence_token_ends_the_answer(
    tiny_model_dir: Path, expected: list[list[int]], run_engine: Run
) -> None:
    engine = make_engine(tiny_model_dir)
    index = 2
    stop = expected[index][5]
    sampling = SamplingParams(max_tokens=COUNT, temperature=0.0, stop_token_ids=(stop,), ignore_eos=True)
    outputs = run_engine(engine, {"a": (make_prompts()[index], sampling)})["a"]
    assert tokens(outputs) == expected[index][: expected[index].index(stop) + 1]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == (FinishReason.STOP, stop)
    assert outputs[0].queue_seconds is not None
    assert outputs[0].prefill_seconds is not None
    assert all(output.queue_seconds is None for output in outputs[1:])


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([1, 2, 384], {}, "prompt has the token id 384; this model's ids go from 0 to 383"),
        ([-1], {}, "token id -1"),
        ([1], {"stop_token_ids": (1_000_000,)}, "stop_token_ids has the token id 1000000"),
        ([1], {"temperature": -1.0}, "temperature is -1.0; it has to be 0 or more"),
        ([1], {"temperature": float("nan")}, "temperature is nan"),
        ([1], {"top_p": 0.0}, "top_p is 0.0; it has to be more than 0 and at most 1"),
        ([1], {"top_k": -1}, "top_k is -1"),
        ([1], {"min_p": 1.5}, "min_p is 1.5"),
        ([1], {"seed": 2**63}, "seed is 9223372036854775808; it has to be a signed 64-bit number"),
    ],
)
def test_values_outside_their_range_never_reach_a_step(
    tiny_engine: LLMEngine, prompt: list[int], sampling: dict[str, Any], words: str
) -> None:
    request = AddRequest(request_id="a", prompt_token_ids=prompt, sampling=SamplingParams(**sampling), arrival_time=0.0)
    with pytest.raises(Refused, match=words) as refused:
        tiny_engine.add_request(request)
    assert refused.value.code is RejectCode.INVALID
    assert tiny_engine.idle


@pytest.fixture(scope="module")
def tiny_engine(tiny_model_dir: Path) -> LLMEngine:
    return make_engine(tiny_model_dir)
