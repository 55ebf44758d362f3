"""Attention by PyTorch's scaled dot product, over blocks gathered for it.

Windows, soft caps and 8-bit caches take the reference's way.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from paceline_runtime.kernels import reference
from paceline_runtime.kernels.interface import AttentionOptions, KVCache
from paceline_runtime.kernels.plan import AttentionPlan

MAX_PADDING = 1.5
"""Decodes of different lengths share one product while padding makes it at most this many times larger."""

MAX_GATHERED_TOKENS = 65536
"""Context tokens that one product gathers; it bounds the memory of a step, however many sequences share a prefix."""


def decode_attention(
    query: torch.Tensor, cache: KVCache, plan: AttentionPlan, options: AttentionOptions, out: torch.Tensor
) -> None:
    """See `Kernels.decode_attention`."""
    if not _plain(cache, options):
        return reference.decode_attention(query, cache, plan, options, out)
    # Looked at anew in each layer: a captured step's plan stays, and the numbers in it change.
    starts, tables, seq_lens = plan.query_start_loc.numpy(), plan.block_table.numpy(), plan.seq_lens.numpy()
    decodes = plan.decodes.numpy()
    lengths = seq_lens[decodes]
    if not lengths.all():
        out[torch.from_numpy(starts[decodes[lengths == 0]]).long()] = 0
    block_size, kv_heads, head_dim = cache.key.shape[1:]
    for group in groups(lengths):
        members, own = decodes[group], lengths[group]
        n, blocks = len(group), -(-int(own.max()) // block_size)
        rows = torch.from_numpy(starts[members].astype(np.int64))
        table = torch.from_numpy(tables[members, :blocks].ravel())
        mask = None
        if (own != blocks * block_size).any():
            mask = torch.from_numpy(np.arange(blocks * block_size) < own[:, None])[:, None, None, :]
        # The query heads that share a key head stand in for query positions: one product per key head.
        q = query[rows].reshape(n, kv_heads, -1, head_dim)
        k = cache.key.index_select(0, table).view(n, -1, kv_heads, head_dim).transpose(1, 2)
        v = cache.value.index_select(0, table).view(n, -1, kv_heads, head_dim).transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=options.scale)
        out[rows] = attended.reshape(n, -1, head_dim)
    return None


def varlen_attention(
    query: torch.Tensor, cache: KVCache, plan: AttentionPlan, options: AttentionOptions, out: torch.Tensor
) -> None:
    """See `Kernels.varlen_attention`."""
    if not _plain(cache, options):
        return reference.varlen_attention(query, cache, plan, options, out)
    for sequence in sorted(set(plan.tiles[0].tolist())):
        start, end = plan.query_start_loc[sequence : sequence + 2].tolist()
        new, length = end - start, int(plan.seq_lens[sequence])
        table = plan.block_table[sequence, : -(-length // cache.key.shape[1])].long()
        mask = None
        if new != length:
            mask = torch.arange(length) <= torch.arange(length - new, length).unsqueeze(1)
        q = query[start:end].transpose(0, 1).unsqueeze(0)
        k = cache.key.index_select(0, table).flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0)
        v = cache.value.index_select(0, table).flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0)
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=options.scale, enable_gqa=True
        )
        out[start:end] = attended.squeeze(0).transpose(0, 1)
    return None


def _plain(cache: KVCache, options: AttentionOptions) -> bool:
    return not (cache.quantised or options.window or options.soft_cap)


def groups(lengths: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """Cut sequences into groups of similar length, so that little of a padded product is padding.

    Those without tokens are in none.
    """
    ordered = np.argsort(lengths, kind="stable")
    ordered = ordered[lengths[ordered] > 0]
    made: list[NDArray[np.int64]] = []
    start, total = 0, 0
    for end, index in enumerate(ordered):
        length = int(lengths[index])
        total += length
        padded = length * (end - start + 1)
        if end > start and (padded > MAX_PADDING * total or padded > MAX_GATHERED_TOKENS):
            made.append(ordered[start:end])
            start, total = end, length
    if start < len(ordered):
        made.append(ordered[start:])
    return made
