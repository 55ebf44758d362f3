"""Norms, rotation, gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `Kernels.rms_norm`."""
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `Kernels.add_rms_norm`."""
    residual.copy_(residual.float() + x.float())
    return rms_norm(residual, weight, eps)


def rotate(heads: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """See `Kernels.rotate`."""
    first, second = heads.float().chunk(2, dim=-1)
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    heads.copy_(torch.cat((first * c - second * s, second * c + first * s), dim=-1))


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `Kernels.silu_and_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
