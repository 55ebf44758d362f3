"""The steps before a request may go: whose it is, what it is like, whether it fits, whether its tenant has tokens left.

What comes out is what the rest of the path needs to know; what may not go on leaves as a `Refusal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from paceline_crds.headers import PROMPT_VERSION
from paceline_router.shape.asked import newer_bound, text_of
from paceline_router.shape.over_long import Cut, Refuse, Route, over_long
from paceline_router.shape.shaper import Shaped
from paceline_router.tenancy.tenants import Tenant
from paceline_router.wire.answers import Refusal
from paceline_router.wire.members import with_limit

if TYPE_CHECKING:
    from paceline_router.flow.living import Living
    from paceline_router.wire.requests import Body, Request


class Admitted(msgspec.Struct, gc=False):
    """A request that may go.

    Attributes:
        text: what its prompt is made from.
        wanted: the pool that is to take it.
        tokens: reserved in its tenant's buckets.
        note: what the rule for over-long requests did, in words.
        raw: the body, changed by that rule where it says so.
    """

    tenant: Tenant
    shaped: Shaped
    text: bytes
    wanted: str
    tokens: int
    note: str
    raw: bytes


def identify(living: Living, request: Request) -> Tenant:
    """Whose a request is. Nothing else of the service is told or counted before that is known.

    Raises:
        Refusal: 400, 401 or 503.
    """
    try:
        return living.tenants.identify(request.headers)
    except Refusal:
        living.metrics.refused("identity")
        raise


def admit(living: Living, tenant: Tenant, request: Request, path: bytes, body: Body, now: float) -> Admitted:
    """Let a request of this tenant in.

    Raises:
        Refusal: 400 or 429.
    """
    headers = request.headers
    text = text_of(body, path)
    version = None
    if not request.plain:
        value = headers.get(PROMPT_VERSION)
        if value is not None:
            version = value.decode("ascii")
    shaped = living.shaper.shape(body, text, tenant.name, path, version)
    prompt = shaped.prompt_tokens
    tokens = prompt + shaped.output_tokens
    wanted = living.policy.pool_of_shape[shaped.shape]
    note = ""
    raw = request.body
    limit = living.over_long_from
    # The estimate of a prompt is never off by half, so most requests are far from the rule.
    if limit is not None and 2 * prompt + (shaped.max_tokens or 1) >= limit:
        wanted, note, raw = _fitted(living, shaped, wanted, raw, newer_bound(body, path))
    refusal = living.tenants.reserve(tenant, tokens, now)
    if refusal is not None:
        too_soon = tenant.request_full_at + tenant.request_cost - now > tenant.request_reach
        living.metrics.refused("tenant_requests" if too_soon else "tenant_tokens")
        raise refusal
    return Admitted(tenant, shaped, text, wanted, tokens, note, raw)


def _fitted(living: Living, shaped: Shaped, wanted: str, raw: bytes, newer: bool) -> tuple[str, str, bytes]:
    """Pool, words and body after the rule for over-long requests.

    Args:
        newer: see `asked.newer_bound`.
    """
    lengths = [group for lane in living.route.lanes for group in lane.order]
    own = [group.max_model_len for group in lengths if group.pool == wanted]
    limit = None if not own or None in own else max(length for length in own if length is not None)
    longest: tuple[str, int | None] | None = None
    if lengths:
        best = max(lengths, key=lambda group: float("inf") if group.max_model_len is None else group.max_model_len)
        longest = (best.pool, best.max_model_len)
    outcome = over_long(living.policy.routing.over_long, limit, shaped, shaped.max_tokens, longest)
    if isinstance(outcome, Refuse):
        living.metrics.refused("over_long")
        raise Refusal(400, outcome.words, param="messages", code="context_length_exceeded")
    if isinstance(outcome, Route):
        return outcome.pool, outcome.words, raw
    if isinstance(outcome, Cut):
        return wanted, outcome.words, with_limit(raw, outcome.max_tokens, newer)
    return wanted, "", raw
