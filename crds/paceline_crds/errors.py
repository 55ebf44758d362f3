"""OpenAI's error form: the one body every HTTP error of router and runtime has."""

from __future__ import annotations

from typing import Any, Final

INVALID_REQUEST: Final = "invalid_request_error"
NOT_FOUND: Final = "not_found_error"
AUTHENTICATION: Final = "authentication_error"
RATE_LIMIT: Final = "rate_limit_error"
SERVER_ERROR: Final = "server_error"
UNAVAILABLE: Final = "service_unavailable_error"

CODE_MODEL_NOT_FOUND: Final = "model_not_found"
CODE_CONTEXT_LENGTH: Final = "context_length_exceeded"


def error_body(
    message: str, *, type: str = INVALID_REQUEST, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The JSON body of an error: `{"error": {"message", "type", "param", "code"}}`."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
