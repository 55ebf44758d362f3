"""The rows of block tables as arrays, kept from step to step.

A sequence's blocks are a list that rarely changes: one is added every `block_size` tokens. Making an array of it anew
in each step would be most of what the host does in one (256 sequences of 4 Ki tokens: some ten milliseconds).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int32]


class BlockRows:
    """Rows of the sequences of the last step. Not thread-safe."""

    def __init__(self) -> None:
        # By the list's identity, which stays its own for as long as it is held here; with what was in it.
        self._kept: dict[int, tuple[list[int], list[int], Row]] = {}

    def take(self, tables: Iterable[list[int]]) -> list[Row]:
        """The blocks of each sequence as an array; lists may be changed between calls."""
        before, self._kept = self._kept, {}
        rows = []
        for blocks in tables:
            entry = before.get(id(blocks))
            # Equal lists are mostly lists of the very same numbers, which is seen without looking at any of them.
            if entry is None or entry[1] != blocks:
                entry = (blocks, blocks.copy(), np.array(blocks, dtype=np.int32))
            self._kept[id(blocks)] = entry
            rows.append(entry[2])
        return rows
