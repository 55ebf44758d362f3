"""Attention over a scattered cache, whose every unused slot holds NaN (in int8: the largest number)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from paceline_runtime.kernels import reference
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


def attention_cases(gpu: Kernels, *, full: bool) -> Iterator[Case]:
    """Decodes, chunks and mixed steps over all head sizes, group sizes and block sizes."""
    for kernel, make in (("decode_attention", _decode), ("varlen_attention", _varlen), ("mixed steps", _mixed)):
        for number in range(240 if full else 40 if make is _decode else 20):
            attention = make(number, random.Random(number), full)
            yield Case(kernel, attention.dtype, attention.name, partial(attention.run, gpu))


def _shape(number: int, chance: random.Random) -> dict[str, object]:
    """Shapes that go through all sizes: 5, 8, 4 and 3 come together in any combination."""
    return {
        "dtype": DTYPES[number % 3],
        "group": number % 8 + 1,
        "kv_heads": chance.choice((1, 1, 2)),
        "head_dim": HEAD_DIMS[number % 5],
        # Not in step with the group sizes.
        "block_size": BLOCK_SIZES[(number + number // 8) % 4],
        "kept": FORMATS[number // 2 % 5] if number % 2 else "plain",
        "window": chance.choice((0, 0, 1, 5, 33)),
        "soft_cap": chance.choice((0.0, 0.0, 4.0)),
        "num_splits": chance.choice((1, 2, 4)),
    }


def _around(block_size: int, chance: random.Random, full: bool) -> int:
    """A context length, most often at the border of a block."""
    blocks = chance.randint(1, 6 if full else 2)
    return chance.choice((0, 1, chance.randint(2, 40), *(blocks * block_size + off for off in (-1, 0, 1))))


def _decode(number: int, chance: random.Random, full: bool) -> Attention:
    shape = _shape(number, chance)
    before = tuple(_around(int(shape["block_size"]), chance, full) for _ in range(3))  # type: ignore[call-overload]
    # Places of a captured graph that no sequence has: one new token, and a length of 0.
    return Attention(new=(1, 1, 1, 1), before=(*before, -1), **shape)  # type: ignore[arg-type]


def _varlen(number: int, chance: random.Random, full: bool) -> Attention:
    shape = _shape(number, chance)
    before = tuple(_around(int(shape["block_size"]), chance, full) for _ in range(2))  # type: ignore[call-overload]
    new = (chance.choice((2, 3, 17)), chance.choice((2, 9, 40)))
    return Attention(new=(*new, 0), before=(*before, 5), **shape)  # type: ignore[arg-type]


def _mixed(number: int, chance: random.Random, full: bool) -> Attention:
    shape = _shape(number, chance)
    before = tuple(_around(int(shape["block_size"]), chance, full) for _ in range(4))  # type: ignore[call-overload]
    return Attention(new=(1, chance.randint(2, 20), 0, 1), before=before, **shape)  # type: ignore[arg-type]
