"""Messages of clients in the one form that chat templates take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from .errors import ApiError, bad_request

_ROLES: Final = {
    "system": "system",
    "developer": "system",  # the name that newer clients give the system's instructions
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_CARRIED: Final = frozenset({"name", "tool_call_id", "reasoning_content"})
_KNOWN: Final = frozenset({"role", "content", "tool_calls", "refusal", "annotations", "audio", "function_call"})


def chat_messages(messages: Sequence[dict[str, Any]], *, reads_tool_calls: bool) -> list[dict[str, Any]]:
    """Messages as a chat template reads them: text content only, `null` fields left out.

    Text parts of a list are joined with line breaks, in order. The arguments of tool calls, which clients write as a
    string of JSON, are objects for templates.

    Args:
        reads_tool_calls: whether the template shows tool calls of earlier answers.

    Raises:
        ApiError: 400 with the path of the part at fault.
    """
    if not messages:
        raise bad_request("'messages' must have at least one message.", "messages", "invalid_value")
    return [_message(message, f"messages.{n}", reads_tool_calls) for n, message in enumerate(messages)]


def _message(given: dict[str, Any], path: str, reads_tool_calls: bool) -> dict[str, Any]:
    message = {key: value for key, value in given.items() if value is not None}
    role = message.get("role")
    if role is None:
        raise _missing(f"{path}.role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _invalid(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
    for key in message:
        if key not in _KNOWN and key not in _CARRIED:
            raise bad_request(f"Unrecognized message field: {path}.{key}", f"{path}.{key}", "unknown_parameter")
    for key in ("audio", "function_call"):
        if key in message:
            raise _unsupported(f"{path}.{key}", "this server takes text and 'tool_calls'")
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list):
        raise _invalid(f"{path}.tool_calls", "must be a list of objects")
    if calls and not reads_tool_calls:
        raise _unsupported(f"{path}.tool_calls", "the model's chat template has no place for tool calls")
    if "content" not in message and role != "assistant":
        raise _missing(f"{path}.content")
    if role == "tool" and "tool_call_id" not in message:
        raise _missing(f"{path}.tool_call_id")
    for key in (_CARRIED | {"refusal"}) & message.keys():
        if not isinstance(message[key], str):
            raise _invalid(f"{path}.{key}", "must be a string")
    # An answer that was refused has its words there and no content.
    content = message.get("content", message.get("refusal", ""))
    result: dict[str, Any] = {"role": _ROLES[role], "content": _content(content, f"{path}.content")}
    result.update({key: message[key] for key in _CARRIED & message.keys()})
    if calls:
        result["tool_calls"] = [_call(call, f"{path}.tool_calls.{n}") for n, call in enumerate(calls)]
    return result


def _call(call: Any, path: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise _invalid(path, "must be an object")
    if call.get("type", "function") != "function":
        raise _unsupported(f"{path}.type", "this server knows calls of type 'function'")
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _invalid(f"{path}.function", "must be an object with a name")
    if not isinstance(call.get("id", ""), str):
        raise _invalid(f"{path}.id", "must be a string")
    return {
        **({"id": call["id"]} if "id" in call else {}),
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": _arguments(function.get("arguments"), f"{path}.function.arguments"),
        },
    }


def _arguments(given: Any, path: str) -> dict[str, Any]:
    value = given
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    if isinstance(given, str):
        try:
            value = msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise _invalid(path, "must be a string with a JSON object")
    return value


def _content(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _invalid(path, "must be a string or a list of parts that is not empty")
    texts = []
    for n, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            shown = kind[:40] if isinstance(kind, str) else type(kind).__name__
            raise bad_request(
                f"{path}.{n} is of type {shown!r}; this server takes text only.",
                f"{path}.{n}.type",
                "unsupported_value",
            )
        text = part.get(kind)
        if not isinstance(text, str):
            raise _invalid(f"{path}.{n}.{kind}", "must be a string")
        texts.append(text)
    return "\n".join(texts)


def _invalid(path: str, how: str) -> ApiError:
    return bad_request(f"{path} {how}.", path, "invalid_value")


def _missing(path: str) -> ApiError:
    parent, _, name = path.rpartition(".")
    return bad_request(f"{parent} has no {name}.", path, "missing_required_parameter")


def _unsupported(path: str, why: str) -> ApiError:
    return bad_request(f"{path} is not supported by this server: {why}.", path, "unsupported_parameter")
