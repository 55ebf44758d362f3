"""After the warm-up no step asks a GPU for a form of a kernel that would have to be compiled first.

Triton chooses a form by constants, by types, and by what it takes of numbers and addresses (whether they are 1, or
multiples of 16). Here it chooses, and nothing is compiled or launched.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from paceline_runtime.kernels import cpu, gpu
from paceline_runtime.kernels.check.compile import AbsentGPU
from paceline_runtime.kernels.plan import AttentionShape
from paceline_runtime.model.device.graphs import DecodeGraphs, no_graphs
from paceline_runtime.model.device.memory import LargestSteps
from paceline_runtime.model.inputs import SequenceInput
from paceline_runtime.model.runner import ModelRunner
from paceline_runtime.model.safetensors_checkpoint import SafetensorsCheckpoint
from paceline_runtime.model.sampling import Draws
from paceline_runtime.model.source import locate
from paceline_runtime.model.torch_llama import TorchLlama

BLOCK, LONGEST, SEQS, TOKENS = 8, 2048, 6, 96

Form = tuple[str, str]


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> set[Form]:
    """Kernels by name and form, as they are asked for."""
    asked: set[Form] = set()

    def note(kernel: JITFunction[Any], key: object, *rest: object, **more: object) -> None:
        asked.add((kernel.fn.__name__, str(key)))

    monkeypatch.setattr(JITFunction, "_do_compile", note)
    monkeypatch.setattr(driver, "_active", AbsentGPU(90))
    return asked


class Both:
    """The GPU's kernels are launched, the CPU's tell the results; those of attention are zeros."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            getattr(gpu, name)(*arguments)
            if name.endswith("attention"):
                return arguments[-1].zero_()
            return getattr(cpu, name)(*arguments)

        return run


def warm_runner(folder: Path, kept: torch.dtype) -> ModelRunner:
    runner = ModelRunner(
        SafetensorsCheckpoint(locate(folder.as_uri())),
        device=torch.device("cpu"),
        dtype=torch.float32,
        kv_dtype=kept,
        block_size=BLOCK,
        max_model_len=LONGEST,
    )
    model, spec = runner.model, runner.model.spec
    assert isinstance(model, TorchLlama)
    both: Any = Both()
    model._kernels = model._model._kernels = both
    model._graphs = DecodeGraphs(no_graphs)
    model._shape, model._processors = AttentionShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, 4), 132
    runner.allocate_cache(LONGEST // BLOCK)
    runner.warm_up(LargestSteps(TOKENS, TOKENS, SEQS, LONGEST))
    return runner


def some_step(chance: random.Random) -> list[SequenceInput]:
    """Decodes, chunks or both, of any length."""
    seqs = []
    for _ in range(chance.randint(1, SEQS)):
        new = chance.choice((1, 1, 2, 5, 16))
        start = chance.choice((0, 3, 15, 16, 130, chance.randrange(LONGEST - new)))
        seqs.append(SequenceInput([5] * new, start, list(range(-(-(start + new) // BLOCK))), 1))
    return seqs


@pytest.mark.parametrize("kept", [torch.float32, torch.int8], ids=str)
def test_no_step_after_the_warm_up_asks_for_another_form(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, forms: set[Form], kept: torch.dtype
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    runner = warm_runner(tiny_model_dir, kept)
    warm = set(forms)
    assert {name for name, _ in warm} >= {"decode_kernel", "reduce_kernel", "varlen_kernel", "sample_kernel"}
    chance = random.Random(1)
    for number in range(40):
        step = runner.prepare(some_step(chance))
        if number % 3 == 0:
            runner.launch_greedy(step)()
        elif number % 3 == 1:
            runner.launch_draws(step, Draws.of([(0.8, 50, 0.9, 0.0, 0.5)] * step.rows))()  # type: ignore[union-attr]
        else:
            runner.forward(step)
    assert forms == warm
