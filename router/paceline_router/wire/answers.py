"""Answers the router gives itself, as bytes on the wire."""

from __future__ import annotations

import http
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline_crds import errors
from paceline_crds.errors import error_body

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, JSON body, further headers. `close` ends the connection after it."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = errors.INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        more = dict(headers or {})
        if retry_after is not None:
            more["retry-after"] = str(retry_after)
        self.answer = Answer(status, error_body(message, type=type, param=param, code=code), more, close)


def model_not_found(model: str) -> Refusal:
    """404 in OpenAI's words. What does exist is not named: `GET /v1/models` says it."""
    shown = model if len(model) <= 200 else model[:200] + "…"
    return Refusal(
        404,
        f"The model `{shown}` does not exist. GET /v1/models lists the models that do.",
        type=errors.NOT_FOUND,
        param="model",
        code=errors.CODE_MODEL_NOT_FOUND,
    )


def unavailable(message: str, retry_after: int, *, close: bool = False) -> Refusal:
    """503: nobody can take the request now, and in `retry_after` seconds somebody may."""
    return Refusal(503, message, type=errors.UNAVAILABLE, retry_after=retry_after, close=close)


def upstream_failed(message: str) -> Refusal:
    """502: replicas were asked and failed."""
    return Refusal(502, message, type=errors.SERVER_ERROR)


def upstream_timeout(message: str) -> Refusal:
    """504: a replica took the request and stayed silent."""
    return Refusal(504, message, type=errors.SERVER_ERROR)


def render(answer: Answer, request_id: bytes, *, keep_alive: bool, head_only: bool = False, more: bytes = b"") -> bytes:
    """The whole answer as bytes. `more` are further header lines, each ended with CRLF."""
    body = _encode(answer.body)
    lines = [
        b"%b: %b\r\n" % (name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()
    ]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    return b"HTTP/1.1 %b\r\nx-request-id: %b\r\n%b%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        STATUS_LINES.get(answer.status, b"%d Status" % answer.status),
        request_id,
        more,
        b"".join(lines),
        len(body),
        b"" if head_only else body,
    )


def error_event(message: str, request_id: str) -> bytes:
    """The last event of a stream that broke."""
    body = error_body(f"{message} (request {request_id})", type=errors.SERVER_ERROR)
    return b"data: %b\n\n" % _encode(body)


def refusal_event(refusal: Refusal, request_id: str) -> bytes:
    """The only event of a stream that was begun and then refused."""
    error = refusal.answer.body["error"]
    return b"data: %b\n\n" % _encode({"error": {**error, "message": f"{refusal} (request {request_id})"}})


STATUS_LINES: dict[int, bytes] = {
    status.value: f"{status.value} {status.phrase}".encode() for status in http.HTTPStatus
}
