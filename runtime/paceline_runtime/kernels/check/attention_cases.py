"""Attention over a scattered cache, whose every unused slot holds NaN (in int8: the largest number)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from paceline_runtime.kernels import reference
from paceline_runtime.kernels.check.pairs import every_pair
from paceline_runtime.kernels.check.parity import DTYPES, Case, Outcome
from paceline_runtime.kernels.interface import AttentionOptions, Kernels, KVCache
from paceline_runtime.kernels.plan import AttentionPlan, AttentionShape, plan_attention

HEAD_DIMS = (64, 80, 96, 128, 256)
BLOCK_SIZES = (8, 16, 32, 64)
FORMATS = ("plain", "fp8-head", "fp8-token", "int8-head", "int8-token")
KEPT_AS = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
UNTOUCHED = 7.0
"""What rows hold that a kernel has to leave alone."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One step.

    Attributes:
        new, before: of each sequence, its new tokens and those in the cache already.
        kept: how the cache is kept, one of `FORMATS`.
    """

    dtype: torch.dtype
    group: int
    kv_heads: int
    head_dim: int
    block_size: int
    new: tuple[int, ...]
    before: tuple[int, ...]
    kept: str = "plain"
    window: int = 0
    soft_cap: float = 0.0
    num_splits: int = 1

    @property
    def name(self) -> str:
        """What is special about it."""
        lengths = ",".join(f"{before}+{new}" for new, before in zip(self.new, self.before, strict=True))
        return (
            f"heads {self.group}×{self.kv_heads} of {self.head_dim}, blocks of {self.block_size}, {self.kept}, "
            f"window {self.window}, cap {self.soft_cap}, {self.num_splits} splits, tokens {lengths}"
        )

    def run(self, gpu: Kernels, device: torch.device) -> Outcome:
        """Both kernels over the step, against the reference in float32."""
        torch.manual_seed(len(self.name))
        query, cache, plan, largest = self._inputs(device)
        options = AttentionOptions(self.head_dim**-0.5, self.window, self.soft_cap)
        wanted = torch.full(query.shape, UNTOUCHED, device=device)
        got = torch.full_like(query, UNTOUCHED)
        for kernels, out in ((reference, wanted), (gpu, got)):
            kernels.decode_attention(query, cache, plan, options, out)
            kernels.varlen_attention(query, cache, plan, options, out)
        # Weights and result are rounded to the type; a sum of products in float32 is off by a few of its last places.
        steps = 32 if self.dtype == torch.float32 else 2
        return Outcome.of(got, wanted, steps * torch.finfo(self.dtype).eps * largest)

    def _inputs(self, device: torch.device) -> tuple[torch.Tensor, KVCache, AttentionPlan, float]:
        new, lengths = np.array(self.new, dtype=np.int32), np.add(self.new, self.before, dtype=np.int32)
        needed = [-(-int(length) // self.block_size) for length in lengths]
        blocks = torch.randperm(sum(needed) + 2).int()
        table = torch.full((len(new), max(*needed, 1) + 1), int(blocks[-1]), dtype=torch.int32)
        for row, (end, count) in enumerate(zip(np.cumsum(needed), needed, strict=True)):
            table[row, :count] = blocks[end - count : end]
        slots = [
            table[row, torch.arange(int(n)) // self.block_size].long() * self.block_size
            + torch.arange(int(n)) % self.block_size
            for row, n in enumerate(lengths)
        ]
        tokens, heads = int(lengths.sum()), self.group * self.kv_heads
        cache = make_cache(self.kept, self.dtype, len(blocks), self.block_size, self.kv_heads, self.head_dim)
        key, value = (torch.randn(tokens, self.kv_heads, self.head_dim).to(self.dtype) for _ in range(2))
        reference.write_kv(key, value, cache, torch.cat(slots))
        # Heads of the query are a part of wider rows, as they are beside keys and values.
        query = torch.randn(int(new.sum()), heads + 2, self.head_dim).to(self.dtype).to(device)[:, :heads]
        starts = torch.from_numpy(np.concatenate(([0], np.cumsum(new))).astype(np.int32))
        plan = plan_attention(
            table.to(device),
            torch.from_numpy(lengths).to(device),
            starts.to(device),
            host_seq_lens=lengths,
            host_query_lens=new,
            shape=AttentionShape(heads, self.kv_heads, self.head_dim, query.element_size()),
            processors=8,
            to_device=lambda array: torch.from_numpy(array).to(device),
            num_splits=self.num_splits,
        )
        return query, copy_cache(cache, device), plan, float(value.abs().max())


def make_cache(kept: str, dtype: torch.dtype, blocks: int, block_size: int, kv_heads: int, head_dim: int) -> KVCache:
    """A cache in host memory that holds no number anywhere."""
    shape = (blocks, block_size, kv_heads, head_dim)
    if kept == "plain":
        return KVCache(torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype))
    form, granularity = kept.split("-")
    # 0x7F is NaN in e4m3 and the largest number in int8.
    key, value = (torch.full(shape, 0x7F, dtype=torch.uint8).view(KEPT_AS[form]) for _ in range(2))
    if granularity == "head":
        most = 4.0 / (127.0 if form == "int8" else 448.0)
        return KVCache(key, value, *(most * (1 + torch.rand(kv_heads)) for _ in range(2)))
    return KVCache(key, value, *(torch.full(shape[:3], torch.nan) for _ in range(2)))


def copy_cache(cache: KVCache, device: torch.device) -> KVCache:
    """The same numbers on a device."""

    def copy(scale: torch.Tensor | None) -> torch.Tensor | None:
        return None if scale is None else scale.clone().to(device)

    return KVCache(
        cache.key.clone().to(device), cache.value.clone().to(device), copy(cache.key_scale), copy(cache.value_scale)
    )


PROPERTIES: dict[str, Sequence[Any]] = {
    "dtype": DTYPES,
    "group": range(1, 9),
    "kv_heads": (1, 2),
    "head_dim": HEAD_DIMS,
    "block_size": BLOCK_SIZES,
    "kept": FORMATS,
    "window": (0, 1, 5, 33),
    "soft_cap": (0.0, 4.0),
    "num_splits": (1, 2, 4),
    # The longest sequence ends so many tokens from the end of so many blocks.
    "blocks": (1, 2, 3),
    "off": (-1, 0, 1),
    # Of a sequence that has several.
    "new": (2, 3, 17, 40),
}


def attention_cases(gpu: Kernels, *, full: bool) -> Iterator[Case]:
    """Decodes, chunks and mixed steps: every pair of properties; with `full` many more combinations."""
    for kernel, make in (("decode_attention", _decode), ("varlen_attention", _varlen), ("mixed steps", _mixed)):
        rows = every_pair({name: PROPERTIES[name] for name in PROPERTIES if name != "new" or make is not _decode})
        for number in range(len(rows), 240 if full else 0):
            rows.append(_any(random.Random(number)))
        for row in rows:
            attention = make(**row)
            yield Case(kernel, attention.dtype, attention.name, partial(attention.run, gpu))


def _any(chance: random.Random) -> dict[str, Any]:
    row = {name: chance.choice(values) for name, values in PROPERTIES.items()}
    return {**row, "blocks": chance.randint(1, 6), "off": chance.randint(-3, 3)}


def _decode(block_size: int, blocks: int, off: int, new: int = 1, **shape: Any) -> Attention:
    """A sequence, one with its first token, and a place of a captured graph that none has: a length of 0."""
    before = (blocks * block_size + off - 1, 0, -1)
    return Attention(new=(1, 1, 1), before=before, block_size=block_size, **shape)


def _varlen(block_size: int, blocks: int, off: int, new: int, **shape: Any) -> Attention:
    """Two chunks, the second a prompt's first, and a sequence without new tokens."""
    before = (max(blocks * block_size + off - new, 0), 0, 5)
    return Attention(new=(new, 2, 0), before=before, block_size=block_size, **shape)


def _mixed(block_size: int, blocks: int, off: int, new: int, **shape: Any) -> Attention:
    """All of these."""
    end = blocks * block_size + off
    before = (end - 1, max(end - new, 0), 5, 0)
    return Attention(new=(1, new, 0, 1), before=before, block_size=block_size, **shape)
