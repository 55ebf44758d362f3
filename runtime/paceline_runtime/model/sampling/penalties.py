"""What is taken off tokens that were there already, kept up to date token by token.

Per distinct token there is one entry; a new token changes one of them. A step reads and writes these logits only, for
all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.sampling.flat import Ids, flat_index, put, take


class PenaltyTable:
    """Tokens of one sequence that are penalised, and how.

    Attributes:
        repetition: divides positive and multiplies negative logits of all tokens in the table (Keskar et al., "CTRL",
            2019, with the sign minded as transformers does).
    """

    __slots__ = ("_counts", "_frequency", "_ids", "_presence", "_size", "_slots", "_subtract", "repetition")

    def __init__(self, params: SamplingParams, prompt_token_ids: Iterable[int]) -> None:
        self.repetition = params.repetition_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        # Frequency and presence count the answer only; the prompt matters to repetition alone.
        prompt = sorted(set(prompt_token_ids)) if self.repetition != 1.0 else []
        self._slots = {token: slot for slot, token in enumerate(prompt)}
        self._size = len(prompt)
        capacity = max(64, 2 * self._size)
        self._ids: Ids = np.zeros(capacity, np.int64)
        self._ids[: self._size] = prompt
        self._counts = np.zeros(capacity, np.int64)
        self._subtract = np.zeros(capacity, np.float32)

    def add(self, token_id: int) -> None:
        """Count one more token of the answer."""
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = self._size
            if slot == len(self._ids):
                # Doubling: a token costs the same on average, however many there are.
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
                self._subtract = np.concatenate((self._subtract, np.zeros_like(self._subtract)))
            self._ids[slot] = token_id
            self._size += 1
        count = int(self._counts[slot]) + 1
        self._counts[slot] = count
        self._subtract[slot] = self._frequency * count + self._presence

    @property
    def token_ids(self) -> Ids:
        """Penalised tokens, each once [n]."""
        return self._ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How often each of them is in the answer [n]."""
        return self._counts[: self._size]

    @property
    def subtract(self) -> npt.NDArray[np.float32]:
        """What frequency and presence take off each of them [n]."""
        return self._subtract[: self._size]


def penalise(logits: torch.Tensor, rows: Sequence[int], tables: Sequence[PenaltyTable]) -> None:
    """Apply each table to its row of logits [R, vocab], in place: repetition first, then frequency and presence."""
    index = flat_index(rows, [table.token_ids for table in tables], logits.shape[-1])
    if not len(index):
        return
    values = take(logits, index)
    if any(table.repetition != 1.0 for table in tables):
        repetition = np.repeat(
            np.array([table.repetition for table in tables], np.float32), [len(table.token_ids) for table in tables]
        )
        factor = torch.from_numpy(repetition).to(logits.device)
        values = torch.where(values < 0, values * factor, values / factor)
    values -= torch.from_numpy(np.concatenate([table.subtract for table in tables])).to(logits.device)
    put(logits, index, values)
