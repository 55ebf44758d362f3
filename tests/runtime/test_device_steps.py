"""The network over the kernel interface, with decode steps that are captured: here a replay computes the step anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline_crds.runtime_config import KVQuantization
from paceline_runtime.config import resolve
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.checkpoint import Checkpoint
from paceline_runtime.model.device.graphs import DecodeGraphs, no_graphs
from paceline_runtime.model.device.memory import LargestSteps
from paceline_runtime.model.inputs import SequenceInput
from paceline_runtime.model.safetensors_checkpoint import SafetensorsCheckpoint
from paceline_runtime.model.source import locate
from paceline_runtime.model.torch_llama import TorchLlama

CPU = torch.device("cpu")
BLOCK, BLOCKS = 8, 40
COUNT = 12


@pytest.fixture(scope="module")
def checkpoint(tiny_model_dir: Path) -> Checkpoint:
    return SafetensorsCheckpoint(locate(tiny_model_dir.as_uri()))


def make(
    checkpoint: Checkpoint,
    dtype: torch.dtype = torch.float32,
    *,
    captured: bool,
    most: int = 6,
    kept: torch.dtype | None = None,
) -> TorchLlama:
    model = TorchLlama(
        checkpoint,
        device=CPU,
        dtype=dtype,
        weight_dtype=dtype,
        kv_dtype=kept or dtype,
        block_size=BLOCK,
        max_position=128,
        graphs=no_graphs if captured else None,
    )
    model.allocate_cache(BLOCKS)
    model.reserve(LargestSteps(64, 64, most, 128))
    model.capture(model.sizes_to_capture(most))
    return model


def prompts_and_blocks(count: int) -> list[tuple[list[int], list[int]]]:
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3)).tolist()
    lengths = (1, 7, 8, 9, 17)
    return [
        ([(i * 31 + j * 7) % 380 + 3 for j in range(lengths[i])], [order.pop() for _ in range(5)]) for i in range(count)
    ]


def generate(model: TorchLlama, prompts: list[tuple[list[int], list[int]]]) -> list[list[int]]:
    """Greedy tokens; all prompts are one step, then all decode together."""
    known = [list(ids) for ids, _ in prompts]
    done = [0] * len(prompts)
    for _ in range(COUNT):
        step = model.prepare(
            [SequenceInput(known[i][done[i] :], done[i], blocks, 1) for i, (_, blocks) in enumerate(prompts)]
        )
        done = [len(ids) for ids in known]
        for ids, (token, _) in zip(known, model.launch_greedy(step)(), strict=True):
            ids.append(token)
    return [ids[len(prompt) :] for ids, (prompt, _) in zip(known, prompts, strict=True)]


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_tokens_are_those_of_transformers(
    checkpoint: Checkpoint,
    tiny_model_dir: Path,
    greedy_reference: Callable[[Any, list[int], int], list[int]],
    captured: bool,
) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    prompts = prompts_and_blocks(5)
    model = make(checkpoint, captured=captured)
    assert model.captured_sizes == ((1, 2, 4, 6) if captured else ())
    assert generate(model, prompts) == [greedy_reference(reference, ids, COUNT) for ids, _ in prompts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_padded_step_has_the_bits_of_an_unpadded_one_and_touches_no_other_slot(
    checkpoint: Checkpoint, dtype: torch.dtype
) -> None:
    prompts = prompts_and_blocks(3)
    models = [make(checkpoint, dtype, captured=captured) for captured in (False, True)]
    logits = []
    for model in models:
        for cache in model._cache:
            # As if other sequences had been there.
            cache.key.fill_(3.0)
            cache.value.fill_(3.0)
        model.forward(model.prepare([SequenceInput(ids, 0, blocks, 1) for ids, blocks in prompts]))
        step = model.prepare([SequenceInput([5], len(ids), blocks, 1) for ids, blocks in prompts])
        assert step.size == (4 if model is models[1] else None)
        logits.append(model.forward(step).clone())
    assert logits[1].shape == (3, checkpoint.spec.vocab_size)
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=4 * torch.finfo(dtype).eps)
    for plain, padded in zip(models[0]._cache, models[1]._cache, strict=True):
        written = torch.zeros(BLOCKS * BLOCK, dtype=torch.bool)
        for ids, blocks in prompts:
            for position in range(len(ids) + 1):
                written[blocks[position // BLOCK] * BLOCK + position % BLOCK] = True
        for a, b in ((plain.key, padded.key), (plain.value, padded.value)):
            assert (b.flatten(0, 1)[~written] == 3.0).all()
            torch.testing.assert_close(b, a, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logits_in_16_bits_are_as_near_to_float32_as_those_of_transformers(
    checkpoint: Checkpoint, tiny_model_dir: Path, dtype: torch.dtype
) -> None:
    from transformers import AutoModelForCausalLM

    ids, blocks = [(7 * i) % 380 + 3 for i in range(60)], list(range(8))

    def ours(kind: torch.dtype) -> torch.Tensor:
        model = make(checkpoint, kind, captured=False)
        return model.forward(model.prepare([SequenceInput(ids, 0, blocks, len(ids))]))

    exact = ours(torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=dtype)
    with torch.inference_mode():
        error = (theirs(torch.tensor([ids])).logits[0].float() - exact).square().mean().sqrt()
    assert (ours(dtype) - exact).square().mean().sqrt() < 1.5 * error


def test_the_next_step_may_be_prepared_before_the_last_one_has_come_back(checkpoint: Checkpoint) -> None:
    model = make(checkpoint, captured=True)
    (ids, blocks), (other, others) = prompts_and_blocks(5)[3:]
    for tokens, at in ((ids, blocks), (other, others)):
        model.forward(model.prepare([SequenceInput(tokens, 0, at, 1)]))
    steps = [[SequenceInput([5], len(ids), blocks, 1)], [SequenceInput([9], len(other), others, 1)]]
    wanted = [model.launch_greedy(model.prepare(step))() for step in steps]
    prepared = [model.prepare(step) for step in steps]
    assert [model.launch_greedy(step)() for step in prepared] == wanted


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_a_step_goes_on_with_tokens_that_only_the_device_knows(checkpoint: Checkpoint, captured: bool) -> None:
    prompts = prompts_and_blocks(3)
    wanted = generate(make(checkpoint, captured=captured), prompts)
    model = make(checkpoint, captured=captured)
    prompt = model.prepare([SequenceInput(ids, 0, blocks, 1) for ids, blocks in prompts])
    made = [[token] for token, _ in model.launch_greedy(prompt)()]
    order, rows = [0, 1, 2], [0, 1, 2]
    for nth in range(1, COUNT):
        # In another order each time, and in the end without the first.
        before, order = order, sorted(order, key=lambda i: (i * nth + nth) % 3)
        order = [i for i in order if i or nth < 6]
        rows = [before.index(i) for i in order]
        seqs = [SequenceInput([0], len(prompts[i][0]) + nth - 1, prompts[i][1], 1) for i in order]
        step = model.prepare(seqs, rows)
        for i, (token, _) in zip(order, model.launch_greedy(step)(), strict=True):
            made[i].append(token)
    assert made == [wanted[0][:6], *wanted[1:]]


def test_a_step_cannot_go_on_with_tokens_that_nobody_made(checkpoint: Checkpoint) -> None:
    model = make(checkpoint, captured=False)
    model.forward(model.prepare([SequenceInput([5, 6], 0, [0], 1)]))
    with pytest.raises(RuntimeError, match="made none"):
        model.launch_greedy(model.prepare([SequenceInput([0], 2, [0], 1)], [0]))


def test_a_step_larger_than_any_expected_is_run_too(checkpoint: Checkpoint) -> None:
    model = make(checkpoint, captured=True, most=1)
    prompts = prompts_and_blocks(5)
    assert generate(model, prompts) == generate(make(checkpoint, captured=False), prompts)


@pytest.mark.parametrize("kept", ["None", "INT8", "FP8"])
def test_the_engine_makes_the_same_tokens_with_captured_decodes(
    tiny_model_dir: Path, run_engine: Any, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    requests = {
        str(i): (ids, SamplingParams(max_tokens=9, ignore_eos=True, temperature=temperature, seed=i))
        for i, (ids, _) in enumerate(prompts_and_blocks(5))
        for temperature in (0.0 if i % 2 else 0.7,)
    }
    found = []
    for captured in (None, False, True):
        monkeypatch.setenv("PACELINE_NATIVE", "1" if captured is None else "0")
        flags = {"max_model_len": 128, "kv_cache_memory": "1Mi", "max_batched_tokens": 64, "max_num_seqs": 4}
        flags["kv_cache_quantization"] = KVQuantization(kept)
        engine = LLMEngine(resolve(source=tiny_model_dir.as_uri(), flags=flags, environ={}))
        if captured:
            model = engine._runner.model
            assert isinstance(model, TorchLlama)
            model._graphs = DecodeGraphs(no_graphs)
            model.capture(model.sizes_to_capture(4))
        outputs = run_engine(engine, requests)
        found.append({name: [t for o in of for t in o.new_token_ids] for name, of in outputs.items()})
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_logits_of_more_rows_than_sequences_come_to_the_host_in_pieces(checkpoint: Checkpoint, captured: bool) -> None:
    model = make(checkpoint, captured=captured, most=6)
    seqs = [SequenceInput(list(range(3, 23)), 0, [0, 1, 2], 20), SequenceInput([5], 0, [3], 1)]
    pieces: list[int] = []
    whole = model._model.logits

    def piece(hidden: torch.Tensor) -> torch.Tensor:
        pieces.append(len(hidden))
        return whole(hidden)

    model._model.logits = piece  # type: ignore[method-assign]
    logits = model.forward(model.prepare(seqs))
    assert pieces == [6, 6, 6, 3]
    model.reserve(LargestSteps(64, 64, 21, 128))
    torch.testing.assert_close(logits, model.forward(model.prepare(seqs)))
    assert pieces[4:] == [21]
