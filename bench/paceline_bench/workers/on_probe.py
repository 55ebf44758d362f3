"""What the machine itself gives at this moment: reading memory, and multiplying matrices as libraries do best."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import metadata

import torch

READ_BYTES = 1 << 28
"""Larger than any last-level cache that a laptop has."""
GEMM = (1024, 1024, 1024)
REPEATS = 3


class Backend:
    """Probes with torch's threads (`OMP_NUM_THREADS`)."""

    def __init__(self, dtype: str) -> None:
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._memory = torch.zeros(READ_BYTES // 8, dtype=torch.int64)
        rows, inner, columns = GEMM
        self._left = torch.rand(rows, inner).to(self._dtype)
        self._right = torch.rand(columns, inner).to(self._dtype)

    def versions(self) -> dict[str, str]:
        """What is measured with."""
        return {"torch": metadata.version("torch")}

    def rates(self) -> dict[str, float]:
        """The best of a few tries each: `memory_gb_s` read, `gemm_gflop_s` in this dtype."""
        with torch.inference_mode():
            read = _best(lambda: self._memory.sum())
            packed = torch.ops.mkldnn._reorder_linear_weight(self._right, None)
            gemm = min(
                _best(lambda: self._left @ self._right.T),
                _best(lambda: torch.ops.mkldnn._linear_pointwise(self._left, packed, None, "none", [], "")),
            )
        rows, inner, columns = GEMM
        return {"memory_gb_s": READ_BYTES / read / 1e9, "gemm_gflop_s": 2 * rows * inner * columns / gemm / 1e9}


def _best(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)
