"""A step's inputs, put together in page-locked host memory and copied to the device in one go.

Two steps may be put together ahead: while the device works on one, the next is written beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

ALIGNMENT = 128
"""Bytes at whose multiples arrays start: a line of the device's cache. Triton wants 16."""

_SLOTS = 2
_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}

Numbers = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64]


def aligned(nbytes: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def step_bytes(*, tokens: int, seqs: int, width: int, logits: int) -> int:
    """The most that a step of this size takes: its arrays and the attention's plan, at most a tile for each token."""
    longs = (tokens, tokens, tokens, logits)
    ints = (seqs * width, seqs, seqs + 1, seqs, 2 * tokens)
    return sum(aligned(8 * n) for n in longs) + sum(aligned(4 * n) for n in ints)


def draw_bytes(rows: int) -> int:
    """What the draws of so many rows take."""
    return aligned(4 * rows) + 4 * aligned(8 * rows)


def row_bytes(rows: int) -> int:
    """What the numbers of so many rows take."""
    return aligned(8 * rows)


class _Slot:
    """Host memory of one step."""

    def __init__(self, nbytes: int, *, pinned: bool) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.bytes: NDArray[np.uint8] = self.memory.numpy()
        self.step = 0
        self.wait: Callable[[], None] | None = None


class Bundle:
    """The arrays of one step. Put them in the same order and sizes, and they are at the same addresses."""

    def __init__(self, slot: _Slot, target: torch.Tensor, step: int) -> None:
        self._slot, self._target, self._step = slot, target, step
        self.nbytes = 0

    def put(self, array: Numbers) -> torch.Tensor:
        """Where the array will be on the device once the bundle was sent."""
        start, end = self.nbytes, self.nbytes + array.nbytes
        if end > len(self._slot.bytes):
            raise ValueError(f"a step takes more than the {len(self._slot.bytes)} bytes that were set aside for it")
        self._slot.bytes[start:end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.nbytes = aligned(end)
        return self._target[start:end].view(_TYPES[array.dtype]).view(array.shape)

    def send(self) -> None:
        """Copy to the device, in the order of its work; may be called again while the memory was not taken anew."""
        slot = self._slot
        if slot.step != self._step:
            raise RuntimeError(f"a step was prepared, then {_SLOTS} others, before it was run")
        self._target[: self.nbytes].copy_(slot.memory[: self.nbytes], non_blocking=True)
        if self._target.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()

            def wait() -> None:
                # Asked first: it is there by then, unless the host runs ahead.
                if not event.query():  # type: ignore[no-untyped-call]
                    event.synchronize()

            slot.wait = wait


class Staging:
    """Memory for bundles, of a size that is reserved once. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pinned = device, device.type == "cuda"
        self._steps = 0
        self.reserve(0)

    @property
    def capacity(self) -> int:
        """Bytes of the largest step that fits."""
        return len(self._target)

    def reserve(self, nbytes: int) -> None:
        """Set memory aside for steps of this size, at new addresses."""
        self._target = torch.empty(aligned(nbytes), dtype=torch.uint8, device=self._device)
        self._slots = [_Slot(aligned(nbytes), pinned=self._pinned) for _ in range(_SLOTS)]

    def begin(self, nbytes: int) -> Bundle:
        """A bundle of at most so many bytes; where that is more than was reserved it has memory of its own.

        Waits until what was in its memory, two bundles ago, is on the device: long so, unless the host runs ahead.
        """
        self._steps += 1
        if nbytes > self.capacity:
            own = _Slot(aligned(nbytes), pinned=self._pinned)
            own.step = self._steps
            return Bundle(own, torch.empty(aligned(nbytes), dtype=torch.uint8, device=self._device), self._steps)
        slot = self._slots[self._steps % _SLOTS]
        if slot.wait is not None:
            slot.wait()
            slot.wait = None
        slot.step = self._steps
        return Bundle(slot, self._target, self._steps)
