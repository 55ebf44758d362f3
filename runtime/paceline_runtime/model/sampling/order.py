"""The likeliest tokens without sorting the vocabulary.

The order is always the same: the larger value first, of equal ones the lower id. On a CPU numpy finds maxima and places
several times faster than torch, on the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from paceline_runtime.model.sampling import flat

_BLOCK: Final = 64
"""Values of which the maximum is taken first."""
_WIDE: Final = 2048
"""A row with more candidates is looked at alone, so that it does not widen the others."""


def argmax(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum of each row of [R, n] and its lowest place: ([R], [R] int64). With a NaN in a row it is NaN."""
    if flat.by_numpy(values):
        places = torch.from_numpy(values.numpy().argmax(axis=-1))
        return values.gather(1, places.unsqueeze(1)).squeeze(1), places
    best = values.max(dim=-1)
    return best.values, best.indices


def bound_of_largest(values: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A number that at least k values of a row reach, and not many more.

    The k-th largest of the maxima of blocks is one: each of k blocks holds a value that reaches it.

    Args:
        values: [R, n].
        k: for each row [R] (int64), at least 1.

    Returns:
        [R, 1]; -inf where all values have to be looked at, since blocks would be too small to spare anything.
    """
    rows, n = values.shape
    most = int(k.max())
    block = min(_BLOCK, n // (4 * most))
    if block < 8:
        return values.new_full((rows, 1), -torch.inf)
    blocks = n // block
    maxima = values[:, : blocks * block].view(rows, blocks, block).amax(dim=-1)
    bounds: torch.Tensor = maxima.topk(most, dim=-1).values.gather(1, k.unsqueeze(1) - 1)
    return bounds


def candidates(values: torch.Tensor, bound: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Values that reach the bound of their row, and their places, in the order of places.

    Rows with few of them come together; one with many comes alone and whole, which is faster than picking them out.

    Args:
        values: [R, n] (contiguous), no NaN.
        bound: [R, 1].

    Yields:
        Which rows [r] (int64), their values [r, k] and these values' places [r, k] (int64), filled up with -inf and 0.
    """
    n = values.shape[1]
    device = values.device
    if flat.by_numpy(values):
        # Row by row: one row at a time stays in the processor's cache.
        found = [np.flatnonzero(row >= least) for row, least in zip(values.numpy(), bound.numpy(), strict=True)]
        counts = torch.tensor([len(places) for places in found])
        narrow = (counts <= _WIDE).nonzero().squeeze(1)
        few = [found[row] for row in narrow.tolist()]
        place = torch.from_numpy(np.concatenate(few)) if few else counts.new_zeros(0)
    else:
        reach = values >= bound
        counts = reach.sum(dim=-1)
        narrow = (counts <= _WIDE).nonzero().squeeze(1)
        place = reach[narrow].nonzero()[:, 1]
    if len(narrow):
        count = counts[narrow]
        line = torch.repeat_interleave(torch.arange(len(narrow), device=device), count)
        column = torch.arange(len(place), device=device) - (count.cumsum(0) - count)[line]
        shape = (len(narrow), int(count.max()))
        picked, places = values.new_full(shape, -torch.inf), place.new_zeros(shape)
        picked[line, column] = values.view(-1)[narrow[line] * n + place]
        places[line, column] = place
        yield narrow, picked, places
    for row in (counts > _WIDE).nonzero().squeeze(1).tolist():
        yield torch.tensor([row], device=device), values[row : row + 1], torch.arange(n, device=device).unsqueeze(0)


def descending(values: torch.Tensor) -> torch.Tensor:
    """The values of each row of [R, k], the largest first. Only they are sorted, since that is fast; see `find`."""
    if flat.by_numpy(values):
        return torch.from_numpy(-np.sort(-values.numpy(), axis=-1))
    return values.sort(dim=-1, descending=True).values


def find(values: torch.Tensor, ordered: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """Where in each row the value is that has a given rank in `ordered`; equal ones rank in the order of places.

    Args:
        values: [R, k].
        ordered: the same values by `descending`.
        rank: [R] (int64), counted from 0.

    Returns:
        [R] (int64).
    """
    wanted = ordered.gather(1, rank.unsqueeze(1))
    first_rank = torch.searchsorted(-ordered, -wanted).squeeze(1)
    line, place = (values == wanted).nonzero(as_tuple=True)
    first = torch.searchsorted(line, torch.arange(len(rank), device=values.device))
    return place[first + rank - first_rank]


def largest(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest values of each row of [R, n] (contiguous) and their places, in order: ([R, k], [R, k] int64).

    A row with a NaN gives any.
    """
    rows, k = values.shape[0], min(k, values.shape[1])
    ordered = values.new_full((rows, k), -torch.inf)
    places = torch.zeros((rows, k), dtype=torch.int64, device=values.device)
    bound = bound_of_largest(values, torch.full((rows,), k, device=values.device))
    for some, found, where in candidates(values, bound):
        best, order = found.sort(dim=-1, descending=True, stable=True)
        width = min(k, best.shape[1])
        ordered[some, :width], places[some, :width] = best[:, :k], where.gather(1, order[:, :k])
    return ordered, places


def num_larger(values: torch.Tensor, than: torch.Tensor) -> list[int]:
    """How many values of each row of [R, n] are larger than the row's own [R, 1]."""
    if flat.by_numpy(values):
        pairs = zip(values.numpy(), than.numpy(), strict=True)
        return [int(np.count_nonzero(row > value)) for row, value in pairs]
    counts: list[int] = (values > than).sum(dim=-1).tolist()
    return counts
