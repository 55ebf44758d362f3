"""Large pieces of memory on the host."""

from __future__ import annotations

import mmap

import torch


def allocate(nbytes: int) -> torch.Tensor:
    """Zeroed memory, uint8 [nbytes], in large pages where the system gives them.

    Weights and cache are walked from end to end, which small pages slow down. Nothing is really there until it is
    written to (see `reserve`).
    """
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes)


def reserve(memory: torch.Tensor) -> None:
    """Write zeros, so that memory which is not there fails now and not under load."""
    memory.fill_(0)
