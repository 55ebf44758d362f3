"""Drawing tokens: the place where the running sum of probabilities passes the answer's random number.

Sums are float64. No result depends on the other rows: each row's sums run over its own numbers in a fixed order. A
draw from all tokens runs over them by id, one from a part of them from the likeliest down; which of the two it is
depends on the row's parameters alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from paceline_runtime.model.sampling import flat
from paceline_runtime.model.sampling.order import bound_of_largest, candidates, descending, find
from paceline_runtime.model.sampling.state import SamplingState

HOTTEST: Final = 1e30
"""A higher temperature is treated as this one: all tokens are equally likely long before, and float32 ends at 3e38."""

_TOGETHER: Final = 1 << 21
"""Logits that are worked on together on a CPU: 8 MiB of float32, and a few times this for what is between."""
_BLOCK: Final = 64
"""Weights that are summed together first: then one block of them is looked into."""
_FEW: Final = 512
"""About how many tokens the first bound of a nucleus leaves at most; most distributions of real models need fewer."""
_MARGIN: Final = 1e-3
"""How far bounds are set too low, so that rounding takes no token that belongs in; which stay is decided exactly."""


def draw(logits: torch.Tensor, best: torch.Tensor, states: Sequence[SamplingState]) -> list[int]:
    """Draw one token for each row.

    Args:
        logits: [R, vocab] (float32, contiguous), overwritten. Each row has a finite maximum and no NaN.
        best: these maxima [R].
        states: of each row; none of them is greedy.
    """
    step = max(1, _TOGETHER // logits.shape[1]) if flat.by_numpy(logits) else len(states)
    tokens: list[int] = []
    for start in range(0, len(states), step):
        rows = slice(start, start + step)
        tokens += _draw(logits[rows], best[rows], states[rows])
    return tokens


def _draw(logits: torch.Tensor, best: torch.Tensor, states: Sequence[SamplingState]) -> list[int]:
    uniform = torch.tensor([state.uniform() for state in states], dtype=torch.float64, device=logits.device)
    scaled = _scale(logits, best, states)
    tokens = torch.zeros(len(states), dtype=torch.int64, device=logits.device)
    groups = (
        (_from_all, [row for row, state in enumerate(states) if not state.truncates]),
        (_from_nucleus, [row for row, state in enumerate(states) if state.top_k == 0 and state.top_p < 1.0]),
        (
            _from_largest,
            [row for row, state in enumerate(states) if state.truncates and (state.top_k > 0 or state.top_p == 1.0)],
        ),
    )
    for way, members in groups:
        if len(members) == len(states):
            tokens = way(scaled, states, uniform)
        elif members:
            tokens[members] = way(scaled[members], [states[row] for row in members], uniform[members])
    chosen: list[int] = tokens.tolist()
    return chosen


def _scale(logits: torch.Tensor, best: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    """Logits over temperature, in place; the maximum is taken off first, so that nothing overflows upwards."""
    logits.sub_(best.unsqueeze(1))
    if any(state.temperature != 1.0 for state in states):
        temperature = [min(state.temperature, HOTTEST) for state in states]
        logits.div_(torch.tensor(temperature, dtype=logits.dtype, device=logits.device).unsqueeze(1))
    return logits


def _from_all(scaled: torch.Tensor, states: Sequence[SamplingState], uniform: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(scaled, dim=-1, out=scaled)
    sums = _block_sums(weights)
    running = sums.cumsum(dim=-1)
    target = uniform * running[:, -1]
    block = _passes(running, target)
    before = torch.where(block > 0, running.gather(1, (block - 1).clamp(min=0).unsqueeze(1)).squeeze(1), 0.0)
    tokens = block.unsqueeze(1) * _BLOCK + torch.arange(_BLOCK, device=scaled.device)
    vocab = scaled.shape[1]
    inside = (weights.gather(1, tokens.clamp(max=vocab - 1)) * (tokens < vocab)).double()
    return block * _BLOCK + _passes(inside.cumsum(dim=-1), target - before)


def _from_largest(scaled: torch.Tensor, states: Sequence[SamplingState], uniform: torch.Tensor) -> torch.Tensor:
    """With top-k, or with min-p alone: which tokens remain can be told from the logits."""
    limits = _Limits.of(states, scaled)
    bound = limits.min_p.log().float() - _MARGIN
    some_k = [row for row, state in enumerate(states) if state.top_k > 0]
    if some_k:
        bound[some_k] = bound_of_largest(scaled[some_k], limits.top_k[some_k].squeeze(1))
    tokens = torch.zeros_like(uniform, dtype=torch.int64)
    for rows, found, ids in candidates(scaled, bound):
        some = limits.rows(rows)
        ordered = descending(found)
        weights = ordered.double().exp()
        weights.masked_fill_(torch.arange(weights.shape[1], device=weights.device) >= some.top_k, 0.0)
        running = weights.cumsum(dim=-1)
        rank = _rank(weights, running, running[:, -1:], some, uniform[rows])
        tokens[rows] = _nth(found, ids, ordered, rank)
    return tokens


def _from_nucleus(scaled: torch.Tensor, states: Sequence[SamplingState], uniform: torch.Tensor) -> torch.Tensor:
    """With top-p and no top-k: the likeliest tokens that together have this share of the whole.

    If the tokens above a bound have it, the set is among them. That is tried with a bound which leaves few; it always
    holds for (1 - top_p) / vocab, as all tokens below together have less than 1 - top_p.
    """
    limits = _Limits.of(states, scaled)
    weights = torch.softmax(scaled, dim=-1, out=scaled)
    whole = _block_sums(weights).cumsum(dim=-1)[:, -1:]
    rest = (1.0 - limits.top_p) * whole
    heaviest = weights.amax(dim=-1, keepdim=True).double()
    surely = torch.maximum(rest / weights.shape[1], limits.min_p * heaviest)
    tokens = torch.zeros_like(uniform, dtype=torch.int64)
    open_rows = torch.arange(len(states), device=scaled.device)
    for bound in (torch.maximum(rest / _FEW, surely), surely):
        reached = torch.ones_like(open_rows, dtype=torch.bool)
        lowest = torch.minimum(bound, heaviest)[open_rows] * (1.0 - _MARGIN)
        members = weights if len(open_rows) == len(states) else weights[open_rows]
        for some, found, ids in candidates(members, lowest.float()):
            rows = open_rows[some]
            ordered = descending(found)
            heavy = ordered.double().clamp(min=0.0)
            running = heavy.cumsum(dim=-1)
            reached[some] = (running[:, -1:] >= limits.top_p[rows] * whole[rows]).squeeze(1)
            rank = _rank(heavy, running, whole[rows], limits.rows(rows), uniform[rows])
            tokens[rows] = _nth(found, ids, ordered, rank)
        open_rows = open_rows[~(reached | (bound <= surely).squeeze(1)[open_rows])]
        if not len(open_rows):
            break
    return tokens


@dataclass(frozen=True, slots=True)
class _Limits:
    """The three ways to cut of each row, each [R, 1]."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def of(cls, states: Sequence[SamplingState], like: torch.Tensor) -> _Limits:
        top_k = torch.tensor([state.top_k or like.shape[1] for state in states], device=like.device)
        top_p = torch.tensor([state.top_p for state in states], dtype=torch.float64, device=like.device)
        min_p = torch.tensor([state.min_p for state in states], dtype=torch.float64, device=like.device)
        return cls(top_k.unsqueeze(1), top_p.unsqueeze(1), min_p.unsqueeze(1))

    def rows(self, rows: torch.Tensor) -> _Limits:
        return _Limits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def _rank(
    weights: torch.Tensor, running: torch.Tensor, whole: torch.Tensor, limits: _Limits, uniform: torch.Tensor
) -> torch.Tensor:
    """Which of a row's weights is drawn [r], counted from 0.

    Args:
        weights: [r, k] (float64), the largest first, and `running` their running sum.
        whole: the weight [r, 1] of which top-p takes its share.
    """
    # A token is kept if those before it do not reach top_p yet; the first always is.
    keep = weights >= limits.min_p * weights[:, :1]
    keep[:, 1:] &= running[:, :-1] < limits.top_p * whole
    running = (weights * keep).cumsum(dim=-1)
    return _passes(running, uniform * running[:, -1])


def _nth(found: torch.Tensor, ids: torch.Tensor, ordered: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """The tokens [r] of these ranks."""
    return ids.gather(1, find(found, ordered, rank).unsqueeze(1)).squeeze(1)


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """Sums of 64 weights each [R, ceil(vocab / 64)] (float64).

    The order in which torch adds up one long row may depend on its threads and on the other rows.
    """
    blocks, rest = divmod(weights.shape[1], _BLOCK)
    sums = weights[:, : blocks * _BLOCK].view(weights.shape[0], blocks, _BLOCK).sum(dim=-1, dtype=torch.float64)
    if rest:
        tail = weights[:, blocks * _BLOCK :].sum(dim=-1, keepdim=True, dtype=torch.float64)
        sums = torch.cat((sums, tail), dim=1)
    return sums


def _passes(running: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The place [R] in each row [R, n] of running sums where the target [R] is passed; it always has some weight.

    Rounding could leave the target at the total or above; then the place that reaches the total is meant.
    """
    places = torch.searchsorted(running, target.unsqueeze(1), right=True)
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    return torch.minimum(places, last).squeeze(1)
