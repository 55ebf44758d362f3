"""Launching the attention kernels."""

from __future__ import annotations

import torch

from paceline_runtime.kernels.device.attention import decode_kernel, reduce_kernel, varlen_kernel
from paceline_runtime.kernels.gpu.target import INTERPRETED, kv_format
from paceline_runtime.kernels.interface import AttentionOptions, KVCache
from paceline_runtime.kernels.plan import AttentionPlan
from paceline_runtime.kernels.tiling import check_heads, decode_tile, tokens_per_tile, varlen_tile


def decode_attention(
    query: torch.Tensor, cache: KVCache, plan: AttentionPlan, options: AttentionOptions, out: torch.Tensor
) -> None:
    """See `Kernels.decode_attention`."""
    kept = _Kept(query, cache)
    tile = decode_tile(kept.group, kept.head_dim, query.element_size())
    n, heads = len(plan.decodes), query.shape[1]
    if not n:
        return
    parts = tops = totals = out  # not looked at with one split
    if plan.num_splits > 1:
        parts = query.new_empty((n, heads, plan.num_splits, kept.head_dim), dtype=torch.float32)
        tops, totals = parts.new_empty((2, n, heads, plan.num_splits)).unbind()
    decode_kernel[(n * kept.kv_heads, plan.num_splits)](
        query,
        *kept.tensors,
        plan.block_table,
        plan.seq_lens,
        plan.query_start_loc,
        plan.decodes,
        out,
        parts,
        tops,
        totals,
        options.scale,
        options.soft_cap,
        options.window,
        *query.stride()[:2],
        *out.stride()[:2],
        *cache.key.stride()[:3],
        plan.block_table.stride(0),
        KV_HEADS=kept.kv_heads,
        GROUP=kept.group,
        HEAD_DIM=kept.head_dim,
        BLOCK_SIZE=cache.key.shape[1],
        ROWS=tile.rows,
        TOKENS=tile.tokens,
        DIMS=tile.dims,
        SPLITS=plan.num_splits,
        WINDOWED=options.window > 0,
        CAPPED=options.soft_cap > 0,
        FORMAT=kept.format,
        SCALES=kept.scales,
        WIDEN=INTERPRETED,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if plan.num_splits > 1:
        reduce_kernel[(n * heads,)](
            parts,
            tops,
            totals,
            plan.seq_lens,
            plan.query_start_loc,
            plan.decodes,
            out,
            options.window,
            *out.stride()[:2],
            HEADS=heads,
            HEAD_DIM=kept.head_dim,
            DIMS=tile.dims,
            SPLITS=plan.num_splits,
            TOKENS=tile.tokens,
            WINDOWED=options.window > 0,
            num_warps=4,
        )


def varlen_attention(
    query: torch.Tensor, cache: KVCache, plan: AttentionPlan, options: AttentionOptions, out: torch.Tensor
) -> None:
    """See `Kernels.varlen_attention`."""
    kept = _Kept(query, cache)
    tile = varlen_tile(kept.group, kept.head_dim, query.element_size())
    num_tiles = plan.tiles.shape[1]
    if not num_tiles:
        return
    if plan.tile_tokens != (expected := tokens_per_tile(tile.rows, kept.group)):
        raise ValueError(
            f"the plan cuts sequences into {plan.tile_tokens} tokens, tiles of these heads and type have {expected}; "
            "make it with the shape of this query and cache"
        )
    varlen_kernel[(num_tiles * kept.kv_heads,)](
        query,
        *kept.tensors,
        plan.block_table,
        plan.seq_lens,
        plan.query_start_loc,
        plan.tiles,
        out,
        options.scale,
        options.soft_cap,
        options.window,
        num_tiles,
        *query.stride()[:2],
        *out.stride()[:2],
        *cache.key.stride()[:3],
        plan.block_table.stride(0),
        KV_HEADS=kept.kv_heads,
        GROUP=kept.group,
        HEAD_DIM=kept.head_dim,
        BLOCK_SIZE=cache.key.shape[1],
        ROWS=tile.rows,
        TOKENS=tile.tokens,
        DIMS=tile.dims,
        WINDOWED=options.window > 0,
        CAPPED=options.soft_cap > 0,
        FORMAT=kept.format,
        SCALES=kept.scales,
        WIDEN=INTERPRETED,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


class _Kept:
    """The cache as the kernels take it."""

    def __init__(self, query: torch.Tensor, cache: KVCache) -> None:
        if not cache.quantised and cache.key.dtype != query.dtype:
            raise TypeError(
                f"the query is {query.dtype}, the cache {cache.key.dtype}; without scales they are one type"
            )
        self.kv_heads, self.head_dim = cache.key.shape[2:]
        if query.stride(-1) != 1 or query.shape[2] != self.head_dim:
            raise ValueError(f"the query's heads have to be contiguous, with {self.head_dim} elements")
        self.group = check_heads(query.shape[1], self.kv_heads, self.head_dim)
        self.format = kv_format(cache.key.dtype)
        self.scales = "none" if not cache.quantised else "token" if cache.scaled_by_token else "head"
        bits = self.format == "e4m3_bits"
        key, value = (t.view(torch.uint8) if bits else t for t in (cache.key, cache.value))
        scales = (query if s is None else s for s in (cache.key_scale, cache.value_scale))  # not looked at without
        self.tensors = (key, value, *scales)
