"""What is left for the cache, measured on a device that only counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline_runtime.model.device.memory import LargestSteps, MemoryProfile, profile_memory
from paceline_runtime.model.runner import ModelRunner
from paceline_runtime.model.safetensors_checkpoint import SafetensorsCheckpoint
from paceline_runtime.model.sampling import SamplingState
from paceline_runtime.model.sampling.state import ADJUSTS, DRAWS, REPORTS
from paceline_runtime.model.source import locate

SIZES = (1, 2, 4, 6)


class Counting:
    """A device of 10,000 bytes, 300 of them another's."""

    def __init__(self, weights: int) -> None:
        self.tensors = self.top = weights
        self.graphs = self.unused = 0

    def settle(self) -> None:
        self.unused = 0

    def total(self) -> int:
        return 10_000

    def free(self) -> int:
        return 10_000 - 300 - self.tensors - self.graphs - self.unused

    def allocated(self) -> int:
        return self.tensors

    def peak(self) -> int:
        return self.top

    def reset_peak(self) -> None:
        self.top = self.tensors

    def run(self, nbytes: int) -> None:
        self.top = max(self.top, self.tensors + nbytes)
        self.unused = nbytes  # kept by the allocator

    def capture(self, sizes: tuple[int, ...]) -> None:
        self.graphs = 100 * max(sizes, default=0) + 7 * len(sizes)


def test_what_steps_and_graphs_take_is_not_room_for_the_cache() -> None:
    device = Counting(weights=2_000)

    def scratch() -> None:
        device.tensors += 500

    profile = profile_memory(
        device, scratch=scratch, largest_steps=lambda: device.run(800), capture=device.capture, sizes=SIZES
    )
    assert profile == MemoryProfile(total=10_000, outside=300, weights=2_000, step=800, graphs=600 + 4 * 7)
    assert profile.slack == 200
    assert profile.kv_room == 10_000 - 300 - 2_000 - 800 - 628 - 200


def test_nothing_is_counted_for_graphs_where_none_are_captured() -> None:
    device = Counting(weights=9_900)
    profile = profile_memory(device, scratch=lambda: None, largest_steps=lambda: device.run(0), capture=None, sizes=())
    assert profile.graphs == 0
    assert profile.kv_room == 0


@pytest.mark.parametrize("chunk", [16, 64])
def test_the_runner_measures_its_largest_steps_and_leaves_no_cache_behind(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    runner = ModelRunner(
        SafetensorsCheckpoint(locate(tiny_model_dir.as_uri())),
        device=torch.device("cpu"),
        dtype=torch.float32,
        block_size=8,
        max_model_len=128,
    )
    largest = LargestSteps(max_batched_tokens=64, chunk_tokens=chunk, max_num_seqs=5, max_model_len=128)
    device = Counting(weights=1_000)
    forward = runner.model.forward
    ran: list[int] = []

    def counted(step: object) -> torch.Tensor:
        ran.append(len(step.token_ids))  # type: ignore[attr-defined]
        device.run(10 * ran[-1])
        return forward(step)  # type: ignore[arg-type]

    sampled: list[int] = []

    def sample(logits: torch.Tensor, states: list[SamplingState]) -> None:
        sampled.append(len(states))
        assert all(state.needs == ADJUSTS | DRAWS | REPORTS for state in states)
        device.run(3 * len(states))

    monkeypatch.setattr(runner.model, "forward", counted)
    monkeypatch.setattr("paceline_runtime.model.runner.sample", sample)
    profile = runner.profile_memory(largest, device)
    assert ran == [chunk, 5]
    assert sampled == [5]
    assert profile is not None
    assert profile.step == 10 * chunk
    assert runner.kv_cache == []
    assert runner.num_blocks == 0
    assert runner.profile_memory(largest) is None, "a CPU's memory is not measured"
