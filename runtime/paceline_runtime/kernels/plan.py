"""Which sequences of a step go to which attention kernel, and in what pieces. Decided on the host, which knows the
lengths: no kernel has to search for its place, and nothing waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline_runtime.kernels.tiling import check_heads, choose_splits, decode_tile, tokens_per_tile, varlen_tile

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where the sequences of a step lie, and who computes them. All tensors int32, on the device.

    Attributes:
        block_table: [B, most blocks]; what lies behind a sequence's own blocks is not looked at.
        seq_lens: [B], tokens after this step.
        query_start_loc: [B + 1], where each sequence's new tokens start in T.
        decodes: [n], sequences with one new token.
        num_splits: parts of each decode's context, a power of two.
        tiles: [2, m], for each tile of the sequences with several new tokens: the sequence, and which of its new tokens
            is the tile's first.
        tile_tokens: new tokens of each tile, the last of a sequence apart.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    decodes: torch.Tensor
    num_splits: int
    tiles: torch.Tensor
    tile_tokens: int


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What tiles depend on: heads H and K, head size D, bytes of an activation."""

    heads: int
    kv_heads: int
    head_dim: int
    element_bytes: int


def plan_attention(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    host_seq_lens: Ints,
    host_query_lens: Ints,
    shape: AttentionShape,
    processors: int,
    to_device: Callable[[Ints], torch.Tensor],
    num_splits: int | None = None,
) -> AttentionPlan:
    """The plan of one step.

    Args:
        host_seq_lens, host_query_lens: [B], the same lengths on the host.
        processors: multiprocessors of the device.
        to_device: copies an array.
        num_splits: fixed instead of chosen by the number of decodes; each token's result is then the same whatever else
            is in the step.
    """
    group = check_heads(shape.heads, shape.kv_heads, shape.head_dim)
    decodes = np.flatnonzero(host_query_lens == 1).astype(np.int32)
    if num_splits is None:
        longest = int(host_seq_lens[decodes].max(initial=0))
        tile = decode_tile(group, shape.head_dim, shape.element_bytes)
        num_splits = choose_splits(len(decodes) * shape.kv_heads, longest, processors, tile.tokens)
    step = tokens_per_tile(varlen_tile(group, shape.head_dim, shape.element_bytes).rows, group)
    return AttentionPlan(
        block_table,
        seq_lens,
        query_start_loc,
        to_device(decodes),
        num_splits,
        to_device(_tiles(host_seq_lens, host_query_lens, step)),
        step,
    )


def _tiles(seq_lens: Ints, query_lens: Ints, tokens: int) -> Ints:
    """Tiles [2, m] of the sequences with several new tokens, those with the most context first.

    Programs start in this order, so the last ones to end are short ones.
    """
    long = np.flatnonzero(query_lens > 1)
    counts = -(-query_lens[long] // tokens)
    sequence = np.repeat(long, counts)
    within = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = within * tokens
    context = seq_lens[sequence] - query_lens[sequence] + np.minimum(first + tokens, query_lens[sequence])
    order = np.argsort(-context, kind="stable")
    return np.stack((sequence[order], first[order])).astype(np.int32)
