"""A step between its begin and its end: what was asked of the model, and what its results will be needed for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from paceline_runtime.messages import StepPhases, TokenOutput
from paceline_runtime.model.inputs import SequenceInput
from paceline_runtime.model.sampling import SamplingState

from .batch import Batch, ScheduledSeq
from .request import Request


@dataclass(slots=True)
class Seconds:
    """`StepPhases` in the making."""

    prepare: float = 0.0
    forward: float = 0.0
    sync: float = 0.0
    sample: float = 0.0
    update: float = 0.0

    def phases(self, deliver: float) -> StepPhases:
        """With the time that sending the outputs of the step before took."""
        return StepPhases(
            prepare=self.prepare,
            forward=self.forward,
            sync=self.sync,
            sample=self.sample,
            update=self.update,
            deliver=deliver,
        )


@dataclass(slots=True)
class Work:
    """What the model was given.

    Attributes:
        wanted: of each sequence, the positions whose next token of the prompt is looked at.
        counts: of each sequence, its rows of logits.
        choices, rows, states: who gets a token, from which row of logits, and how.
        prepared: monotonic seconds at which the inputs were there.
        chosen: waits for a token of each row and its highest logit; else `logits` are what comes.
        advanced: the scheduler knows of it.
    """

    wanted: list[range]
    counts: list[int]
    choices: list[Request]
    rows: list[int]
    states: list[SamplingState]
    prepared: float
    chosen: Callable[[], list[tuple[int, float]]] | None = None
    logits: torch.Tensor | None = None
    advanced: bool = False

    def keep(self, requests: Iterable[Request]) -> None:
        """Let go of all that have ended meanwhile; those that stay have their own rows, as before."""
        staying = set(requests)
        kept = [i for i, request in enumerate(self.choices) if request in staying]
        self.choices, self.rows, self.states = (
            [self.choices[i] for i in kept],
            [self.rows[i] for i in kept],
            [self.states[i] for i in kept],
        )


@dataclass(slots=True)
class BegunStep:
    """A step that was begun.

    Attributes:
        started: monotonic seconds.
        batch: `None` if there is nothing to do.
        outputs: of requests that ended without it.
        starts: of each sequence, its tokens in the cache before the step.
        work: `None` if blocks were moved and that was all.
    """

    started: float
    batch: Batch | None
    outputs: list[TokenOutput]
    starts: list[int] = field(default_factory=list)
    work: Work | None = None
    seconds: Seconds = field(default_factory=Seconds)


def num_logits(seq: ScheduledSeq, positions: range) -> int:
    """Rows of logits that the model is asked for: all from the first wanted position on, or the last one, or none."""
    if positions:
        return seq.request.num_computed + seq.count - positions.start
    return 1 if seq.samples else 0


def choices_of(batch: Batch, counts: Sequence[int]) -> tuple[list[Request], list[int]]:
    """Who gets a token, and from which row of logits.

    Args:
        counts: of each sequence, its rows.
    """
    choices: list[Request] = []
    rows: list[int] = []
    end = 0
    for seq, count in zip(batch.seqs, counts, strict=True):
        end += count
        choices += seq.choices
        rows += [end - 1] * len(seq.choices)
    return choices, rows


def sequence_input(seq: ScheduledSeq, count: int) -> SequenceInput:
    """The new tokens of a sequence, of which the last `count` are asked for the next one."""
    request, start = seq.request, seq.request.num_computed
    return SequenceInput(request.tokens[start : start + seq.count], start, request.blocks, count)
