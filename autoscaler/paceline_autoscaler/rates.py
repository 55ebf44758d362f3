"""What a replica does per second, learnt from what replicas say of their own steps. Pure: memory is a value.

A replica counts its steps, the seconds that they took, and the tokens that it computed and made in them. Between two
looks `seconds = steps x floor + prompt tokens / prefill rate + answer tokens / decode rate`; the three that are sought
are the least squares over many looks at many replicas, none below zero (Lawson and Hanson 1974; of three unknowns all
seven sets are tried). Columns that always move together, as steps and answer tokens of a batch of one, share what they
explain: a ridge that is small against what tells them apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .capacity import Rates

MEMORY_SECONDS = 1800.0
"""Seconds of work after which what was seen before counts for a third: prompts may become other ones."""

LEAST_SECONDS = 3.0
"""Seconds of work from which rates are known."""

RIDGE = 1e-3
LEAST_SHARE = 0.01
"""A token never takes less than this share of all seconds by all tokens of its kind."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one replica did between two looks: seconds of its steps, how many, and their tokens."""

    seconds: float
    steps: float
    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class Learnt:
    """What was seen so far, as sums of products, the older ones smaller.

    Attributes:
        products: of steps, prefill and decode with each other, row by row.
        explained: the same three with the seconds.
        totals: steps, prefill and decode.
        seconds: of work.
    """

    products: tuple[float, ...] = (0.0,) * 9
    explained: tuple[float, ...] = (0.0,) * 3
    totals: tuple[float, ...] = (0.0,) * 3
    seconds: float = 0.0


def learn(learnt: Learnt, work: Work) -> Learnt:
    """With one look more; one without a step tells nothing."""
    if work.steps <= 0 or work.seconds <= 0:
        return learnt
    kept = math.exp(-work.seconds / MEMORY_SECONDS)
    row = (work.steps, work.prefill, work.decode)
    pairs = itertools.product(row, row)
    return Learnt(
        tuple(kept * old + one * other for old, (one, other) in zip(learnt.products, pairs, strict=True)),
        tuple(kept * old + one * work.seconds for old, one in zip(learnt.explained, row, strict=True)),
        tuple(kept * old + one for old, one in zip(learnt.totals, row, strict=True)),
        kept * learnt.seconds + work.seconds,
    )


def rates_of(learnt: Learnt, max_running: float = math.inf, step_tokens: float = math.inf) -> Rates | None:
    """The rates; None while too little was seen of prompts or of answers.

    Args:
        max_running: requests that a replica runs at a time.
        step_tokens: prompt tokens that one step has room for.
    """
    _, prefill, decode = learnt.totals
    if learnt.seconds < LEAST_SECONDS or prefill <= 0 or decode <= 0:
        return None
    floor, per_prompt, per_answer = _least_squares(learnt)
    prompt = max(per_prompt, LEAST_SHARE * learnt.seconds / prefill)
    answer = max(per_answer, LEAST_SHARE * learnt.seconds / decode)
    return Rates(
        prefill=1.0 / prompt,
        decode=1.0 / answer,
        floor=floor,
        max_running=max_running,
        full_step=floor + step_tokens * prompt,
    )


def _least_squares(learnt: Learnt) -> tuple[float, ...]:
    """Seconds of a step, of a prompt token and of an answer token that explain the most, none below zero."""
    scales = [math.sqrt(learnt.products[4 * place]) or 1.0 for place in range(3)]
    matrix = [
        [learnt.products[3 * i + j] / scales[i] / scales[j] + (RIDGE if i == j else 0.0) for j in range(3)]
        for i in range(3)
    ]
    right = [explained / scale for explained, scale in zip(learnt.explained, scales, strict=True)]
    best, most = (0.0, 0.0, 0.0), -math.inf
    for size in (1, 2, 3):
        for places in itertools.combinations(range(3), size):
            found = _solve([[matrix[i][j] for j in places] for i in places], [right[i] for i in places])
            # Of a set's solution `right . x` is what it explains.
            explains = sum(right[i] * x for i, x in zip(places, found, strict=True))
            if min(found) >= 0 and explains > most:
                most = explains
                values = dict(zip(places, found, strict=True))
                best = (values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0))
    return tuple(x / scale for x, scale in zip(best, scales, strict=True))


def _solve(matrix: list[list[float]], right: Sequence[float]) -> list[float]:
    """Of a small positive definite system (the ridge sees to that), by elimination."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [b - factor * a for a, b in zip(rows[i], rows[j], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found
