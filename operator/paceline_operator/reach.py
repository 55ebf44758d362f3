"""Pools that are too short for the request shapes they claim: nothing of such a shape ever runs there. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from paceline_crds.names import DEFAULT_POOL
from paceline_crds.routing import Shape, ShapeThresholds
from paceline_crds.service import InferenceServiceSpec

from .render import Desired

LONG_INPUT, LONG_OUTPUT, VERY_LONG = 2048, 512, 16384
"""Where shapes begin unless the spec says otherwise, in tokens: as the schema of `ShapeThresholds` tells, and the
router has it."""


def least_tokens(shape: Shape, thresholds: ShapeThresholds | None) -> int:
    """Prompt and answer together of the shortest request of a shape; each has one token at least."""
    given = thresholds or ShapeThresholds()
    long_input = given.long_input_tokens or LONG_INPUT
    if shape is Shape.LONG_INPUT_SHORT_OUTPUT:
        return long_input + 1
    if shape is Shape.SHORT_INPUT_LONG_OUTPUT:
        return (given.long_output_tokens or LONG_OUTPUT) + 1
    if shape is Shape.VERY_LONG:
        # A long conversation is one as well, from a long input on.
        return max(2, min(given.very_long_tokens or VERY_LONG, long_input + 1))
    return 2


def out_of_reach(spec: InferenceServiceSpec, desired: Desired) -> str:
    """Which pools are too short for which of their shapes, and what to write; empty where none is.

    `default` claims nothing: it takes what is left, and what is too long is answered by `routing.overLong`.
    """
    thresholds = spec.routing.shapes if spec.routing else None
    shapes: Mapping[str, list[Shape]] = {pool.name: pool.shapes or [] for pool in spec.pools or ()}
    words = []
    for pool in desired.pools:
        longest = pool.config.parameters.max_model_len
        least = {shape: least_tokens(shape, thresholds) for shape in shapes.get(pool.name, ())}
        beyond = {shape: tokens for shape, tokens in least.items() if tokens > longest}
        if pool.name == DEFAULT_POOL or not beyond:
            continue
        named = ", ".join(f"{shape} (from {tokens} tokens on)" for shape, tokens in beyond.items())
        words.append(
            f"pool {pool.name} claims {named}, and takes {longest} tokens of prompt and answer together at most: "
            "every such request is too long for it; write runtime.maxModelLen of that pool: "
            f"{max(beyond.values())} at least, and as long as these requests get"
        )
    return "; ".join(words)
