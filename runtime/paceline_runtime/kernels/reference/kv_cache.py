"""Writing into the cache and reading out of it."""

from __future__ import annotations

import torch

from paceline_runtime.kernels.interface import FP8_MAX, INT8_MAX, KVCache


def write_kv(key: torch.Tensor, value: torch.Tensor, cache: KVCache, slot_mapping: torch.Tensor) -> None:
    """See `Kernels.write_kv`."""
    tokens = (slot_mapping >= 0).nonzero().squeeze(1)
    slots = slot_mapping[tokens]
    _write(key[tokens], cache.key, cache.key_scale, slots)
    _write(value[tokens], cache.value, cache.value_scale, slots)


def read_kv(kept: torch.Tensor, scale: torch.Tensor | None, block_ids: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` keys (or values) of a sequence with these blocks, [length, K, D] float32."""
    values = kept[block_ids].float()
    if scale is not None:
        values *= (scale if scale.dim() == 1 else scale[block_ids]).unsqueeze(-1)
    return values.flatten(0, 1)[:length]


def _write(new: torch.Tensor, kept: torch.Tensor, scale: torch.Tensor | None, slots: torch.Tensor) -> None:
    blocks, offsets = slots // kept.shape[1], slots % kept.shape[1]
    if scale is None:
        kept[blocks, offsets] = new.to(kept.dtype)
        return
    most = INT8_MAX if kept.dtype == torch.int8 else FP8_MAX
    if scale.dim() == 1:
        factor = scale.expand(new.shape[:2])
    else:
        largest = new.float().abs().amax(dim=-1)
        factor = torch.where(largest == 0, 1.0, largest / most)
        scale[blocks, offsets] = factor
    codes = (new.float() / factor.unsqueeze(-1)).clamp(-most, most)
    if kept.dtype == torch.int8:
        kept[blocks, offsets] = codes.nan_to_num().round().to(torch.int8)
    else:
        # Not every backend can place single numbers of this type, but all can place bytes.
        kept.view(torch.uint8)[blocks, offsets] = codes.to(kept.dtype).view(torch.uint8)
