"""From logits to tokens, for all rows of a batch at once, with each row blind to the others.

Every answer has its own random stream: the number for its n-th token is a function of its seed and n alone. Together
with rows that never see each other this makes an answer the same whatever runs beside it, in whatever chunks its prompt
was computed and however often it was preempted.

| module | subject |
|---|---|
| `state`, `stream` | what is kept of one answer, its random numbers |
| `check` | which values may be asked for |
| `adjust`, `penalties`, `bad_words`, `masks` | what changes logits |
| `draw`, `order` | choosing a token |
| `on_device` | which draws a device makes itself |
| `logprobs` | what is reported of it |
| `flat`, `threads` | reading and writing single logits; by one thread |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from paceline_runtime.messages import TokenLogprob
from paceline_runtime.model.sampling.adjust import adjust
from paceline_runtime.model.sampling.check import check_sampling
from paceline_runtime.model.sampling.draw import draw
from paceline_runtime.model.sampling.logprobs import prompt_logprobs, token_logprobs
from paceline_runtime.model.sampling.on_device import Draws, drawable, draws_of
from paceline_runtime.model.sampling.order import argmax
from paceline_runtime.model.sampling.state import ADJUSTS, DRAWS, REPORTS, SamplingState
from paceline_runtime.model.sampling.threads import one_thread

__all__ = [
    "Draws",
    "Sampled",
    "SamplingState",
    "check_sampling",
    "drawable",
    "draws_of",
    "likely",
    "prompt_logprobs",
    "sample",
]

NO_NUMBERS: Final = "the model's output is not a number"
NOTHING_ALLOWED: Final = (
    "no token may come next: together, the allowed tokens, bad_words and min_tokens of this request leave none"
)


class Sampled(NamedTuple):
    """One row's result.

    Attributes:
        token: `None` where none could be chosen; `fault` then says why.
        logprob: where asked for.
        fault: for people.
    """

    token: int | None
    logprob: TokenLogprob | None = None
    fault: str | None = None


def likely(token: int, logit: float) -> Sampled:
    """A row's result, from its token and its highest logit."""
    return Sampled(token) if math.isfinite(logit) else Sampled(None, fault=NO_NUMBERS)


def sample(logits: torch.Tensor, states: Sequence[SamplingState], rows: Sequence[int] | None = None) -> list[Sampled]:
    """Choose the next token of each answer. The states are not changed: append what was chosen.

    Args:
        logits: [R, vocab] (float32), may be overwritten.
        states: of the answers.
        rows: the row of logits of each state, where that is not simply its own place; several may share one.
    """
    with torch.inference_mode(), one_thread():
        return _sample(logits, states, rows)


def _sample(logits: torch.Tensor, states: Sequence[SamplingState], rows: Sequence[int] | None) -> list[Sampled]:
    if rows is not None and (len(rows) != logits.shape[0] or any(row != i for i, row in enumerate(rows))):
        logits = logits[list(rows)]
    elif len(states) != logits.shape[0]:
        raise ValueError(f"{len(states)} states for {logits.shape[0]} rows of logits; say which row each one needs")
    if not states:
        return []
    needs = 0
    for state in states:
        needs |= state.needs
    if needs & ADJUSTS:
        logits = logits.contiguous()
        adjust(logits, states)
    best, likeliest = argmax(logits)
    maxima: list[float] = best.tolist()
    tokens: list[int | None] = likeliest.tolist()
    good = [math.isfinite(value) for value in maxima]
    if not all(good):
        tokens = [token if fine else None for token, fine in zip(tokens, good, strict=True)]
    if needs & DRAWS:
        drawing = [row for row, state in enumerate(states) if state.needs & DRAWS and good[row]]
        if drawing:
            whole = len(drawing) == len(states) and not needs & REPORTS
            picked = draw(
                logits.contiguous() if whole else logits[drawing],
                best if whole else best[drawing],
                [states[row] for row in drawing],
            )
            for row, token in zip(drawing, picked, strict=True):
                tokens[row] = token
    if not needs & REPORTS and all(good):
        return [Sampled(token) for token in tokens]
    return _with_reports(logits, states, tokens, maxima)


def _with_reports(
    logits: torch.Tensor, states: Sequence[SamplingState], tokens: Sequence[int | None], maxima: Sequence[float]
) -> list[Sampled]:
    members: list[int] = []
    chosen: list[int] = []
    counts: list[int] = []
    for row, (token, state) in enumerate(zip(tokens, states, strict=True)):
        if token is not None and state.params.logprobs is not None:
            members.append(row)
            chosen.append(token)
            counts.append(state.params.logprobs)
    reports: dict[int, TokenLogprob | None] = {}
    if members:
        wanted = logits.contiguous() if len(members) == len(states) else logits[members]
        reports = dict(zip(members, token_logprobs(wanted, chosen, counts), strict=True))
    return [
        Sampled(token, reports.get(row))
        if token is not None
        else Sampled(None, fault=NOTHING_ALLOWED if state.needs & ADJUSTS and maximum == -math.inf else NO_NUMBERS)
        for row, (token, state, maximum) in enumerate(zip(tokens, states, maxima, strict=True))
    ]
