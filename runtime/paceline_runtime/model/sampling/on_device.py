"""Draws that a device makes itself, so that no logits have to come to the host.

It takes rows that are greedy or drawn with temperature, top-k, top-p and min-p. Where logits are changed first, or
log-probabilities are asked for, the general sampler takes the whole batch: it waits for the device several times. Both
take the same random numbers and the same order of tokens, so an answer does not depend on which of them took it, but
for draws within rounding of a border between two tokens (weights are float32 on a GPU).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline_runtime.model.sampling.draw import HOTTEST
from paceline_runtime.model.sampling.state import ADJUSTS, DRAWS, REPORTS, SamplingState


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row of logits [R] becomes a token; see `Kernels.sample`.

    Attributes:
        temperature: float32.
        top_k: int64; all tokens are the largest number.
        top_p, min_p, uniform: float64.
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    uniform: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Sequence[tuple[float, int, float, float, float]]) -> Draws:
        """Of rows of (temperature, top-k, top-p, min-p, uniform)."""
        temperature, top_k, top_p, min_p, uniform = zip(*rows, strict=True) if rows else ((),) * 5
        return cls(
            np.array(temperature, dtype=np.float32),
            np.array(top_k, dtype=np.int64),
            np.array(top_p, dtype=np.float64),
            np.array(min_p, dtype=np.float64),
            np.array(uniform, dtype=np.float64),
        )

    @classmethod
    def greedy(cls, rows: int) -> Draws:
        """The likeliest token of each row."""
        return cls.of([_GREEDY] * rows)


_ALL = np.iinfo(np.int64).max
_GREEDY = (1.0, 1, 1.0, 0.0, 0.0)


def drawable(states: Iterable[SamplingState]) -> bool:
    """Whether the device can choose the tokens of all of these."""
    return not any(state.needs & (ADJUSTS | REPORTS) for state in states)


def draws_of(states: Sequence[SamplingState], rows: Sequence[int], num_rows: int, *, ahead: int = 0) -> Draws | None:
    """The draws of a step; `None` where it needs the general sampler.

    Args:
        rows: the row of logits of each state: each its own, in order, else it is the general sampler's.
        num_rows: all rows of logits.
        ahead: tokens that will have been made by then, and are not known yet.
    """
    if len(states) != num_rows or any(row != i for i, row in enumerate(rows)):
        return None
    if not drawable(states):
        return None
    return Draws.of(
        [
            (min(state.temperature, HOTTEST), state.top_k or _ALL, state.top_p, state.min_p, state.uniform(ahead))
            if state.needs & DRAWS
            else _GREEDY
            for state in states
        ]
    )
