"""Writing into the cache."""

from __future__ import annotations

import torch

from paceline_runtime.kernels import reference
from paceline_runtime.kernels.interface import KVCache


def write_kv(key: torch.Tensor, value: torch.Tensor, cache: KVCache, slot_mapping: torch.Tensor) -> None:
    """See `Kernels.write_kv`."""
    if cache.quantised or not cache.key.is_contiguous() or bool((slot_mapping < 0).any()):
        return reference.write_kv(key, value, cache, slot_mapping)
    shape = (-1, *cache.key.shape[2:])
    cache.key.view(shape).index_copy_(0, slot_mapping, key)
    cache.value.view(shape).index_copy_(0, slot_mapping, value)
    return None
