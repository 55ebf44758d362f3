"""Does an answer keep the form that was asked for: JSON, a schema, calls of the tools that there are. Pure.

Schemas come from clients. So they are never fetched from anywhere, and their patterns are run by an engine whose time
is linear in the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from .answers import Answer, Asked

_REFUSAL_BEGINNINGS = (
    "i can't assist",
    "i can't help",
    "i cannot assist",
    "i cannot help",
    "i can't provide",
    "i cannot provide",
    "i can't fulfill",
    "i cannot fulfill",
    "i won't be able to",
    "i will not",
    "i'm not able to",
    "i am not able to",
    "i'm unable to",
    "i am unable to",
    "i must decline",
    "as an ai language model, i can",
)
_APOLOGIES = ("i'm sorry, but ", "i am sorry, but ", "i apologize, but ", "sorry, but ", "sorry, ", "unfortunately, ")


def refused(answer: Answer) -> bool:
    """Whether the answer declines: by its `refusal` field, by a content filter, or by how its text begins.

    The beginnings are English phrases: a share of refusals that is good for comparing two versions on the same
    requests, and no measure of how often a model declines.
    """
    if answer.refusal or answer.finish_reason == "content_filter":
        return True
    text = answer.text.lstrip().lower().replace("\u2019", "'")
    for apology in _APOLOGIES:
        text = text.removeprefix(apology)
    return text.startswith(_REFUSAL_BEGINNINGS)


def json_valid(answer: Answer, asked: Asked) -> bool | None:
    """Whether the content is the JSON that was asked for.

    Returns:
        None where none was asked for, where the answer calls tools or declines instead, or where the schema itself
        cannot be used.
    """
    if not (asked.wants_json or asked.schema is not None) or answer.tool_calls or refused(answer):
        return None
    schema = {} if asked.schema is None else asked.schema
    return _follows(answer.text, schema, only_object=asked.schema is None)


def tool_calls_valid(answer: Answer, asked: Asked) -> bool | None:
    """Whether every call names a tool of the request, with arguments that are an object and follow its schema.

    Returns:
        None where there are no calls, or where a schema cannot be used.
    """
    if not answer.tool_calls:
        return None
    unknown = False
    for call in answer.tool_calls:
        if call.name not in asked.tools:
            return False
        follows = _follows(call.arguments, asked.tools[call.name], only_object=True)
        if follows is False:
            return False
        unknown = unknown or follows is None
    return None if unknown else True


def _follows(text: str, schema: Mapping[str, Any], only_object: bool) -> bool | None:
    try:
        value = json.loads(text, parse_constant=_no_such_value)
    except (ValueError, RecursionError):
        return False
    if only_object and not isinstance(value, dict):
        return False
    try:
        validator = jsonschema_rs.validator_for(
            dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (ValueError, jsonschema_rs.ReferencingError):
        return None
    try:
        return bool(validator.is_valid(value))
    except ValueError:
        return False  # a name in it is half of a character, which no JSON can carry


def _no_such_value(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
