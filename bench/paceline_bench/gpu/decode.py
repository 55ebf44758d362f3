"""Decode steps of a Llama of a billion weights: tokens per second, what a step is made of, what it takes of memory."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from paceline_planner.accelerators import Accelerator, find
from paceline_planner.ledger import Ledger, Setup, decode_ceiling, ledger
from paceline_planner.shapes import shape_of
from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.device.memory import LargestSteps, MemoryProfile
from paceline_runtime.model.runner import ModelRunner, SequenceInput, StepInput
from paceline_runtime.model.sampling import SamplingState, draws_of

from .models import BILLION, SMALL, RandomCheckpoint
from .record import Record
from .timing import copy_bandwidth

Launch = Callable[[StepInput], Callable[[], list[tuple[int, float]]]]

BLOCK = 16
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""Calls of the driver's library in which the host waits for the device."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: tokens in the cache of each sequence, steps that count, batches."""

    context: int
    steps: int
    batches: tuple[int, ...]


FULL, TINY = Size(512, 48, (1, 8, 64, 256)), Size(16, 3, (1, 3))


def run(record: Record) -> None:
    """All of it in bfloat16: memory, steps with graphs and without, waits, transformers."""
    device = torch.device("cuda" if record.measuring else "cpu")
    size, config = (FULL, BILLION) if record.measuring else (TINY, SMALL)
    accelerator = _accelerator(device)
    runner = _runner(config, device, size)
    most = max(size.batches)
    largest = LargestSteps(max(512, 2 * most), 512, most, runner_length(size))
    profile = runner.profile_memory(largest)
    model = shape_of(config)
    if profile is not None:
        _compare(record, profile, ledger(model, Setup(accelerator)))
    runner.allocate_cache(most * -(-runner_length(size) // BLOCK))
    for key, value in runner.kv_cache:
        key.normal_()
        value.normal_()
    record.figure("warm_up", runner.warm_up(largest), "s")
    for batch in size.batches:
        ceiling = decode_ceiling(model, Setup(accelerator), batch, size.context)
        rate = _steps(record, runner, size, batch, graphs=True)
        if ceiling is not None:
            record.figure("of_roofline", 100 * rate / ceiling, "%", batch=batch, by=accelerator.source)
    _steps(record, runner, size, most, graphs=True, drawn=True)
    if record.measuring:
        for drawn in (False, True):
            record.check(f"waits of a step{' that draws' if drawn else ''}", *_waits(runner, size, drawn=drawn))
    # The same weights and cache, without the graphs.
    runner.model.capture(())  # type: ignore[union-attr]  # no native kernels: bfloat16
    for batch in size.batches:
        _steps(record, runner, size, batch, graphs=False)
    del runner
    gc.collect()
    _transformers(record, config, device, size)


def runner_length(size: Size) -> int:
    """The longest sequence: context, and all steps that are run."""
    return size.context + size.steps + 16


def _runner(config: dict[str, Any], device: torch.device, size: Size) -> ModelRunner:
    return ModelRunner(
        RandomCheckpoint(config, device),
        device=device,
        dtype=torch.bfloat16,
        block_size=BLOCK,
        max_model_len=runner_length(size),
    )


def _accelerator(device: torch.device) -> Accelerator:
    """The device by its name in the planner's catalogue, else what can be measured of it."""
    if device.type != "cuda":
        return Accelerator("CPU", 0, None)
    name, memory = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
    try:
        return find(name)
    except KeyError:
        return Accelerator(name, memory, copy_bandwidth(device, 4 << 30), source="measured copy")


def _compare(record: Record, profile: MemoryProfile, planned: Ledger) -> None:
    """What was measured beside what the planner's ledger says, in GiB."""
    beside = {
        "total": (profile.total, planned.memory),
        "weights": (profile.weights, planned.weights),
        "beside weights and cache": (profile.outside + profile.step + profile.graphs + profile.slack, planned.margin),
        "room for the cache": (profile.kv_room, planned.kv_room),
    }
    for what, (measured, counted) in beside.items():
        for system, value in (("paceline", measured), ("ledger", counted)):
            record.figure("memory", value / 2**30, "GiB", system=system, of=what)
    for what in ("outside", "step", "graphs"):
        record.figure("memory", getattr(profile, what) / 2**30, "GiB", of=what)
    off = profile.weights / planned.weights - 1
    record.check("weights beside the ledger", abs(off) < 0.05, f"{100 * off:+.1f} % of what the ledger counts")
    words = f"{profile.kv_room / 2**30:.1f} GiB, the ledger says {planned.kv_room / 2**30:.1f} GiB"
    record.check("the ledger's cache fits", profile.kv_room >= planned.kv_room, words)


def _sequences(size: Size, batch: int) -> tuple[list[list[int]], Callable[[list[int], int], list[SequenceInput]]]:
    per = -(-runner_length(size) // BLOCK)
    blocks = [list(range(i * per, (i + 1) * per)) for i in range(batch)]

    def step(tokens: list[int], at: int) -> list[SequenceInput]:
        return [SequenceInput([token], at, own, 1) for token, own in zip(tokens, blocks, strict=True)]

    return blocks, step


def _steps(record: Record, runner: ModelRunner, size: Size, batch: int, *, graphs: bool, drawn: bool = False) -> float:
    """Steps one after the other, greedy or drawn, as the engine makes them: tokens per second."""
    if record.left < 10:
        record.note(f"batch {batch}, graphs {graphs}: no time")
        return float("nan")
    _, sequences = _sequences(size, batch)
    tokens, launch = [5] * batch, _launch(runner, batch, drawn=drawn)
    parts: list[tuple[float, float, float]] = []
    for at in range(size.context, size.context + size.steps + 4):
        started = time.perf_counter()
        step = runner.prepare(sequences(tokens, at))
        prepared = time.perf_counter()
        waiting = launch(step)
        launched = time.perf_counter()
        tokens = [token for token, _ in waiting()]
        parts.append((prepared - started, launched - prepared, time.perf_counter() - launched))
    parts = parts[4:]
    rate = batch * len(parts) / sum(map(sum, parts))
    record.figure("tokens_per_s", rate, "tokens/s", batch=batch, context=size.context, graphs=graphs, drawn=drawn)
    for number, name in enumerate(("prepare", "launch", "wait")):
        value = median(part[number] for part in parts) * 1e6
        record.figure("step_part", value, "us", part=name, batch=batch, graphs=graphs, drawn=drawn)
    return rate


def _launch(runner: ModelRunner, batch: int, *, drawn: bool) -> Launch:
    """Begins a step whose tokens are the likeliest, or drawn on the device."""
    if not drawn:
        return runner.launch_greedy
    params = SamplingParams(temperature=0.8, top_p=0.95)
    states = [SamplingState(params, seed, (), (), runner.model.spec.vocab_size) for seed in range(batch)]

    def launch(step: StepInput) -> Callable[[], list[tuple[int, float]]]:
        draws = draws_of(states, range(batch), batch)
        if draws is None:
            raise RuntimeError("the device does not draw these tokens")
        return runner.launch_draws(step, draws)

    return launch


def _waits(runner: ModelRunner, size: Size, *, drawn: bool, steps: int = 10) -> tuple[bool, str]:
    """Whether the host waits once a step and no more, counted by the profiler."""
    _, sequences = _sequences(size, 8)
    tokens, launch = [5] * 8, _launch(runner, 8, drawn=drawn)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as profile:
        for at in range(size.context, size.context + steps):
            tokens = [token for token, _ in launch(runner.prepare(sequences(tokens, at)))()]
    counts = Counter(event.name for event in profile.events() if event.name in WAITS)
    # Leaving the profiler waits for the device once more or so.
    allowed = {"cudaEventSynchronize": steps, "cudaDeviceSynchronize": 2}
    words = ", ".join(f"{name} {count}" for name, count in counts.items()) or "none seen"
    good = all(count <= allowed.get(name, 0) for name, count in counts.items())
    return good, f"in {steps} steps: {words}"


@torch.inference_mode()
def _transformers(record: Record, config: dict[str, Any], device: torch.device, size: Size) -> None:
    """`generate` of transformers: the time of many tokens less that of one, over the tokens between."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with device:
        model = LlamaForCausalLM(LlamaConfig(**config, dtype="bfloat16", attn_implementation="sdpa"))
    model = model.to(torch.bfloat16).eval()
    for batch in size.batches:
        if record.left < 10:
            record.note(f"transformers, batch {batch}: no time")
            return
        ids = torch.randint(3, 1000, (batch, size.context), device=device)

        def seconds(new: int, ids: torch.Tensor = ids) -> float:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
            model.generate(ids, min_new_tokens=new, max_new_tokens=new, do_sample=False, pad_token_id=0)
            if device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - started

        seconds(2)
        new = size.steps // 2 + 1
        rate = batch * (new - 1) / max(seconds(new) - seconds(1), 1e-9)
        record.figure("tokens_per_s", rate, "tokens/s", system="transformers", batch=batch, context=size.context)
