"""What happens to a request that is longer than its pool takes: refused, routed or cut, by explicit rule. Pure.

The router's count of a prompt is an estimate, the replica's is exact. So a refusal here needs the lower bound of the
estimate to be over the limit; in between the request goes on, and the replica decides. What harms nobody (a pool that
takes more) follows the estimate itself. A prompt is never cut: what is cut is only how much may be answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from paceline_crds.routing import OverLongAction, OverLongSpec


class Expected(Protocol):
    """What the rule reads of a `Shaped`."""

    prompt_tokens: int
    output_tokens: int
    margin: float

    @property
    def prompt_low(self) -> int:
        """Lower bound."""

    @property
    def prompt_high(self) -> int:
        """Upper bound."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The request goes on as it is."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answered 400 with these words."""

    words: str


@dataclass(frozen=True, slots=True)
class Route:
    """Goes to this pool instead of that of its shape."""

    pool: str
    words: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Goes on with a smaller bound on its answer."""

    max_tokens: int
    words: str


Outcome: TypeAlias = Pass | Refuse | Route | Cut

PASS = Pass()
_DEFAULT = OverLongSpec()


def over_long(
    spec: OverLongSpec | None,
    limit: int | None,
    shaped: Expected,
    max_tokens: int | None,
    longest: tuple[str, int | None] | None = None,
) -> Outcome:
    """What the rule says of a request.

    Args:
        spec: the rule; None is `Refuse` above the pool's own limit.
        limit: `runtime.maxModelLen` of the pool of the request's shape; None when not known.
        shaped: what is expected of the request.
        max_tokens: the client's bound on one answer; None when it gave none, and then the engine answers as much as
            fits, so that the prompt and one token decide.
        longest: the pool that takes the longest requests, with its limit (None: not known), for `Route`.
    """
    if spec is not None and spec.above_tokens is not None:
        limit = spec.above_tokens
    if limit is None:
        return PASS
    answer = max_tokens or 1
    if shaped.prompt_tokens * (1 + shaped.margin) + answer < limit:
        return PASS
    spec = spec or _DEFAULT
    if spec.action is OverLongAction.ROUTE:
        return _route(spec, limit, shaped, max_tokens, longest)
    if spec.action is OverLongAction.CUT and max_tokens is not None:
        return _cut(limit, shaped, max_tokens)
    return _refuse(limit, shaped, answer, "")


def _refuse(limit: int, shaped: Expected, answer: int, also: str) -> Outcome:
    if shaped.prompt_low + answer <= limit:
        return PASS
    return Refuse(
        f"This request is too long: its prompt has about {shaped.prompt_tokens} tokens (at least {shaped.prompt_low}) "
        f"and asks for {answer} more, and {limit} is the most that is taken here{also}. "
        "Send a shorter prompt or a smaller max_tokens."
    )


def _route(
    spec: OverLongSpec, limit: int, shaped: Expected, max_tokens: int | None, longest: tuple[str, int | None] | None
) -> Outcome:
    # Without a bound of the client's the expected answer has to find room as well.
    wanted = shaped.prompt_tokens + (shaped.output_tokens if max_tokens is None else max_tokens)
    if wanted <= limit:
        return PASS
    name, most = longest if longest is not None else (None, None)
    pool = spec.pool or name
    if pool is None:
        return _refuse(limit, shaped, max_tokens or 1, ", and there is no pool for longer ones")
    if pool == name and most is not None and shaped.prompt_low + (max_tokens or 1) > most:
        return _refuse(most, shaped, max_tokens or 1, f" by the longest pool, {pool}")
    return Route(pool, f"about {wanted} tokens are more than {limit}, so it goes to pool {pool}")


def _cut(limit: int, shaped: Expected, max_tokens: int) -> Outcome:
    if shaped.prompt_tokens + max_tokens <= limit:
        return PASS
    room = limit - shaped.prompt_high
    if room < 1:
        # Either the prompt alone is too long, or that cannot be told from here.
        if shaped.prompt_low + 1 > limit:
            return _refuse(limit, shaped, 1, " and a prompt is never cut")
        room = limit - shaped.prompt_tokens
        if room < 1:
            return PASS
    room = min(room, max_tokens)
    return Cut(
        room,
        f"max_tokens was lowered from {max_tokens} to {room}, which fits {limit} tokens beside a prompt of about "
        f"{shaped.prompt_tokens} (at most {shaped.prompt_high})",
    )
