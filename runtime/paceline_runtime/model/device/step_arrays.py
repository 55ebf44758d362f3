"""The numbers of one step: which token goes where. On the host, without a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

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
    seqs: Sequence[SequenceInput],
    block_size: int,
    *,
    block_rows: Sequence[NDArray[np.int32]] | None = None,
    places: int | None = None,
    width: int | None = None,
) -> StepArrays:
    """The arrays of a step of these sequences.

    Args:
        block_rows: the sequences' blocks, where they are at hand as arrays.
        places: how many sequences the step has room for (at least as many as there are): the last ones are padding of
            one token each, which reads no cache and writes nowhere, with a row of logits that nobody asked for.
        width: columns of the block table; as many as needed where absent.
    """
    if block_rows is None:
        block_rows = [np.array(seq.blocks, dtype=np.int32) for seq in seqs]
    padding = 0 if places is None else places - len(seqs)
    # Padded places have one new token at position -1.
    starts = np.array([*(seq.start for seq in seqs), *[-1] * padding], dtype=np.int64)
    counts = np.array([*(len(seq.tokens) for seq in seqs), *[1] * padding], dtype=np.int64)
    wanted = np.array([*(seq.num_logits for seq in seqs), *[1] * padding], dtype=np.int64)
    table = np.zeros((len(counts), max(map(len, block_rows), default=0) if width is None else width), dtype=np.int32)
    for row, blocks in zip(table, block_rows, strict=False):
        row[: len(blocks)] = blocks

    ends = np.cumsum(counts)
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(owner))
    where = place + (starts + counts - ends)[owner]
    real = len(owner) - padding
    tokens = np.zeros(len(owner), dtype=np.int64)
    tokens[:real] = list(chain.from_iterable([seq.tokens for seq in seqs]))
    slots = np.full(len(owner), NOWHERE, dtype=np.int64)
    mine = where[:real]
    slots[:real] = table[owner[:real], mine // block_size] * np.int64(block_size) + mine % block_size
    return StepArrays(
        token_ids=tokens,
        positions=np.maximum(where, 0),
        slot_mapping=slots,
        logit_rows=np.flatnonzero(place >= (ends - wanted)[owner]),
        block_table=table,
        seq_lens=(starts + counts).astype(np.int32),
        query_lens=counts.astype(np.int32),
        query_start_loc=np.concatenate(([0], ends)).astype(np.int32),
    )
