"""Everything that changes logits before a token is chosen, in the order that `SamplingParams` states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline_runtime.model.sampling.flat import flat_index, put, take
from paceline_runtime.model.sampling.masks import allow_only, apply_masks, forbid
from paceline_runtime.model.sampling.penalties import penalise
from paceline_runtime.model.sampling.state import ADJUSTS, SamplingState


def adjust(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Change logits [R, vocab] (float32, contiguous) in place; row i belongs to `states[i]`. Plain rows are free."""
    members = [(row, state) for row, state in enumerate(states) if state.needs & ADJUSTS]
    tables = [(row, state.penalties) for row, state in members if state.penalties is not None]
    if tables:
        penalise(logits, [row for row, _ in tables], [table for _, table in tables])
    biases = [(row, *state.bias) for row, state in members if state.bias is not None]
    if biases:
        index = flat_index([row for row, _, _ in biases], [ids for _, ids, _ in biases], logits.shape[-1])
        values = torch.from_numpy(np.concatenate([values for _, _, values in biases])).to(logits.device)
        put(logits, index, take(logits, index) + values)
    allowed = [(row, state.allowed) for row, state in members if state.allowed is not None]
    if allowed:
        allow_only(logits, [row for row, _ in allowed], [ids for _, ids in allowed])
    forbidden = [(row, ids) for row, state in members for ids in state.forbidden()]
    if forbidden:
        forbid(logits, [row for row, _ in forbidden], [ids for _, ids in forbidden])
    masks = [(row, state.allowed_mask) for row, state in members if state.allowed_mask is not None]
    if masks:
        apply_masks(logits, [row for row, _ in masks], [mask for _, mask in masks])
