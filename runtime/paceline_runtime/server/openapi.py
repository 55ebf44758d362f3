"""What `/openapi.json` says: the routes read and write bodies themselves, so their schemas are given here."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from pydantic import BaseModel

from . import other_fields
from .request_models import ChatRequest, CompletionRequest

_ERROR_SCHEMA: Final = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_MEANINGS: Final = {
    400: "the request is at fault; `param` names the part",
    404: "no such model or path",
    405: "no such method here",
    413: "the body is too large",
    415: "the body is no plain JSON",
    429: "too many requests of this tenant wait; `Retry-After` says when to come back",
    500: "the engine failed on this request",
    503: "not now; `Retry-After` says when to come back",
    504: "the deadline cannot be kept",
}


def error(status: int, meaning: str) -> dict[int, dict[str, Any]]:
    """One of the `responses` of a route: an error in the one form."""
    return {status: {"description": meaning, "content": {"application/json": {"schema": _ERROR_SCHEMA}}}}


_ERRORS: Final = {status: answer for one in _MEANINGS.items() for status, answer in error(*one).items()}


def answers(kind: type[msgspec.Struct] | None = None, *, media: str = "application/json", streams: bool = False) -> Any:
    """The `responses` of a route: what it answers when all is well, and every error in the one form.

    Args:
        kind: the body.
        media: its type.
        streams: whether it may also be a stream of events.
    """
    schema = {} if kind is None else _inlined(msgspec.json.schema(kind))
    content: dict[str, Any] = {media: {"schema": schema}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {200: {"description": "as asked for", "content": content}, **_ERRORS}


def body_of(kind: type[BaseModel], model_name: str) -> dict[str, Any]:
    """The `requestBody` of a route that takes `kind`; `null` is as good as leaving a field out.

    Args:
        model_name: the only `model` that there is.
    """
    schema = _inlined(kind.model_json_schema())
    properties: dict[str, Any] = schema["properties"]
    if issubclass(kind, ChatRequest | CompletionRequest):
        properties.update(other_fields.schemas(kind))
    properties["model"] = {"enum": [model_name]}
    schema["additionalProperties"] = {"type": "null"}
    required = schema.get("required", [])
    schema["properties"] = {name: item if name in required else _or_null(item) for name, item in properties.items()}
    return _request_body(schema)


def body_of_struct(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The `requestBody` of a route that takes `kind` as it is."""
    return _request_body(_inlined(msgspec.json.schema(kind)))


def _request_body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    choices = schema.get("anyOf")
    if choices is not None and {"type": "null"} in choices:
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without references: it is put into a document that has other definitions."""
    definitions = schema.pop("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, list):
            return [inline(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return inline(definitions[value["$ref"].rpartition("/")[2]])
        return {key: inline(item) for key, item in value.items()}

    inlined: dict[str, Any] = inline(schema)
    return inlined
