"""The numbers of one step: which token goes where. On the host, without a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline_runtime.model.inputs import SequenceInput

NOWHERE = -1
"""The slot of a padded place: its key and value are written nowhere."""


@dataclass(frozen=True, slots=True)
class StepArrays:
    """One step, with T tokens, B sequences and R rows of logits. A sequence's new tokens are neighbours.

    Attributes:
        token_ids, positions: [T] int64; a position is a token's place in its sequence.
        slot_mapping: [T] int64, block × block_size + offset of each new token; `NOWHERE` at a padded place.
        logit_rows: [R] int64, the rows of T whose next token is asked for.
        block_table: [B, W] int32, filled up with 0.
        seq_lens: [B] int32, tokens after this step; 0 at a padded place.
        query_lens: [B] int32, new tokens; 1 at a padded place.
        query_start_loc: [B + 1] int32, where each sequence's new tokens start in T.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slot_mapping: NDArray[np.int64]
    logit_rows: NDArray[np.int64]
    block_table: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    query_lens: NDArray[np.int32]
    query_start_loc: NDArray[np.int32]


def is_decode(seqs: Sequence[SequenceInput]) -> bool:
    """Every sequence has one new token and wants one more."""
    return all(len(seq.tokens) == 1 and seq.num_logits == 1 for seq in seqs)


def step_arrays(
    seqs: Sequence[SequenceInput], block_size: int, *, places: int | None = None, width: int | None = None
) -> StepArrays:
    """The arrays of a step of these sequences.

    Args:
        places: how many sequences the step has room for (at least as many as there are): the last ones are padding of
            one token each, which reads no cache and writes nowhere, with a row of logits that nobody asked for.
        width: columns of the block table; as many as needed where absent.
    """
    padding = 0 if places is None else places - len(seqs)
    query_lens = np.array([*(len(seq.tokens) for seq in seqs), *[1] * padding], dtype=np.int32)
    seq_lens = np.array([*(seq.start + len(seq.tokens) for seq in seqs), *[0] * padding], dtype=np.int32)
    ends = np.cumsum(query_lens)
    total = int(ends[-1]) if len(ends) else 0
    most = max((len(seq.blocks) for seq in seqs), default=0) if width is None else width
    table = np.zeros((len(query_lens), most), dtype=np.int32)
    tokens, positions = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    slots = np.full(total, NOWHERE, dtype=np.int64)
    rows: list[int] = []
    end = 0
    for row, seq in enumerate(seqs):
        start, end = end, end + len(seq.tokens)
        table[row, : len(seq.blocks)] = seq.blocks
        where = np.arange(seq.start, seq.start + len(seq.tokens))
        tokens[start:end], positions[start:end] = seq.tokens, where
        slots[start:end] = table[row, where // block_size] * np.int64(block_size) + where % block_size
        rows += range(end - seq.num_logits, end)
    return StepArrays(
        token_ids=tokens,
        positions=positions,
        slot_mapping=slots,
        logit_rows=np.array([*rows, *range(end, total)], dtype=np.int64),
        block_table=table,
        seq_lens=seq_lens,
        query_lens=query_lens,
        query_start_loc=np.concatenate(([0], ends)).astype(np.int32),
    )
