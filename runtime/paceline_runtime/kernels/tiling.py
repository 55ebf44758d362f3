"""Sizes of tiles: pure functions of shapes and types, so that the offline check compiles what a GPU will run.

No size depends on how many sequences a step has. What a token's attention is summed up from, and in which order, then
depends on its own sequence, on the number of splits and on which of the two kernels takes it.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_GROUP = 64
"""Query heads that share a key head: their rows of a tile have to fit the registers."""

MAX_SPLITS = 64
"""The reduce step reads all splits of a head at once."""

DECODES_PER_PROCESSOR = 4
"""Programs of the decode kernel that a multiprocessor holds, with heads of 128 in 16 bits (`check compile`)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel cuts its work.

    Attributes:
        rows: query rows of a program (a power of two, at least 16: the smallest product of the tensor cores).
        tokens: keys in one step of the inner loop (likewise).
        dims: the head's elements, filled up to a power of two.
        warps, stages: of Triton; stages are tiles of keys and values on their way at once.
    """

    rows: int
    tokens: int
    dims: int
    warps: int
    stages: int


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n (n ≥ 1)."""
    return 1 << (n - 1).bit_length()


def check_heads(heads: int, kv_heads: int, head_dim: int) -> int:
    """Query heads for each key head.

    Raises:
        ValueError: for a shape that the kernels do not take.
    """
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} key-value heads")
    group = heads // kv_heads
    if group > MAX_GROUP:
        raise ValueError(f"{group} query heads share a key-value head; at most {MAX_GROUP} can")
    if not 16 <= head_dim <= 256 or head_dim % 8:
        raise ValueError(f"heads have {head_dim} elements; a multiple of 8 from 16 to 256 is needed")
    return group


def decode_tile(group: int, head_dim: int, element_bytes: int) -> Tile:
    """One token of a sequence against a part of its context.

    All query heads of a key head are the rows, so that keys and values are read once; a group below 16 leaves rows of
    the tensor core idle, which costs nothing while memory is the limit. Tiles of keys and of values take 16 KiB each.
    Triton has one of each on its way in a program (the block table's own load takes the other stage), so that four
    programs, which a multiprocessor holds, have 128 KiB on their way while one of them computes.

    Args:
        element_bytes: of the activations, to which keys and values are widened.
    """
    dims = next_power_of_2(head_dim)
    tokens = max(16, min(128, 16384 // (dims * element_bytes)))
    return Tile(max(16, next_power_of_2(group)), tokens, dims, warps=4, stages=3)


def varlen_tile(group: int, head_dim: int, element_bytes: int) -> Tile:
    """Neighbouring new tokens of a sequence (times the heads of a group) against its context.

    Sums (rows × dims) and scores (rows × tokens), both float32, live in registers: with 8 warps a thread has 32 + 16 of
    each for heads of 128, and none spill; with 4 warps they do on 8.0. float32 has no tensor cores that keep its
    precision, and multiplies in registers: the smallest tiles.
    """
    dims = next_power_of_2(head_dim)
    if element_bytes == 4:
        return Tile(max(16, next_power_of_2(group)), 32 if dims <= 128 else 16, dims, warps=8, stages=1)
    rows = max(64, next_power_of_2(group))
    return Tile(rows, 64 if dims <= 128 else 32, dims, warps=8 if dims > 64 else 4, stages=2)


def tokens_per_tile(rows: int, group: int) -> int:
    """New tokens whose `group` rows fit into a tile."""
    return rows // group


def choose_splits(programs: int, longest: int, processors: int, tile_tokens: int) -> int:
    """Into how many parts the context of each decode is cut: a power of two up to `MAX_SPLITS`.

    Enough to fill the multiprocessors, but no part below four tiles, so that the reduce step stays small beside it.

    Args:
        programs: sequences × key heads.
        longest: tokens of the longest context.
        processors: multiprocessors of the device.
    """
    wanted = max(1, DECODES_PER_PROCESSOR * processors // max(programs, 1))
    useful = max(1, longest // (4 * tile_tokens))
    splits = min(wanted, useful, MAX_SPLITS)
    return 1 << (splits.bit_length() - 1)
