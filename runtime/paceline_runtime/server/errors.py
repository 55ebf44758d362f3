"""Errors as HTTP answers, always in OpenAI's form."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.responses import Response

from paceline_crds import errors
from paceline_runtime.messages import RejectCode, Rejected

NO_RETRY: Final = {"x-should-retry": "false"}
"""Tells OpenAI's SDK, which tries every 5xx, 409 and 429 again, that it would be of no use."""
MAX_RETRY_AFTER: Final = 60
"""Seconds. OpenAI's SDK waits as long as it is told, up to two minutes."""


class ApiError(Exception):
    """An error with a status.

    Args:
        status: HTTP status.
        message: for the client; no internals.
        type: OpenAI's error type; made from the status where it is left out.
        param: the part of the request at fault, e.g. `messages.0.role`.
        code: for programs, e.g. `context_length_exceeded`.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _type_of(status)
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode(errors.error_body(self.message, type=self.type, param=self.param, code=self.code))

    def response(self) -> Response:
        """The whole answer."""
        return Response(self.body(), self.status, headers=self.headers, media_type="application/json")


def _type_of(status: int) -> str:
    if status == 401:
        return errors.AUTHENTICATION
    if status == 404:
        return errors.NOT_FOUND
    if status == 429:
        return errors.RATE_LIMIT
    if status == 503:
        return errors.UNAVAILABLE
    return errors.INVALID_REQUEST if status < 500 else errors.SERVER_ERROR


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is at fault."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, *, retry_after: tuple[int, int] = (1, 3), close: bool = False) -> ApiError:
    """503 with a `Retry-After` drawn from the range (seconds), so that clients do not come back all at once.

    Args:
        close: also end the connection, so that the next request may go to another replica.
    """
    headers = {"retry-after": str(random.randint(*retry_after))}
    if close:
        headers["connection"] = "close"
    return ApiError(503, message, headers=headers)


def too_late(message: str) -> ApiError:
    """504: the client's deadline has passed or cannot be kept, so trying again with it is of no use."""
    return ApiError(504, message, code="deadline_exceeded", headers=NO_RETRY)


def not_here(what: str) -> ApiError:
    """501: this server does not have that part of OpenAI's API."""
    return ApiError(
        501,
        f"{what} are not served here; this server has /v1/chat/completions and /v1/completions.",
        code="not_implemented",
        headers=NO_RETRY,
    )


def retry_range(seconds: float | None) -> tuple[int, int]:
    """The range of a `Retry-After` for a queue that should have room after `seconds`: up to half as long again."""
    if seconds is None:
        return (1, 3)
    least = min(max(1, math.ceil(seconds)), MAX_RETRY_AFTER)
    return (least, min(max(least + 1, math.ceil(1.5 * seconds)), MAX_RETRY_AFTER + MAX_RETRY_AFTER // 2))


def refused_by_engine(rejected: Rejected, param: str) -> ApiError:
    """What a client is told of a request that the engine did not queue.

    Args:
        param: the name that the request's input has, `messages` or `prompt`.
    """
    code, message = rejected.code, rejected.message
    if code is RejectCode.CONTEXT_LENGTH:
        return bad_request(message, param, code.value)
    if code is RejectCode.INVALID:
        return bad_request(message, param, "invalid_value")
    if code is RejectCode.DEADLINE:
        return too_late(message)
    delay = retry_range(rejected.retry_after)
    if code is RejectCode.TENANT_LIMIT:
        return ApiError(429, message, code=code.value, headers={"retry-after": str(random.randint(*delay))})
    error = unavailable(message, retry_after=delay, close=code is RejectCode.DRAINING)
    error.code = code.value
    return error


def context_overflow(prompt_tokens: str, max_model_len: int, param: str) -> ApiError:
    """400 `context_length_exceeded`: agents that shorten their history act on this code."""
    return bad_request(
        f"This model's maximum context length is {max_model_len} tokens. The {param} came to {prompt_tokens}, and at "
        "least one more is needed for the answer. Shorten the input.",
        param,
        errors.CODE_CONTEXT_LENGTH,
    )


def model_not_found(model: str) -> ApiError:
    """404: this server has no such model."""
    shown = model if len(model) <= 100 else model[:100] + "…"
    return ApiError(404, f"The model {shown!r} does not exist here.", param="model", code=errors.CODE_MODEL_NOT_FOUND)
