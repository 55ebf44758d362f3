"""Launching the attention kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from paceline_runtime.kernels.device.attention import decode_kernel, reduce_kernel, varlen_kernel
from paceline_runtime.kernels.gpu.target import INTERPRETED, kv_format
from paceline_runtime.kernels.interface import AttentionOptions, KVCache
from paceline_runtime.kernels.plan import AttentionPlan
from paceline_runtime.kernels.tiling import Tile, check_heads, decode_tile, tokens_per_tile, varlen_tile


def decode_attention(
    query: torch.Tensor, cache: KVCache, plan: AttentionPlan, options: AttentionOptions, out: torch.Tensor
) -> None:
    """See `Kernels.decode_attention`."""
    kept = _kept(query, cache)
    tile = decode_tile(kept.group, kept.head_dim, query.element_size())
    n, heads, splits = len(plan.decodes), query.shape[1], plan.num_splits
    if not n:
        return
    parts = tops = totals = out  # not looked at with one split
    if splits > 1:
        parts = query.new_empty((n, heads, splits, kept.head_dim), dtype=torch.float32)
        # Each in memory of its own: whether an address is a multiple of 16 is part of a kernel's form.
        tops, totals = (parts.new_empty((n, heads, splits)) for _ in range(2))
    decode_kernel[(n * kept.kv_heads, splits)](
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
        *_strides(query, out, cache, plan),
        SPLITS=splits,
        **kept.constants(tile, options),
    )
    if splits > 1:
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
            SPLITS=splits,
            TOKENS=tile.tokens,
            WINDOWED=options.window > 0,
            num_warps=4,
        )


def varlen_attention(
    query: torch.Tensor, cache: KVCache, plan: AttentionPlan, options: AttentionOptions, out: torch.Tensor
) -> None:
    """See `Kernels.varlen_attention`."""
    kept = _kept(query, cache)
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
        *_strides(query, out, cache, plan),
        **kept.constants(tile, options),
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The cache as both kernels take it.

    Attributes:
        tensors: keys, values and the scales of both.
        group: query heads for each key head.
        format, scales: see `device.attention`.
    """

    tensors: tuple[torch.Tensor, ...]
    group: int
    kv_heads: int
    head_dim: int
    block_size: int
    format: str
    scales: str

    def constants(self, tile: Tile, options: AttentionOptions) -> dict[str, Any]:
        """What a kernel's form depends on, beside types."""
        return {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "HEAD_DIM": self.head_dim,
            "BLOCK_SIZE": self.block_size,
            "ROWS": tile.rows,
            "TOKENS": tile.tokens,
            "DIMS": tile.dims,
            "WINDOWED": options.window > 0,
            "CAPPED": options.soft_cap > 0,
            "FORMAT": self.format,
            "SCALES": self.scales,
            "WIDEN": INTERPRETED,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }


def _kept(query: torch.Tensor, cache: KVCache) -> _Kept:
    if not cache.quantised and cache.key.dtype != query.dtype:
        raise TypeError(f"the query is {query.dtype}, the cache {cache.key.dtype}; without scales they are one type")
    block_size, kv_heads, head_dim = cache.key.shape[1:]
    if query.stride(-1) != 1 or query.shape[2] != head_dim:
        raise ValueError(f"the query's heads have to be contiguous, with {head_dim} elements")
    form = kv_format(cache.key.dtype)
    key, value = (t.view(torch.uint8) if form == "e4m3_bits" else t for t in (cache.key, cache.value))
    scales = (query if s is None else s for s in (cache.key_scale, cache.value_scale))  # not looked at without
    return _Kept(
        (key, value, *scales),
        check_heads(query.shape[1], kv_heads, head_dim),
        kv_heads,
        head_dim,
        block_size,
        form,
        "none" if not cache.quantised else "token" if cache.scaled_by_token else "head",
    )


def _strides(query: torch.Tensor, out: torch.Tensor, cache: KVCache, plan: AttentionPlan) -> tuple[int, ...]:
    """Of query and output by token and head, of the cache by block, slot and head, of the table by sequence."""
    return (*query.stride()[:2], *out.stride()[:2], *cache.key.stride()[:3], plan.block_table.stride(0))
