"""Launching norms, rotation and gate."""

from __future__ import annotations

import torch

from paceline_runtime.kernels.device.layers import rms_norm_kernel, rotate_kernel, silu_and_mul_kernel
from paceline_runtime.kernels.tiling import next_power_of_2

_COLUMNS = 1024
"""Of the gate that one program takes: 8 for each of 128 threads, one load of 16 bytes in 16-bit types."""
_ROTATED = 2048
"""Pairs that one program rotates, about."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `Kernels.rms_norm`."""
    return _norm(x, None, weight, eps)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `Kernels.add_rms_norm`."""
    return _norm(x, residual, weight, eps)


def _norm(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    width = x.shape[-1]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = x.view(-1, width)
    if not len(rows):
        return out
    kept = rows if residual is None else residual.view(-1, width)
    block = next_power_of_2(width)
    rms_norm_kernel[(len(rows),)](
        rows,
        kept,
        weight,
        out,
        rows.stride(0),
        kept.stride(0),
        width,
        eps,
        N=width,
        BLOCK=block,
        ADD=residual is not None,
        # 16 elements of a row for each thread, or the next sizes.
        num_warps=min(max(block // 512, 1), 16),
    )
    return out


def rotate(heads: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """See `Kernels.rotate`."""
    tokens, count, head_dim = heads.shape
    if not tokens:
        return
    dims = next_power_of_2(head_dim // 2)
    rows = min(next_power_of_2(count), max(_ROTATED // dims, 1))
    rotate_kernel[(tokens, -(-count // rows))](
        heads,
        positions,
        cos,
        sin,
        *heads.stride()[:2],
        HEADS=count,
        HALF=head_dim // 2,
        ROWS=rows,
        DIMS=dims,
        num_warps=4,
    )


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `Kernels.silu_and_mul`."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((tokens, width))
    if not tokens:
        return out
    block = min(_COLUMNS, next_power_of_2(width))
    silu_and_mul_kernel[(tokens, -(-width // block))](
        gate_up, out, gate_up.stride(0), N=width, BLOCK=block, num_warps=4
    )
    return out
