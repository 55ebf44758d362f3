"""A pair as it came from a router, read: what was asked, and what each version answered. Pure.

Requests come from clients and answers from servers that may be broken: whatever is not as OpenAI's API has it makes
what depends on it not known, and never an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .answers import Answer, Asked, Mode, ToolCall, mode_of
from .pair import Heard, Pair

CHAT: Final = "/v1/chat/completions"

FINISH_REASONS: Final = frozenset(["stop", "length", "tool_calls", "content_filter", "function_call"])
"""Others are told as `other`: what a server writes there is not ours to keep."""


@dataclass(frozen=True, slots=True)
class Times:
    """When a stream's tokens came.

    Attributes:
        ttft: seconds from sending the request to the first event.
        tpot: seconds for each further token; None where there was none.
        tokens: of the answer: as the server counted them, else its events with content.
    """

    ttft: float
    tpot: float | None
    tokens: int


def body_of(pair: Pair) -> dict[str, Any] | None:
    """The request's body; None where it is no JSON object."""
    return _object(pair.request)


def asked_of(body: Mapping[str, Any]) -> Asked | None:
    """What its answers are judged by; None where answers to it cannot be compared."""
    mode = mode_of(_temperature(body), _integer(body.get("n"), 1), None, same_sampler=False)
    if mode is None:
        return None
    form = _mapping(body.get("response_format"))
    schema = _mapping(form.get("json_schema")).get("schema")
    return Asked(
        mode,
        wants_json=form.get("type") in ("json_object", "json_schema"),
        schema=schema if isinstance(schema, dict) else None,
        tools=dict(_tools(body)),
    )


def greedy(asked: Asked) -> Asked:
    """The same of the request as it is replayed."""
    return Asked(Mode.REPLAYED, asked.wants_json, asked.schema, asked.tools)


def failure_of(heard: Heard) -> str | None:
    """Why there is no answer to compare, in a word; None where there is one."""
    if heard.failure:
        return heard.failure
    return None if 200 <= heard.status < 300 else f"status {heard.status // 100}xx"


def answer_of(heard: Heard, path: str) -> Answer | None:
    """The answer of one version; None where it is not in the form of one, or ends with an error."""
    raw = b"".join(data for _, data in heard.pieces)
    if not heard.stream:
        body = _object(raw)
        return None if body is None else _whole(body, path)
    return _streamed(list(_events(raw)), path)


def times_of(heard: Heard) -> Times | None:
    """When a stream's tokens came; None of an answer that came whole."""
    if not heard.stream or not heard.pieces:
        return None
    first = heard.pieces[0][0]
    at, tokens, counted = first, 0, None
    for when, data in heard.pieces:
        for event in _events(data):
            if _has_content(event):
                tokens += 1
                at = when
            counted = _counted(event) or counted
    tokens = counted or tokens
    return Times(first, (at - first) / (tokens - 1) if tokens > 1 else None, tokens)


def _whole(body: Mapping[str, Any], path: str) -> Answer | None:
    choice = _choice(body)
    if choice is None:
        return None
    if path != CHAT:
        return Answer(_text(choice.get("text")), finish_reason=_reason(choice))
    message = _mapping(choice.get("message"))
    calls = tuple(
        ToolCall(_text(call.get("name")), _text(call.get("arguments")))
        for call in (_mapping(_mapping(one).get("function")) for one in _list(message.get("tool_calls")))
    )
    return Answer(
        _text(message.get("content")),
        finish_reason=_reason(choice),
        refusal=_text(message.get("refusal")) or None,
        tool_calls=calls,
    )


def _streamed(events: list[dict[str, Any]], path: str) -> Answer | None:
    text: list[str] = []
    refusal: list[str] = []
    calls: dict[int, tuple[list[str], list[str]]] = {}
    reason = None
    seen = False
    for event in events:
        if "error" in event:
            return None
        choice = _choice(event)
        if choice is None:
            continue
        seen = True
        reason = _reason(choice) or reason
        if path != CHAT:
            text.append(_text(choice.get("text")))
            continue
        delta = _mapping(choice.get("delta"))
        text.append(_text(delta.get("content")))
        refusal.append(_text(delta.get("refusal")))
        for call in map(_mapping, _list(delta.get("tool_calls"))):
            function = _mapping(call.get("function"))
            names, arguments = calls.setdefault(_integer(call.get("index"), 0), ([], []))
            names.append(_text(function.get("name")))
            arguments.append(_text(function.get("arguments")))
    if not seen:
        return None
    return Answer(
        "".join(text),
        finish_reason=reason,
        refusal="".join(refusal) or None,
        tool_calls=tuple(ToolCall("".join(n), "".join(a)) for _, (n, a) in sorted(calls.items())),
    )


def _events(raw: bytes) -> Iterator[dict[str, Any]]:
    """The server-sent events that are JSON objects."""
    for block in raw.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].lstrip(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        event = _object(b"\n".join(lines)) if lines else None
        if event is not None:
            yield event


def _has_content(event: Mapping[str, Any]) -> bool:
    choice = _choice(event)
    if choice is None:
        return False
    delta = _mapping(choice.get("delta"))
    return bool(choice.get("text") or delta.get("content") or delta.get("tool_calls") or delta.get("refusal"))


def _counted(event: Mapping[str, Any]) -> int | None:
    return _integer(_mapping(event.get("usage")).get("completion_tokens"), 0) or None


def _temperature(body: Mapping[str, Any]) -> float:
    value = body.get("temperature")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 1.0


def _tools(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for tool in map(_mapping, _list(body.get("tools"))):
        function = _mapping(tool.get("function"))
        name = function.get("name")
        if isinstance(name, str):
            yield name, _mapping(function.get("parameters"))


def _choice(event: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = _list(event.get("choices"))
    return choices[0] if choices and isinstance(choices[0], dict) else None


def _reason(choice: Mapping[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if not isinstance(reason, str):
        return None
    return reason if reason in FINISH_REASONS else "other"


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
