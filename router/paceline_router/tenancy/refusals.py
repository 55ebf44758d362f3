"""Why a request is not let in, in words, with the figures and a true time to come back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline_crds import errors
from paceline_router.tenancy.buckets import REQUEST_BURST, TOKEN_BURST, left, short, whole_seconds
from paceline_router.wire.answers import Refusal

if TYPE_CHECKING:
    from paceline_router.tenancy.tenant import Tenant

CODE_INVALID_KEY = "invalid_api_key"
CODE_RATE_LIMIT = "rate_limit_exceeded"

_NO_KEYS_SECONDS = 5
_TOO_MANY_SECONDS = 60

_CHALLENGE = 'Bearer realm="paceline"'


def missing_key() -> Refusal:
    """401: no key that could be looked up."""
    return Refusal(
        401,
        "No API key was given. Send it in the header: Authorization: Bearer KEY.",
        type=errors.AUTHENTICATION,
        code=CODE_INVALID_KEY,
        headers={"www-authenticate": _CHALLENGE},
    )


def unknown_key() -> Refusal:
    """401: a key that nobody has. It is not repeated, not even in part."""
    return Refusal(
        401,
        "Incorrect API key provided.",
        type=errors.AUTHENTICATION,
        code=CODE_INVALID_KEY,
        headers={"www-authenticate": f'{_CHALLENGE}, error="invalid_token"'},
    )


def impossible_key(most: int, length: int) -> Refusal:
    """401: a key that cannot be one, so that it is not looked up."""
    words = f"has {length} characters, and none has more than {most}" if length > most else "has blanks or is not ASCII"
    return Refusal(
        401,
        f"The API key {words}. Send only the key itself, in the header: Authorization: Bearer KEY.",
        type=errors.AUTHENTICATION,
        code=CODE_INVALID_KEY,
        headers={"www-authenticate": _CHALLENGE},
    )


def no_keys() -> Refusal:
    """503: no key can be checked, so nobody gets in. Why names Secrets and files, so it is told elsewhere."""
    return Refusal(
        503,
        f"API keys cannot be checked now. Try again in {_NO_KEYS_SECONDS} s; the router's log and admin port say why.",
        type=errors.UNAVAILABLE,
        code="keys_unavailable",
        retry_after=_NO_KEYS_SECONDS,
    )


def malformed_name(header: str, value: bytes) -> Refusal:
    """400: a name that no tenant can have. Two lines of a header make one value, with a comma between them."""
    what = "given twice or has more than one name" if b", " in value else "malformed"
    return Refusal(
        400, f"The header {header} is {what}: write one name of 1 to 128 visible ASCII characters.", param=header
    )


def too_many_tenants(most: int) -> Refusal:
    """503: so many tenants run requests or owe tokens that no further one can be kept account of."""
    return Refusal(
        503,
        f"More than {most} tenants run requests or owe tokens; no further one can be kept account of now.",
        type=errors.UNAVAILABLE,
        code="too_many_tenants",
        retry_after=_TOO_MANY_SECONDS,
    )


def requests_used_up(tenant: Tenant, wait: float, now: float) -> Refusal:
    """429: the limit of requests per minute."""
    headers = rate_headers(tenant, now)
    at_once = max(1, int(REQUEST_BURST * (tenant.request_limit or 0) / 60.0))
    words = f"{tenant.request_limit} requests a minute, at most {at_once} at once, {_left(headers, 'requests')} left"
    return _limited(tenant, words, wait, headers)


def tokens_used_up(tenant: Tenant, tokens: int, wait: float, now: float) -> Refusal:
    """429: the limit of tokens per minute."""
    headers = rate_headers(tenant, now)
    words = (
        f"{tenant.token_limit} tokens a minute, {_left(headers, 'tokens')} left, "
        f"and about {tokens} would be needed (prompt and expected answer)"
    )
    return _limited(tenant, words, wait, headers)


def too_large(tenant: Tenant, tokens: int, now: float) -> Refusal:
    """429 that no waiting helps against. OpenAI's clients know by the header that they need not try again."""
    return Refusal(
        429,
        f"The request is too large for {_who(tenant)}: about {tokens} tokens (prompt and expected answer), of "
        f"{tenant.token_limit} a minute. Waiting does not help: send a shorter prompt or a smaller max_tokens.",
        type=errors.RATE_LIMIT,
        code=CODE_RATE_LIMIT,
        headers={**rate_headers(tenant, now), "x-should-retry": "false"},
    )


def queue_full(tenant: Tenant, most: int, wait: float) -> Refusal:
    """429: as many requests wait as may."""
    words = f"{tenant.queued} requests wait already, and at most {most} may" if most else "none may wait for another"
    return _crowded(tenant, words, wait)


def all_queues_full(tenant: Tenant, queued: int, wait: float) -> Refusal:
    """429: the router holds as many requests of the service as it may."""
    return _crowded(tenant, f"{queued} requests of all tenants wait already, as many as may", wait)


def waited_too_long(tenant: Tenant, waited: float, wait: float) -> Refusal:
    """429: nothing became free in time."""
    at = (
        ""
        if tenant.running < tenant.slots
        else f" ({tenant.running} of its requests run, as many as may at this router)"
    )
    return _crowded(tenant, f"nothing became free within {waited:.0f} s{at}", wait)


def _crowded(tenant: Tenant, words: str, wait: float) -> Refusal:
    after = whole_seconds(wait)
    return Refusal(
        429,
        f"Too many requests at one time from {_who(tenant)}: {words}. Try again in {after} s.",
        type=errors.RATE_LIMIT,
        code=CODE_RATE_LIMIT,
        retry_after=after,
    )


def _limited(tenant: Tenant, words: str, wait: float, headers: dict[str, str]) -> Refusal:
    after = whole_seconds(wait)
    return Refusal(
        429,
        f"Rate limit reached for {_who(tenant)}: {words}. Try again in {after} s.",
        type=errors.RATE_LIMIT,
        code=CODE_RATE_LIMIT,
        retry_after=after,
        headers=headers,
    )


def _who(tenant: Tenant) -> str:
    return f"the tenant `{tenant.name}`" if tenant.name else "requests without a tenant"


def _left(headers: dict[str, str], what: str) -> str:
    return headers[f"x-ratelimit-remaining-{what}"]


def rate_headers(tenant: Tenant, now: float) -> dict[str, str]:
    """`x-ratelimit-*` as OpenAI has them, only for limits there are.

    The limit is that of the spec; what remains is judged from this router's share, for all routers together.
    """
    found: dict[str, str] = {}
    for what, limit, full_at, burst in (
        ("requests", tenant.request_limit, tenant.request_full_at, max(REQUEST_BURST, tenant.request_cost)),
        ("tokens", tenant.token_limit, tenant.token_full_at, TOKEN_BURST),
    ):
        if limit is not None:
            found[f"x-ratelimit-limit-{what}"] = str(limit)
            remaining = math.floor(left(full_at, burst, now) * limit / 60.0 + 1e-9)
            found[f"x-ratelimit-remaining-{what}"] = str(max(0, remaining))
            found[f"x-ratelimit-reset-{what}"] = short(full_at - now)
    return found
