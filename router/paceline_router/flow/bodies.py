"""A request's body with a smaller bound on its answer."""

from __future__ import annotations

from paceline_router.wire.members import members_of, with_member
from paceline_router.wire.requests import given


def with_limit(body: bytes, limit: int) -> bytes:
    """The body, which has been read without an error, with `limit` as the most tokens of its answer, all other values
    kept to the byte.
    """
    members = members_of(body)
    # The newer name counts where both are there, as in the engine.
    if given(members.max_completion_tokens):
        return with_member(body, "max_completion_tokens", members.max_completion_tokens, limit)
    return with_member(body, "max_tokens", members.max_tokens, limit)
