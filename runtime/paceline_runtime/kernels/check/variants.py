"""Which forms of each kernel are compiled: every feature at one shape, every shape without features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from paceline_runtime.kernels import gpu
from paceline_runtime.kernels.check.attention_cases import BLOCK_SIZES, FORMATS, HEAD_DIMS, make_cache
from paceline_runtime.kernels.check.pairs import every_pair
from paceline_runtime.kernels.check.parity import DTYPES, short
from paceline_runtime.kernels.interface import AttentionOptions
from paceline_runtime.kernels.plan import AttentionShape, plan_attention

BF16 = torch.bfloat16
Extent = Literal["few", "pairs", "full"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A launch, which compiles one or two kernels."""

    name: str
    launch: Callable[[], object]


PROPERTIES: dict[str, Sequence[Any]] = {
    "dtype": (BF16, torch.float16, torch.float32),
    "kept": FORMATS,
    "head_dim": HEAD_DIMS,
    # One, odd and even, a power of two, more than a tile of the tensor cores has rows.
    "group": (1, 3, 4, 7, 8, 64),
    "block_size": BLOCK_SIZES,
    "window": (0, 4096),
    "soft_cap": (0.0, 30.0),
    "splits": (1, 8),
}


def compile_variants(extent: Extent) -> Iterator[Variant]:
    """The forms.

    Args:
        extent: `few`: those of one model (bfloat16, four heads of 128 to a key head), the same with all features, and
            the largest. `pairs`: also every pair of properties. `full`: also each value of each beside that model.
    """
    yield attention(BF16)
    yield attention(BF16, kept="fp8-head", window=4096, soft_cap=30.0)
    yield attention(torch.float32, head_dim=256, kept="int8-token")
    full = extent != "few"
    if full:
        for kept in ("int8-token", "fp8-token"):
            yield attention(BF16, kept=kept)
        for row in every_pair(PROPERTIES):
            yield attention(**row)
        for splits in (2, 4, 16, 32, 64):
            yield attention(BF16, splits=splits)
    if extent == "full":
        yield from _each_beside_one_model()
    for dtype in DTYPES if full else (BF16,):
        yield from layers(dtype, full=full)
    yield Variant("vocabulary of 128256", _sample)


def _each_beside_one_model() -> Iterator[Variant]:
    for dtype in DTYPES:
        for kept in FORMATS:
            yield attention(dtype, kept=kept)
        for head_dim in HEAD_DIMS:
            for group in (1, 8):
                yield attention(dtype, head_dim=head_dim, group=group)
        for window, soft_cap in ((4096, 0.0), (0, 30.0), (4096, 30.0)):
            yield attention(dtype, window=window, soft_cap=soft_cap)
    for group in (2, 3, 5, 6, 7, 16, 64):
        yield attention(BF16, group=group)
    for block_size in (8, 32, 64):
        yield attention(BF16, block_size=block_size)
    yield attention(BF16, splits=1)


def attention(
    dtype: torch.dtype,
    *,
    head_dim: int = 128,
    group: int = 4,
    block_size: int = 16,
    kept: str = "plain",
    window: int = 0,
    soft_cap: float = 0.0,
    splits: int = 8,
) -> Variant:
    """Decode (with its reduce step) and varlen attention."""
    name = f"{short(dtype)}, {kept}, {group} heads of {head_dim} to a key head, blocks of {block_size}"
    name += f", {splits} splits" + (", window" if window else "") + (", soft cap" if soft_cap else "")

    def launch() -> None:
        kv_heads = 8
        new = np.array([1, 16], dtype=np.int32)
        query = torch.zeros(17, group * kv_heads, head_dim, dtype=dtype)
        plan = plan_attention(
            torch.zeros(2, 16, dtype=torch.int32),
            torch.from_numpy(new),
            torch.tensor([0, 1, 17], dtype=torch.int32),
            host_seq_lens=new,
            host_query_lens=new,
            shape=AttentionShape(group * kv_heads, kv_heads, head_dim, dtype.itemsize),
            processors=132,
            to_device=torch.from_numpy,
            num_splits=splits,
        )
        cache = make_cache(kept, dtype, 2, block_size, kv_heads, head_dim)
        options = AttentionOptions(head_dim**-0.5, window, soft_cap)
        gpu.decode_attention(query, cache, plan, options, torch.empty_like(query))
        gpu.varlen_attention(query, cache, plan, options, torch.empty_like(query))

    return Variant(name, launch)


def layers(dtype: torch.dtype, *, full: bool) -> Iterator[Variant]:
    """All that is not attention, at the sizes of common models."""
    for kept in FORMATS if full else ("plain", "fp8-token"):
        yield Variant(f"{short(dtype)}, {kept}, 8 heads of 128", partial(_write_kv, dtype, kept))
    for width in (576, 2048, 4096, 8192, 16384) if full else (4096,):
        yield Variant(f"{short(dtype)}, rows of {width}", partial(_rows, dtype, width))
    for head_dim in HEAD_DIMS if full else (128,):
        yield Variant(f"{short(dtype)}, 40 heads of {head_dim}", partial(_rotate, dtype, head_dim))


def _write_kv(dtype: torch.dtype, kept: str) -> None:
    new = torch.zeros(1, 8, 128, dtype=dtype)
    gpu.write_kv(new, new, make_cache(kept, dtype, 1, 16, 8, 128), torch.zeros(1, dtype=torch.int64))


def _rows(dtype: torch.dtype, width: int) -> None:
    x = torch.zeros(1, width, dtype=dtype)
    gpu.rms_norm(x, x[0], 1e-5)
    gpu.add_rms_norm(x, x.clone(), x[0], 1e-5)
    gpu.silu_and_mul(torch.cat((x, x), dim=1))


def _rotate(dtype: torch.dtype, head_dim: int) -> None:
    table = torch.zeros(16, head_dim // 2)
    gpu.rotate(torch.zeros(1, 40, head_dim, dtype=dtype), torch.zeros(1, dtype=torch.int64), table, table)


def _sample() -> None:
    ones = torch.ones(1, dtype=torch.float64)
    gpu.sample(torch.zeros(1, 128256), ones.long(), ones, ones, ones)
