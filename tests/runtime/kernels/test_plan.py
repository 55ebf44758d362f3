"""What the host decides before a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline_runtime.kernels.plan import AttentionPlan, AttentionShape, plan_attention
from paceline_runtime.kernels.tiling import (
    MAX_SPLITS,
    check_heads,
    choose_splits,
    decode_tile,
    tokens_per_tile,
    varlen_tile,
)

SHAPE = AttentionShape(heads=24, kv_heads=8, head_dim=128, element_bytes=2)


def plan(new: list[int], before: list[int], num_splits: int | None = None) -> AttentionPlan:
    query_lens = np.array(new, dtype=np.int32)
    seq_lens = query_lens + np.array(before, dtype=np.int32)
    starts = torch.from_numpy(np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32))
    return plan_attention(
        torch.zeros(len(new), 1, dtype=torch.int32),
        torch.from_numpy(seq_lens),
        starts,
        host_seq_lens=seq_lens,
        host_query_lens=query_lens,
        shape=SHAPE,
        processors=132,
        to_device=torch.from_numpy,
        num_splits=num_splits,
    )


def test_every_new_token_is_computed_once() -> None:
    new = [1, 300, 0, 1, 2, 64, 1]
    made = plan(new, [5, 0, 9, 0, 1000, 64, 7])
    covered = {(int(sequence), 0) for sequence in made.decodes}
    assert made.tile_tokens == tokens_per_tile(varlen_tile(3, 128, 2).rows, 3)
    for sequence, first in made.tiles.T.tolist():
        tokens = {(sequence, token) for token in range(first, min(first + made.tile_tokens, new[sequence]))}
        assert tokens
        assert not tokens & covered
        covered |= tokens
    assert covered == {(sequence, token) for sequence, count in enumerate(new) for token in range(count)}


def test_tiles_with_the_most_context_start_first_and_lie_row_by_row_in_memory() -> None:
    made = plan([40, 40, 100], [0, 5000, 10])
    assert made.tiles[0, 0] == 1
    assert made.tiles.is_contiguous()
    context = [[0, 5000, 10][sequence] + first for sequence, first in made.tiles.T.tolist()]
    assert context == sorted(context, reverse=True)


def test_a_step_without_sequences_of_one_kind_has_an_empty_plan_for_it() -> None:
    assert plan([1, 1], [3, 4]).tiles.shape == (2, 0)
    assert plan([7, 0], [3, 4]).decodes.shape == (0,)


@pytest.mark.parametrize(
    ("programs", "longest", "splits"),
    [
        (16, 100_000, 32),  # two sequences: four programs for each of 132 multiprocessors, rounded down
        (8, 600, 2),  # too short for more
        (8, 10, 1),
        (2048, 100_000, 1),  # enough programs without
        (1, 10_000_000, MAX_SPLITS),
        (0, 0, 1),
    ],
)
def test_contexts_are_split_where_programs_are_few_and_contexts_long(programs: int, longest: int, splits: int) -> None:
    assert choose_splits(programs, longest, 132, tile_tokens=64) == splits


def test_a_fixed_number_of_splits_is_kept_whatever_is_in_the_step() -> None:
    assert plan([1] * 200, [9] * 200, num_splits=16).num_splits == plan([1], [90000], num_splits=16).num_splits == 16


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 8, 64])
def test_tiles_hold_a_whole_group_and_no_less_than_tensor_cores_multiply(
    group: int, head_dim: int, element_bytes: int
) -> None:
    for tile in (decode_tile(group, head_dim, element_bytes), varlen_tile(group, head_dim, element_bytes)):
        assert tile.rows >= max(16, group)
        assert tile.tokens >= 16
        assert tile.dims >= head_dim
        for size in (tile.rows, tile.tokens, tile.dims):
            assert size & (size - 1) == 0


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 2, 64), (65, 1, 64), (8, 8, 512), (8, 8, 20)])
def test_shapes_that_no_kernel_takes_are_refused(heads: int, kv_heads: int, head_dim: int) -> None:
    with pytest.raises(ValueError, match="heads"):
        check_heads(heads, kv_heads, head_dim)
