"""Attention over the paged KV cache: the interface that every kernel has, and the PyTorch reference.

Shapes, with T tokens and B sequences in the step: query [T, heads, head_dim]; each layer's key and value cache
[num_blocks, block_size, kv_heads, head_dim]. A sequence's new tokens are neighbours in T, and their keys and values are
in the cache before attention runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

MAX_PADDING = 1.5
"""Decodes of different lengths share one product while padding makes it at most this many times larger."""

MAX_GATHERED_TOKENS = 65536
"""Context tokens that one product gathers; it bounds the memory of a step, however many sequences share a prefix."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where the sequences of a step lie.

    The host copies are what a backend plans with; the tensors are what a kernel reads.

    Attributes:
        block_table: [B, most blocks], int32; rows are padded with block 0.
        seq_lens: [B], int32: tokens of each sequence after this step.
        query_start_loc: [B + 1], int32: where each sequence's new tokens start in T.
        slot_mapping: [T], int64: block × block_size + offset of each new token.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    slot_mapping: torch.Tensor
    host_seq_lens: NDArray[np.int32]
    host_query_lens: NDArray[np.int32]


class AttentionBackend(Protocol):
    """One way to compute attention; made anew for each step, then used by all layers."""

    def __call__(self, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor) -> torch.Tensor:
        """[T, heads, head_dim] → [T, heads, head_dim]; causal, scaled by 1/√head_dim."""


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Put keys and values [T, kv_heads, head_dim] of new tokens into their slots."""
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Sequences with one new token each, of similar length."""

    rows: torch.Tensor  # [n] positions in T
    blocks: torch.Tensor  # [n × blocks]
    mask: torch.Tensor | None  # [n, 1, 1, length], True where there is a token


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One sequence with several new tokens."""

    start: int
    end: int
    blocks: torch.Tensor
    length: int
    mask: torch.Tensor | None  # [new, length]; None where all of the sequence is new


class TorchAttention:
    """The reference: gathers each sequence's blocks and uses PyTorch's scaled dot product."""

    def __init__(self, metadata: AttentionMetadata, block_size: int) -> None:
        self._block_size = block_size
        self._decodes: list[_Decodes] = []
        self._prefills: list[_Prefill] = []
        table = metadata.block_table.long()
        starts = np.concatenate(([0], np.cumsum(metadata.host_query_lens)))
        single = np.flatnonzero(metadata.host_query_lens == 1)
        for group in _groups(metadata.host_seq_lens, single):
            self._decodes.append(self._decode_group(metadata.host_seq_lens[group], group, starts, table))
        for index in np.flatnonzero(metadata.host_query_lens > 1):
            new, length = int(metadata.host_query_lens[index]), int(metadata.host_seq_lens[index])
            mask = None
            if new != length:
                positions = torch.arange(length, device=table.device)
                mask = positions[None, :] <= positions[length - new :, None]
            used = -(-length // block_size)
            self._prefills.append(
                _Prefill(int(starts[index]), int(starts[index]) + new, table[index, :used], length, mask)
            )

    def _decode_group(
        self, lengths: NDArray[np.int32], group: NDArray[np.int64], starts: NDArray[np.int64], table: torch.Tensor
    ) -> _Decodes:
        blocks = -(-int(lengths.max()) // self._block_size)
        padded = blocks * self._block_size
        mask = None
        if (lengths != padded).any():
            known = np.arange(padded)[None, :] < lengths[:, None]
            mask = torch.from_numpy(known).to(table.device)[:, None, None, :]
        members = torch.from_numpy(group).to(table.device)
        rows = torch.from_numpy(starts[group]).to(table.device)
        return _Decodes(rows, table[members, :blocks].flatten(), mask)

    def __call__(self, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(query)
        kv_heads, head_dim = key_cache.shape[2:]
        share = query.shape[1] // kv_heads
        for decodes in self._decodes:
            n = decodes.rows.shape[0]
            # The query heads that share a key head stand in for query positions: one product per key head.
            q = query[decodes.rows].view(n, kv_heads, share, head_dim)
            k = key_cache.index_select(0, decodes.blocks).view(n, -1, kv_heads, head_dim).transpose(1, 2)
            v = value_cache.index_select(0, decodes.blocks).view(n, -1, kv_heads, head_dim).transpose(1, 2)
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=decodes.mask)
            out[decodes.rows] = attended.reshape(n, -1, head_dim)
        for prefill in self._prefills:
            q = query[prefill.start : prefill.end].transpose(0, 1).unsqueeze(0)
            k = key_cache.index_select(0, prefill.blocks).flatten(0, 1)[: prefill.length].transpose(0, 1).unsqueeze(0)
            v = value_cache.index_select(0, prefill.blocks).flatten(0, 1)[: prefill.length].transpose(0, 1).unsqueeze(0)
            attended = F.scaled_dot_product_attention(
                q, k, v, attn_mask=prefill.mask, is_causal=prefill.mask is None, enable_gqa=True
            )
            out[prefill.start : prefill.end] = attended.squeeze(0).transpose(0, 1)
        return out


def _groups(seq_lens: NDArray[np.int32], members: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut sequences into groups of similar length, so that little of a padded product is padding."""
    ordered = members[np.argsort(seq_lens[members], kind="stable")]
    groups: list[NDArray[np.int64]] = []
    start, total = 0, 0
    for end, index in enumerate(ordered):
        length = int(seq_lens[index])
        total += length
        padded = length * (end - start + 1)
        if end > start and (padded > MAX_PADDING * total or padded > MAX_GATHERED_TOKENS):
            groups.append(ordered[start:end])
            start, total = end, length
    if start < len(ordered):
        groups.append(ordered[start:])
    return groups
