"""Batch sizes, the arrays of a step and the memory they are copied from: all on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.model.device.block_rows import BlockRows
from paceline_runtime.model.device.buckets import bucket_for, bucket_sizes
from paceline_runtime.model.device.staging import ALIGNMENT, Staging, step_bytes
from paceline_runtime.model.device.step_arrays import NOWHERE, is_decode, step_arrays
from paceline_runtime.model.inputs import SequenceInput

CPU = torch.device("cpu")
BLOCK = 4


@given(st.integers(1, 1024))
def test_every_batch_has_a_size_and_few_places_stay_empty(most: int) -> None:
    sizes = bucket_sizes(most)
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[-1] == most
    for count in range(1, most + 1):
        size = bucket_for(count, sizes)
        assert size is not None
        assert count <= size < 2 * count
        assert count < 8 or size <= 1.5 * count
    assert bucket_for(most + 1, sizes) is None
    assert bucket_for(0, sizes) is None


@st.composite
def steps(draw: st.DrawFn) -> list[SequenceInput]:
    """Sequences with blocks of their own, which hold their tokens or more."""
    free = list(range(200))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        start, new = draw(st.integers(0, 30)), draw(st.integers(1, 9))
        blocks = [free.pop() for _ in range(-(-(start + new) // BLOCK) + draw(st.integers(0, 2)))]
        tokens = draw(st.lists(st.integers(0, 500), min_size=new, max_size=new))
        found.append(SequenceInput(tokens, start, blocks, draw(st.integers(0, new))))
    return found


@given(steps(), st.integers(0, 4), st.integers(0, 3))
def test_tokens_are_written_to_the_sequences_own_blocks_and_padding_nowhere(
    seqs: list[SequenceInput], padding: int, wider: int
) -> None:
    width = max(len(seq.blocks) for seq in seqs) + wider
    arrays = step_arrays(seqs, BLOCK, places=len(seqs) + padding, width=width)
    wanted = [
        (token, seq.start + i, seq.blocks[(seq.start + i) // BLOCK] * BLOCK + (seq.start + i) % BLOCK)
        for seq in seqs
        for i, token in enumerate(seq.tokens)
    ]
    real = len(wanted)
    got = list(zip(arrays.token_ids.tolist(), arrays.positions.tolist(), arrays.slot_mapping.tolist(), strict=True))
    assert got == wanted + [(0, 0, NOWHERE)] * padding
    assert arrays.query_lens.tolist() == [len(seq.tokens) for seq in seqs] + [1] * padding
    assert arrays.seq_lens.tolist() == [seq.start + len(seq.tokens) for seq in seqs] + [0] * padding
    assert np.diff(arrays.query_start_loc).tolist() == arrays.query_lens.tolist()
    rows = []
    for end, seq in zip(arrays.query_start_loc[1:].tolist(), seqs, strict=False):
        rows += range(end - seq.num_logits, end)
    assert arrays.logit_rows.tolist() == rows + list(range(real, real + padding))
    assert arrays.block_table.shape == (len(seqs) + padding, width)
    for row, seq in zip(arrays.block_table.tolist(), seqs, strict=False):
        assert row[: len(seq.blocks)] == seq.blocks


def test_a_decode_is_one_token_in_and_one_out() -> None:
    decode = SequenceInput([1], 3, [0], 1)
    assert is_decode([decode, decode])
    assert not is_decode([decode, SequenceInput([1], 3, [0], 0)])
    assert not is_decode([decode, SequenceInput([1, 2], 3, [0, 1], 1)])


arrays_of_integers = st.lists(
    st.tuples(st.sampled_from((np.int32, np.int64)), st.sampled_from(((0,), (1,), (7,), (2, 0), (3, 5), (2, 33)))),
    max_size=8,
)


@given(arrays_of_integers, st.booleans())
def test_what_was_put_is_on_the_device_once_it_is_sent(shapes: list[tuple[type, tuple[int, ...]]], fits: bool) -> None:
    staging = Staging(CPU)
    if fits:
        staging.reserve(8 * 1024)
    addresses = []
    for turn in range(3):
        arrays = [np.full(shape, turn * 10 + i, dtype=kind) for i, (kind, shape) in enumerate(shapes)]
        bundle = staging.begin(8 * 1024)
        placed = [bundle.put(array) for array in arrays]
        bundle.send()
        for array, tensor in zip(arrays, placed, strict=True):
            assert torch.equal(tensor, torch.from_numpy(array))
            assert array.size == 0 or tensor.data_ptr() % min(ALIGNMENT, array.itemsize) == 0
        addresses.append([tensor.data_ptr() for tensor in placed])
    assert not fits or addresses[0] == addresses[1] == addresses[2]


@given(steps(), st.integers(0, 4))
def test_the_bytes_set_aside_hold_a_step_and_its_plan(seqs: list[SequenceInput], padding: int) -> None:
    arrays = step_arrays(seqs, BLOCK, places=len(seqs) + padding)
    tokens, sequences = len(arrays.token_ids), len(arrays.seq_lens)
    size = step_bytes(tokens=tokens, seqs=sequences, width=arrays.block_table.shape[1], logits=len(arrays.logit_rows))
    bundle = Staging(CPU).begin(size)
    most_decodes, most_tiles = np.zeros(sequences, dtype=np.int32), np.zeros((2, tokens), dtype=np.int32)
    for array in (
        *(arrays.token_ids, arrays.positions, arrays.slot_mapping, arrays.logit_rows),
        *(arrays.block_table, arrays.seq_lens, arrays.query_start_loc, most_decodes, most_tiles),
    ):
        bundle.put(array)
    assert bundle.nbytes <= size
    with pytest.raises(ValueError, match="set aside"):
        bundle.put(np.zeros(size // 8 + 1, dtype=np.int64))


def test_a_step_that_lost_its_memory_to_later_ones_is_not_run() -> None:
    staging = Staging(CPU)
    staging.reserve(1024)
    first, second = staging.begin(1024), staging.begin(1024)
    first_at, second_at = (bundle.put(np.full(4, i, dtype=np.int64)) for i, bundle in enumerate((first, second)))
    first.send()
    assert first_at.tolist() == [0] * 4
    second.send()
    assert second_at.tolist() == [1] * 4
    third = staging.begin(1024)
    fourth = staging.begin(1024)
    with pytest.raises(RuntimeError, match="prepared"):
        second.send()
    third.send()
    fourth.send()


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(("grow", "replace", "release", "none"))), max_size=30))
def test_rows_follow_lists_that_are_changed_in_place(changes: list[tuple[int, str]]) -> None:
    numbers = iter(range(1000))
    tables = [[next(numbers)] for _ in range(5)]
    rows = BlockRows()
    for which, change in changes:
        if change == "grow":
            tables[which].append(next(numbers))
        elif change == "replace" and tables[which]:
            tables[which][0] = next(numbers)
        elif change == "release":
            tables[which] = []
        seen = tables[: which + 1]
        assert [row.tolist() for row in rows.take(seen)] == seen


def test_a_row_is_made_once_while_its_list_stays_as_it_is() -> None:
    rows, table = BlockRows(), [1, 2, 3]
    [first] = rows.take([table])
    assert rows.take([table])[0] is first
    table.append(4)
    assert rows.take([table])[0] is not first
