"""Which of the five shapes a request has: a pure function of a few numbers, and the words for its decision."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from paceline_crds.routing import Shape, ShapeThresholds
from paceline_router.table.policy import SHAPES

SHORT_SHORT: Final = SHAPES.index(Shape.SHORT_INPUT_SHORT_OUTPUT)
LONG_INPUT: Final = SHAPES.index(Shape.LONG_INPUT_SHORT_OUTPUT)
LONG_OUTPUT: Final = SHAPES.index(Shape.SHORT_INPUT_LONG_OUTPUT)
VERY_LONG: Final = SHAPES.index(Shape.VERY_LONG)
STRUCTURED: Final = SHAPES.index(Shape.STRUCTURED_OR_PARALLEL)


class Structure(enum.IntEnum):
    """What makes a request structured or parallel."""

    NONE = 0
    FORMAT = 1
    TOOLS = 2
    PARALLEL = 3


STRUCTURE_WORDS: Final = {
    Structure.FORMAT: "it asks for a response_format",
    Structure.TOOLS: "it has tools",
    Structure.PARALLEL: "it asks for {n} answers, {limit} or more count as parallel",
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`ShapeThresholds` with the defaults that the schema names. Tokens, messages, answers."""

    long_input: int = 2048
    long_output: int = 512
    very_long: int = 16384
    many_turns: int = 12
    parallel: int = 2

    @classmethod
    def of(cls, spec: ShapeThresholds | None) -> Thresholds:
        """Those of a spec; a field left out has its default."""
        if spec is None:
            return cls()
        given = {
            "long_input": spec.long_input_tokens,
            "long_output": spec.long_output_tokens,
            "very_long": spec.very_long_tokens,
            "many_turns": spec.many_turns,
            "parallel": spec.parallel_samples,
        }
        return cls(**{name: value for name, value in given.items() if value is not None})


def classify(prompt: int, output: int, turns: int, structure: int, thresholds: Thresholds) -> int:
    """The shape, as an index into `SHAPES`. The first that holds:

    1. VeryLong: prompt and answer together, or a long conversation. First, because length is what breaks a pool that is
       not made for it (memory, everybody's stalls), whatever else the request asks for.
    2. StructuredOrParallel: what a mask or several answers cost comes with each token, at any length.
    3. LongInputShortOutput: the harm that a request does to others comes with its prompt, at once; so a long input
       decides also where the answer is long, which then only holds a slot in a pool that is made for long inputs.
    4. ShortInputLongOutput.
    5. ShortInputShortOutput: the rest.

    Args:
        prompt: tokens.
        output: expected tokens of all answers.
        turns: messages; may be 0 (not counted) while the input is not long.
        structure: a `Structure`.
        thresholds: where one begins.
    """
    if prompt >= thresholds.long_input:
        if prompt + output >= thresholds.very_long or turns >= thresholds.many_turns:
            return VERY_LONG
        return STRUCTURED if structure else LONG_INPUT
    if prompt + output >= thresholds.very_long:
        return VERY_LONG
    if structure:
        return STRUCTURED
    return LONG_OUTPUT if output >= thresholds.long_output else SHORT_SHORT


def reason(prompt: int, output: int, turns: int, structure: int, n: int, thresholds: Thresholds) -> str:
    """Why `classify` decides as it does, with the numbers and thresholds that decided."""
    t = thresholds
    if prompt + output >= t.very_long:
        return f"{prompt} + {output} tokens are {t.very_long} or more"
    if prompt >= t.long_input and turns >= t.many_turns:
        return f"{turns} messages are {t.many_turns} or more, and {prompt} tokens of input {t.long_input} or more"
    if structure:
        return STRUCTURE_WORDS[Structure(structure)].format(n=n, limit=t.parallel)
    if prompt >= t.long_input:
        also = f" (a long input decides, though the answer is expected at {output})" if output >= t.long_output else ""
        return f"{prompt} tokens of input are {t.long_input} or more{also}"
    if output >= t.long_output:
        return f"{output} expected tokens of output are {t.long_output} or more, {prompt} of input under {t.long_input}"
    return f"{prompt} tokens of input are under {t.long_input}, {output} expected of output under {t.long_output}"
