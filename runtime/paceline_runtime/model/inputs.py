"""What the engine asks the model for in one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """New tokens of one sequence.

    Attributes:
        tokens: ids of the new tokens, at least one.
        start: position of the first of them; all before it are in the cache.
        blocks: the sequence's blocks, which have room for the new tokens.
        num_logits: after how many of the last of these tokens the next one is asked for: 0, 1, or more for the log
            probabilities of a prompt.
    """

    tokens: list[int]
    start: int
    blocks: list[int]
    num_logits: int
