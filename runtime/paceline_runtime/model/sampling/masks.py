"""Which tokens may come next: -inf for the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline_runtime.model.sampling.flat import Ids, flat_index, put, take


def allow_only(logits: torch.Tensor, rows: Sequence[int], allowed: Sequence[Ids]) -> None:
    """Forbid all tokens of each row of logits [R, vocab] but these, in place."""
    index = flat_index(rows, allowed, logits.shape[-1])
    kept = take(logits, index)
    logits[list(rows)] = -torch.inf
    put(logits, index, kept)


def forbid(logits: torch.Tensor, rows: Sequence[int], forbidden: Sequence[Ids]) -> None:
    """Forbid these tokens of each row of logits [R, vocab], in place; a row may come several times."""
    put(logits, flat_index(rows, forbidden, logits.shape[-1]), -np.inf)


def apply_masks(logits: torch.Tensor, rows: Sequence[int], masks: Sequence[torch.Tensor]) -> None:
    """Forbid what is False in each row's mask [vocab] (bool), in place."""
    for row, mask in zip(rows, masks, strict=True):
        logits[row].masked_fill_(~mask.to(logits.device), -torch.inf)
