"""Attention, one sequence at a time."""

from __future__ import annotations

import torch

from paceline_runtime.kernels.interface import AttentionOptions, KVCache
from paceline_runtime.kernels.plan import AttentionPlan
from paceline_runtime.kernels.reference.kv_cache import read_kv


def decode_attention(
    query: torch.Tensor, cache: KVCache, plan: AttentionPlan, options: AttentionOptions, out: torch.Tensor
) -> None:
    """See `Kernels.decode_attention`."""
    for sequence in plan.decodes.tolist():
        _attend(sequence, query, cache, plan, options, out)


def varlen_attention(
    query: torch.Tensor, cache: KVCache, plan: AttentionPlan, options: AttentionOptions, out: torch.Tensor
) -> None:
    """See `Kernels.varlen_attention`."""
    for sequence in sorted(set(plan.tiles[0].tolist())):
        _attend(sequence, query, cache, plan, options, out)


def _attend(
    sequence: int,
    query: torch.Tensor,
    cache: KVCache,
    plan: AttentionPlan,
    options: AttentionOptions,
    out: torch.Tensor,
) -> None:
    """softmax(query · keys) · values in float32; a row that sees nothing gets zeros."""
    start, end = plan.query_start_loc[sequence : sequence + 2].tolist()
    length = int(plan.seq_lens[sequence])
    blocks = plan.block_table[sequence, : -(-length // cache.key.shape[1])].long()
    group = query.shape[1] // cache.key.shape[2]
    keys = read_kv(cache.key, cache.key_scale, blocks, length).repeat_interleave(group, dim=1)
    values = read_kv(cache.value, cache.value_scale, blocks, length).repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,shd->hts", query[start:end].float(), keys) * options.scale
    if options.soft_cap:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    token = torch.arange(length, device=query.device)
    position = torch.arange(length - (end - start), length, device=query.device).unsqueeze(1)
    seen = token <= position
    if options.window:
        seen &= token > position - options.window
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1).nan_to_num() if length else scores
    out[start:end] = torch.einsum("hts,shd->thd", weights, values).to(out.dtype)
