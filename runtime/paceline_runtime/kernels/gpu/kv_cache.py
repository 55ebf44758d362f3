"""Launching the write into the cache."""

from __future__ import annotations

import torch

from paceline_runtime.kernels.device.kv_cache import write_kv_kernel
from paceline_runtime.kernels.interface import KVCache
from paceline_runtime.kernels.tiling import next_power_of_2


def write_kv(key: torch.Tensor, value: torch.Tensor, cache: KVCache, slot_mapping: torch.Tensor) -> None:
    """See `Kernels.write_kv`."""
    tokens, heads, head_dim = key.shape
    if not tokens:
        return
    if not cache.quantised and cache.key.dtype != key.dtype:
        raise TypeError(f"keys are {key.dtype}, the cache {cache.key.dtype}; without scales they are one type")
    fp8 = cache.key.dtype == torch.float8_e4m3fn
    kept = (t.view(torch.uint8) if fp8 else t for t in (cache.key, cache.value))
    scales = (key if s is None else s for s in (cache.key_scale, cache.value_scale))  # not looked at without
    write_kv_kernel[(tokens,)](
        key,
        value,
        *kept,
        *scales,
        slot_mapping,
        *key.stride()[:2],
        *value.stride()[:2],
        *cache.key.stride()[:3],
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=cache.key.shape[1],
        ROWS=next_power_of_2(heads),
        DIMS=next_power_of_2(head_dim),
        FORMAT="int8" if cache.key.dtype == torch.int8 else "e4m3_bits" if fp8 else "plain",
        SCALES="none" if not cache.quantised else "token" if cache.scaled_by_token else "head",
        num_warps=4,
    )
