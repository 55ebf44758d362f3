"""Knobs of the engine that may follow load: what a spec allows, what a replica is told, what was decided."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from .base import Model
from .fields import rule, rules
from .routing import WeekTime


class Knob(enum.StrEnum):
    """A limit of the scheduler that costs neither memory nor a restart, as long as it is no higher than at the start.

    What the engine took for the highest value stays as it is: activations, captured graphs, the KV cache. So each of
    them may go below that and back, between any two steps, and no answer changes.
    """

    MAX_NUM_SEQS = "maxNumSeqs"
    MAX_BATCHED_TOKENS = "maxBatchedTokens"
    PREFILL_CHUNK_TOKENS = "prefillChunkTokens"


FIELDS: Final[Mapping[Knob, str]] = {
    Knob.MAX_NUM_SEQS: "max_num_seqs",
    Knob.MAX_BATCHED_TOKENS: "max_batched_tokens",
    Knob.PREFILL_CHUNK_TOKENS: "prefill_chunk_tokens",
}
"""The parameter of `RuntimeParameters` that each knob is."""

TUNING_PATH: Final = "/v1/paceline/tuning"
"""Of a replica. `PUT {"poolHash": …, "knobs": {…}}`: these are in effect from the next step on, the others as at the
start."""

TUNED: Final = "tuned"
"""Origin, in what a replica reports, of a value that was changed while it ran; `set` beside it is the one before."""

RANGE_RULE = rule("self.min <= self.max", "min has to be at most max", field_path=".min")


class SeqsRange(Model):
    """How far a number of requests may go."""

    min: Annotated[int, Field(ge=1, le=4096, description="The fewest.")]
    max: Annotated[int, Field(ge=1, le=4096, description="The most; never more than what replicas start with.")]


class TokensRange(Model):
    """How far a number of tokens may go."""

    min: Annotated[int, Field(ge=16, le=1_000_000, description="The fewest.")]
    max: Annotated[int, Field(ge=16, le=1_000_000, description="The most; never more than what replicas start with.")]


def _seqs() -> Any:
    return Field(description="Most requests in one batch.", json_schema_extra=rules(RANGE_RULE))


def _budget() -> Any:
    return Field(description="Token budget of one engine step.", json_schema_extra=rules(RANGE_RULE))


def _chunk() -> Any:
    return Field(description="Most prompt tokens of one request in one step.", json_schema_extra=rules(RANGE_RULE))


class RangesAtTimeSpec(WeekTime):
    """Other limits at some time of the week; of a knob that is left out the usual ones hold on."""

    max_num_seqs: Annotated[SeqsRange | None, _seqs()] = None
    max_batched_tokens: Annotated[TokensRange | None, _budget()] = None
    prefill_chunk_tokens: Annotated[TokensRange | None, _chunk()] = None


AT_TIME_RULE = rule(
    " || ".join(f"has(self.{knob})" for knob in Knob),
    f"write what is different meanwhile: some of {', '.join(Knob)}",
)


class AutoRangesSpec(Model):
    """Knobs that follow load, each within its limits. What is left out stays as it is."""

    max_num_seqs: Annotated[SeqsRange | None, _seqs()] = None
    max_batched_tokens: Annotated[TokensRange | None, _budget()] = None
    prefill_chunk_tokens: Annotated[TokensRange | None, _chunk()] = None
    schedules: Annotated[
        list[Annotated[RangesAtTimeSpec, Field(json_schema_extra=rules(AT_TIME_RULE))]] | None,
        Field(
            max_length=16,
            description="Other limits at some times of the week, of knobs that have usual ones. With min and max alike "
            "a knob is set. Of several that hold the first counts.",
        ),
    ] = None


AT_TIMES_RULE = rule(
    "!has(self.schedules) || self.schedules.all(s, "
    + " && ".join(f"(!has(s.{knob}) || has(self.{knob}))" for knob in Knob)
    + ")",
    "a schedule changes the limits of knobs that have usual ones: write these too, beside schedules",
    field_path=".schedules",
)
"""Of `AutoRangesSpec`."""

AUTO_RANGES_RULES = tuple(
    rule(
        f"!has(self.autoRanges) || !has(self.autoRanges.{knob}) || !has(self.{knob}) || "
        f"self.autoRanges.{knob}.max <= self.{knob}",
        message_expression=f"'{knob} is %d, and a replica takes memory for no more: lower autoRanges.{knob}.max (%d), "
        f"or raise {knob}'.format([self.{knob}, self.autoRanges.{knob}.max])",
        field_path=".autoRanges",
    )
    for knob in Knob
)
"""Of `RuntimeSpec`. Where the parameter is left out, the range ends at what it is resolved to."""


class TuningStatus(Model):
    """What a pool's knobs are, and what made them so."""

    pool: Annotated[str, Field(description="Name of the pool.")]
    knobs: Annotated[dict[str, int], Field(description="What was decided, by knob.")]
    started: Annotated[dict[str, int], Field(description="What replicas start with, by knob.")]
    reason: Annotated[str, Field(description="One word for programs.")]
    message: Annotated[str, Field(description="A sentence for people, of the moment when it was decided so.")] = ""
    since: Annotated[str, Field(description="When knobs or reason last changed (RFC 3339).")]
    inputs: Annotated[
        dict[str, str] | None, Field(description="The numbers of that moment; one that was not known is absent.")
    ] = None
