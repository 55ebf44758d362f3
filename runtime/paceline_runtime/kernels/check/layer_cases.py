"""Writing the cache, norms, rotation and gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from paceline_runtime.kernels import reference
from paceline_runtime.kernels.check.attention_cases import BLOCK_SIZES, FORMATS, HEAD_DIMS, copy_cache, make_cache
from paceline_runtime.kernels.check.pairs import every_pair
from paceline_runtime.kernels.check.parity import DTYPES, Case, Outcome
from paceline_runtime.kernels.interface import Kernels, KVCache

_Properties = dict[str, Sequence[Any]]


def layer_cases(gpu: Kernels, *, full: bool) -> Iterator[Case]:
    """All of these kernels: every pair of properties; with `full` every combination."""
    for kernel, (run, properties) in _kernels().items():
        every = (dict(zip(properties, values, strict=True)) for values in product(*properties.values()))
        for row in every if full else every_pair(properties):
            name = ", ".join(f"{name} {value}" for name, value in row.items() if name != "dtype")
            yield Case(kernel, row["dtype"], name, partial(run, gpu, **row))


def _kernels() -> dict[str, tuple[Callable[..., Outcome], _Properties]]:
    """How each is run, and the sizes that it has to take."""
    rows: _Properties = {"dtype": DTYPES, "rows": (0, 1, 5, 33)}
    write: _Properties = {
        "dtype": DTYPES,
        "kept": FORMATS,
        "heads": (1, 2, 5, 8),
        "head_dim": HEAD_DIMS,
        "block_size": BLOCK_SIZES,
    }
    norm: _Properties = {**rows, "width": (1, 64, 80, 576, 2049)}
    return {
        "write_kv": (_write_kv, write),
        "rms_norm": (_rms_norm, norm),
        "add_rms_norm": (_add_rms_norm, norm),
        "silu_and_mul": (_silu, {**rows, "width": (1, 96, 1024, 1500)}),
        "rotate": (_rotate, {**rows, "heads": (1, 3, 7, 12), "head_dim": HEAD_DIMS}),
    }


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _write_kv(
    gpu: Kernels, device: torch.device, *, kept: str, dtype: torch.dtype, heads: int, head_dim: int, block_size: int
) -> Outcome:
    """Bit for bit, untouched slots included."""
    torch.manual_seed(head_dim)
    made = make_cache(kept, dtype, 4, block_size, heads, head_dim)
    caches = [copy_cache(made, device) for _ in range(2)]
    slots = torch.randperm(4 * block_size)[:7].to(device)
    slots[3] = -1
    new = torch.randn(7, heads + 3, 2 * head_dim) * torch.logspace(-4, 3, 7).view(7, 1, 1)
    new[1] = 0.0
    new[4, 0, 1], new[5, heads + 1, -1] = torch.nan, torch.inf
    new = new.to(dtype).to(device)
    key, value = new[:, :heads, :head_dim], new[:, 2 : heads + 2, head_dim:]
    for kernels, cache in zip((reference, gpu), caches, strict=True):
        kernels.write_kv(key, value, cache, slots)
    outcome = Outcome(0.0, 0.0)
    for wanted, got in zip(_all(caches[0]), _all(caches[1]), strict=True):
        outcome = outcome.worse(Outcome.of(got, wanted, 0.0))
    return outcome


def _all(cache: KVCache) -> list[torch.Tensor]:
    tensors = (cache.key, cache.value, cache.key_scale, cache.value_scale)
    return [_codes(t) if t.dtype == torch.float8_e4m3fn else t for t in tensors if t is not None]


def _codes(kept: torch.Tensor) -> torch.Tensor:
    """Bits of e4m3 numbers; what is no number has two codes that mean the same."""
    return kept.view(torch.uint8).masked_fill(kept.float().isnan(), 0x7F)


def _inputs(dtype: torch.dtype, device: torch.device, rows: int, width: int) -> torch.Tensor:
    torch.manual_seed(width)
    return (3 * torch.randn(rows, width)).to(dtype).to(device)


def _rms_norm(gpu: Kernels, device: torch.device, *, dtype: torch.dtype, rows: int, width: int) -> Outcome:
    x, weight = _inputs(dtype, device, rows, width), _inputs(dtype, device, 1, width)[0]
    wanted = reference.rms_norm(x.float(), weight, 1e-5)
    return _relative(gpu.rms_norm(x, weight, 1e-5), wanted, dtype)


def _add_rms_norm(gpu: Kernels, device: torch.device, *, dtype: torch.dtype, rows: int, width: int) -> Outcome:
    x, weight = _inputs(dtype, device, rows, width), _inputs(dtype, device, 1, width)[0]
    ours, theirs = (_inputs(dtype, device, rows + 1, width)[1:] for _ in range(2))
    got, wanted = gpu.add_rms_norm(x, ours, weight, 1e-5), reference.add_rms_norm(x, theirs, weight, 1e-5)
    # The interpreter cuts float32 to bfloat16 where a GPU rounds, so the two sums may be one place apart.
    return _relative(ours, theirs, dtype).worse(_relative(got, wanted, dtype, steps=4))


def _silu(gpu: Kernels, device: torch.device, *, dtype: torch.dtype, rows: int, width: int) -> Outcome:
    gate_up = 3 * _inputs(dtype, device, rows, 2 * width)
    return _relative(gpu.silu_and_mul(gate_up), reference.silu_and_mul(gate_up.float()), dtype)


def _rotate(gpu: Kernels, device: torch.device, *, dtype: torch.dtype, rows: int, heads: int, head_dim: int) -> Outcome:
    angles = torch.outer(torch.arange(64), 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim))
    positions = torch.randperm(64)[:rows].to(device)
    x = _inputs(dtype, device, rows, (heads + 2) * head_dim).view(rows, heads + 2, head_dim)
    wanted = x.float()
    for kernels, of in ((gpu, x), (reference, wanted)):
        kernels.rotate(of[:, :heads], positions, angles.cos().to(device), angles.sin().to(device))
    return Outcome.of(x, wanted, 2 * _eps(dtype) * float(wanted.abs().max()) if rows else 0.0)


def _relative(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, steps: int = 1) -> Outcome:
    """Each number against its own size; float32 sums and functions are off by a few of the last places."""
    if not wanted.numel():
        return Outcome(0.0 if got.shape == wanted.shape else float("nan"), 0.0)
    # Below its smallest normal number a type has steps of one size.
    size = wanted.double().abs().clamp(min=max(torch.finfo(dtype).smallest_normal, 1e-6))
    error = (got.double() - wanted.double()).abs() / size
    return Outcome(float(error.max()), max(steps, 8 if dtype == torch.float32 else steps) * _eps(dtype))
