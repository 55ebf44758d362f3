"""One request's two answers, compared."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .answers import Answer, Asked, Mode
from .both import Both
from .distance import first_divergence, normalised_edit_distance
from .validity import json_valid, refused, tool_calls_valid


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the candidate's answer differs from the base's.

    Attributes:
        mode: how the two were made.
        unit: what positions and lengths count: `tokens` where both sides' ids are known, else `characters`.
        exact: text, tool calls and tokens are the same. None unless replayed, as are the next two.
        first_divergence: in units, from 0; None as well where the sequences are equal (tool calls may still differ).
        distance: normalised edit distance, 0 to 1.
        length: units of each answer.
        finish_reason: as sent, or None.
        refused: whether it declines.
        json_valid: whether it is the JSON that was asked for, or None where that is no question.
        tool_calls_valid: the same of its tool calls.
    """

    mode: Mode
    unit: str
    exact: bool | None
    first_divergence: int | None
    distance: float | None
    length: Both[int]
    finish_reason: Both[str | None]
    refused: Both[bool]
    json_valid: Both[bool | None]
    tool_calls_valid: Both[bool | None]

    @property
    def length_ratio(self) -> float | None:
        """Candidate's length over the base's; None where the base's answer is empty."""
        return self.length.candidate / self.length.base if self.length.base else None

    @property
    def same_finish_reason(self) -> bool | None:
        """None where one side has none."""
        base, candidate = self.finish_reason.base, self.finish_reason.candidate
        return None if base is None or candidate is None else base == candidate


def compare(asked: Asked, base: Answer, candidate: Answer) -> Comparison:
    """Compare two answers to one request. Pure."""
    left, right, unit = _sequences(base, candidate)
    exact: bool | None = None
    divergence: int | None = None
    distance: float | None = None
    if asked.mode is Mode.REPLAYED:
        exact = left == right and base.text == candidate.text and base.tool_calls == candidate.tool_calls
        divergence = first_divergence(left, right)
        distance = normalised_edit_distance(left, right)
    return Comparison(
        mode=asked.mode,
        unit=unit,
        exact=exact,
        first_divergence=divergence,
        distance=distance,
        length=Both(len(left), len(right)),
        finish_reason=Both(base.finish_reason, candidate.finish_reason),
        refused=Both(refused(base), refused(candidate)),
        json_valid=Both(json_valid(base, asked), json_valid(candidate, asked)),
        tool_calls_valid=Both(tool_calls_valid(base, asked), tool_calls_valid(candidate, asked)),
    )


def _sequences(base: Answer, candidate: Answer) -> tuple[Sequence[Hashable], Sequence[Hashable], str]:
    if base.tokens is not None and candidate.tokens is not None:
        return base.tokens, candidate.tokens, "tokens"
    return base.text, candidate.text, "characters"
