"""What the API server, or the way to it, can answer instead of an object."""

from __future__ import annotations

from typing import Any


class KubeError(Exception):
    """Base of everything a `KubeClient` raises on purpose."""


class Unreachable(KubeError):
    """No answer: refused, cut, timed out, or no valid TLS. Whether a write took effect is not known."""


class ApiError(KubeError):
    """An answer that is not a success.

    Attributes:
        status: HTTP status code.
        reason: the Status object's machine-readable reason, such as `Conflict`; empty where there was none.
        message: the server's words.
        details: the Status object's `details` (kind, name, causes, retryAfterSeconds).
        retry_after: seconds the server asks to wait, None where it does not say.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason or 'Error'}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details: dict[str, Any] = details or {}
        self.retry_after = retry_after

    @property
    def causes(self) -> list[dict[str, Any]]:
        """Field-level causes of an Invalid answer or of an apply conflict (`field`, `reason`, `message`)."""
        causes = self.details.get("causes")
        return list(causes) if isinstance(causes, list) else []


class Unauthorized(ApiError):
    """401: the credentials are missing, expired or wrong."""


class Forbidden(ApiError):
    """403: RBAC or an admission rule (a quota, for instance) says no."""


class NotFound(ApiError):
    """404: no such object, or no such kind."""


class Conflict(ApiError):
    """409: another writer was first, or (server-side apply) another manager owns a field.

    Also a 422 that says no more than that the uid is another one: the object was made anew since it was read.
    """


class AlreadyExists(ApiError):
    """409 on create: the name is taken."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422, or what the server says to an unknown field (400, and 500 in an apply): the object breaks schema or rule."""


class TooManyRequests(ApiError):
    """429: wait `retry_after` seconds."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}

_UNKNOWN_FIELD = ((400, "strict decoding error"), (500, "failed to create typed patch object"))


def _is_another(details: dict[str, Any]) -> bool:
    causes = details.get("causes")
    return isinstance(causes, list) and [cause.get("field") for cause in causes] == ["metadata.uid"]


def error_from_status(
    status: int, body: dict[str, Any] | None, *, text: str = "", retry_after: float | None = None
) -> ApiError:
    """The typed error for an HTTP status and the Status object in its body, if it had one.

    Args:
        status: HTTP status, or the `code` of an ERROR watch event.
        body: the decoded Status object; None when the body was something else (a proxy's page, say).
        text: the raw body, used as message where there is no Status.
        retry_after: seconds from the Retry-After header.
    """
    if body is None:
        body = {"message": text}
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or "")
    details = body.get("details")
    details = details if isinstance(details, dict) else {}
    if retry_after is None and isinstance(details.get("retryAfterSeconds"), int | float):
        # Zero is how the server leaves the field out.
        retry_after = float(details["retryAfterSeconds"]) or None
    cls = _BY_STATUS.get(status, ApiError)
    if reason == "AlreadyExists":
        cls = AlreadyExists
    elif reason in ("Expired", "Gone"):
        cls = Gone
    elif status == 422 and _is_another(details):
        cls = Conflict
    elif any(status == code and words in message for code, words in _UNKNOWN_FIELD):
        cls = Invalid
    return cls(status, reason, message, details, retry_after)
