"""How much of a device's memory is left for the KV cache: found by running the largest steps, not by a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

SLACK_PERCENT = 2
"""Of the device, kept free: the allocator cuts its memory into pieces, of which some stay unused."""


@dataclass(frozen=True, slots=True)
class LargestSteps:
    """How large the steps of a replica may be: tokens of a step and of a prompt's chunk, sequences, tokens of one."""

    max_batched_tokens: int
    chunk_tokens: int
    max_num_seqs: int
    max_model_len: int


class MemoryProbe(Protocol):
    """Reads a device's memory, in bytes."""

    def settle(self) -> None:
        """Wait for the device, and give back what no tensor uses."""
        ...

    def total(self) -> int:
        """Of the device."""
        ...

    def free(self) -> int:
        """Of the device, for whoever asks."""
        ...

    def allocated(self) -> int:
        """In this process's tensors."""
        ...

    def peak(self) -> int:
        """The most that `allocated` was since `reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Begin anew to look for the peak."""
        ...


class CudaProbe:
    """A CUDA device, through PyTorch's allocator and the driver."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def settle(self) -> None:
        """See `MemoryProbe`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def total(self) -> int:
        """See `MemoryProbe`."""
        return torch.cuda.mem_get_info(self._device)[1]

    def free(self) -> int:
        """See `MemoryProbe`."""
        return torch.cuda.mem_get_info(self._device)[0]

    def allocated(self) -> int:
        """See `MemoryProbe`."""
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        """See `MemoryProbe`."""
        return torch.cuda.max_memory_allocated(self._device)

    def reset_peak(self) -> None:
        """See `MemoryProbe`."""
        torch.cuda.reset_peak_memory_stats(self._device)


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What a model takes of a device, in bytes.

    Attributes:
        total: of the device.
        outside: in no tensor of ours: the driver's context, libraries, other processes.
        weights: and whatever else stays, such as tables and the memory for inputs.
        step: the most that a step takes beyond that, with the largest chunk of prompts or the largest batch.
        graphs: the captured steps.
    """

    total: int
    outside: int
    weights: int
    step: int
    graphs: int

    @property
    def slack(self) -> int:
        """Kept free."""
        return self.total * SLACK_PERCENT // 100

    @property
    def kv_room(self) -> int:
        """Left for the KV cache; never negative."""
        return max(self.total - self.outside - self.weights - self.step - self.graphs - self.slack, 0)


def profile_memory(
    probe: MemoryProbe,
    *,
    scratch: Callable[[], None],
    largest_steps: Callable[[], None],
    capture: Callable[[tuple[int, ...]], None] | None,
    sizes: tuple[int, ...],
) -> MemoryProfile:
    """Measure a loaded model that has no KV cache yet.

    The pool of captured steps is as large as its largest one needs; each further one adds about what the smallest adds.
    So two are captured, not all.

    Args:
        scratch: makes a small KV cache, which is not counted.
        largest_steps: runs the steps that need most memory.
        capture: captures steps of these batch sizes, in place of those before; `None` if none are.
        sizes: of all steps that will be captured, ascending.
    """
    probe.settle()
    weights = probe.allocated()
    scratch()
    probe.settle()
    before = probe.allocated()
    probe.reset_peak()
    largest_steps()
    step = probe.peak() - before
    probe.settle()
    outside = probe.total() - probe.free() - probe.allocated()
    graphs = 0
    if capture is not None and sizes:
        free = probe.free()
        capture(sizes[-1:])
        probe.settle()
        graphs = free - probe.free()
        if len(sizes) > 1:
            capture((sizes[0], sizes[-1]))
            probe.settle()
            graphs += max(free - probe.free() - graphs, 0) * (len(sizes) - 1)
    return MemoryProfile(probe.total(), outside, weights, step, graphs)
