"""Writing keys and values into the paged cache."""

import triton
import triton.language as tl

from paceline_runtime.kernels.device.numerics import to_e4m3, to_int8


@triton.jit
def _write(
    new,
    cache,
    scales,
    slot,
    heads,
    present,
    mask,
    new_at,
    cache_at,
    HEADS: tl.constexpr,
    FORMAT: tl.constexpr,
    SCALES: tl.constexpr,
):
    x = tl.load(new + new_at, mask=mask, other=0.0)
    if FORMAT != "plain":
        x = x.to(tl.float32)
        kept = heads < present
        if SCALES == "token":
            largest = tl.max(tl.abs(x), 1)
            scale = tl.div_rn(largest, 127.0 if FORMAT == "int8" else 448.0)
            scale = tl.where(largest == 0.0, 1.0, scale)
            # A maximum passes over what is no number, and no code of int8 could tell of it: the scale does.
            scale = tl.where(tl.max((x != x).to(tl.int32), 1) > 0, float("nan"), scale)
            tl.store(scales + slot * HEADS + heads, scale, mask=kept)
        else:
            scale = tl.load(scales + heads, mask=kept, other=1.0)
        x = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
        x = to_int8(x) if FORMAT == "int8" else to_e4m3(x)
    tl.store(cache + cache_at, x, mask=mask)


@triton.jit
def write_kv_kernel(
    key,
    value,
    key_cache,
    value_cache,
    key_scale,
    value_scale,
    slot_mapping,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_block,
    stride_slot,
    stride_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    FORMAT: tl.constexpr,
    SCALES: tl.constexpr,
):
    """Program (token): all its heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    present = tl.where(slot >= 0, HEADS, 0)
    mask = (heads < present)[:, None] & (dims < HEAD_DIM)[None, :]
    cache_at = (slot // BLOCK_SIZE) * stride_block + (slot % BLOCK_SIZE) * stride_slot
    cache_at = cache_at + heads[:, None] * stride_head + dims[None, :]
    key_at = token * stride_key_token + heads[:, None] * stride_key_head + dims[None, :]
    value_at = token * stride_value_token + heads[:, None] * stride_value_head + dims[None, :]
    _write(key, key_cache, key_scale, slot, heads, present, mask, key_at, cache_at, HEADS, FORMAT, SCALES)
    _write(value, value_cache, value_scale, slot, heads, present, mask, value_at, cache_at, HEADS, FORMAT, SCALES)
