"""What two versions answered to one request. Values only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Mode(enum.StrEnum):
    """How far two answers can be held against each other.

    REPLAYED: one choice, greedy or from one seed's random stream, so that both should be the same token for token.
    SAMPLED: drawn at random on each side, so that only shares of many answers can be compared.
    """

    REPLAYED = "Replayed"
    SAMPLED = "Sampled"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an answer asks for.

    Attributes:
        name: of the function.
        arguments: as sent: a text that should be a JSON object.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete answer.

    Attributes:
        text: the content; empty where there are only tool calls.
        tokens: ids of the answer, or None where they are not known.
        finish_reason: as sent; None where the stream broke before it came.
        refusal: OpenAI's `refusal` field, where the server sent one.
        tool_calls: in order.
    """

    text: str
    tokens: tuple[int, ...] | None = None
    finish_reason: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What of the request the answers are judged by.

    Attributes:
        mode: how they can be compared.
        wants_json: `response_format` was `json_object` or `json_schema`.
        schema: the JSON schema that the content should follow, if one was given.
        tools: schema of the arguments by name of the function; an empty schema where none was given.
    """

    mode: Mode
    wants_json: bool = False
    schema: Mapping[str, Any] | None = None
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def mode_of(temperature: float, choices: int, seed: int | None, same_sampler: bool) -> Mode | None:
    """How answers to a request with these parameters can be compared.

    Args:
        temperature: 0 is greedy.
        choices: OpenAI's `n`.
        seed: of the request, or None.
        same_sampler: both versions turn one seed into one random stream.

    Returns:
        None where there is no way to compare: several choices have no partner on the other side.
    """
    if choices != 1:
        return None
    if temperature == 0.0 or (seed is not None and same_sampler):
        return Mode.REPLAYED
    return Mode.SAMPLED
