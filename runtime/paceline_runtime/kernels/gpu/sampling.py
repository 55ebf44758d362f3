"""Launching the draw."""

from __future__ import annotations

import torch

from paceline_runtime.kernels.device.sampling import sample_kernel
from paceline_runtime.kernels.tiling import next_power_of_2

_COLUMNS = 4096
"""Logits that a program reads at once: 16 for each of 256 threads."""


def sample(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """See `Kernels.sample`."""
    rows, vocab = scaled.shape
    out = torch.empty(rows, dtype=torch.int64, device=scaled.device)
    if rows:
        block = min(_COLUMNS, next_power_of_2(vocab))
        sample_kernel[(rows,)](scaled, top_k, top_p, min_p, uniform, out, V=vocab, BLOCK=block, num_warps=8)
    return out
