"""One tenant: its limits, what it has used of them, and where its requests are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from paceline_crds.headers import TENANT
from paceline_crds.tenancy import LimitsSpec
from paceline_router.tenancy.buckets import REQUEST_BURST, SLACK, TOKEN_BURST
from paceline_router.tenancy.series import Counts

if TYPE_CHECKING:
    from paceline_router.tenancy.gate import TenantQueue

_UNBOUNDED: Final = 1 << 60
_POSITIVE: Final = (1 << 63) - 1


class Tenant:
    """Everything known of one tenant of one service. Callers read `name`, `line` and `label`.

    Attributes:
        name: empty for requests that name none.
        line: the header line that tells the replica whose request it is; empty where nobody knows.
        salt: of its prompts' prefixes, so that tenants share none of them (see `choice.chooser`).
        label: for metrics and logs; may change when seats are given anew (see `TenantLabels`).
        limited: a limit per minute binds it.
        running: slots taken; `slots`: how many there are; `queued`: tickets parked at the gate.
    """

    __slots__ = (
        "counts",
        "label",
        "limited",
        "line",
        "name",
        "named",
        "queue",
        "queued",
        "request_cost",
        "request_full_at",
        "request_limit",
        "request_reach",
        "running",
        "salt",
        "seen",
        "slots",
        "token_cost",
        "token_full_at",
        "token_limit",
        "use",
        "weight",
        "wire",
    )

    def __init__(self, wire: bytes, label: str, counts: Counts) -> None:
        self.wire = wire
        self.name = wire.decode("ascii")
        self.line = b"%b: %b\r\n" % (TENANT.encode(), wire) if wire else b""
        self.salt = hash(wire) & _POSITIVE
        self.label = label
        self.counts = counts
        self.named = False
        self.weight = 1
        self.seen = 0.0
        self.use = 0.0
        self.limited = False
        # A limit that does not bind costs nothing, so that nobody need ask which of them there is.
        self.request_limit: int | None = None
        self.request_cost = 0.0
        self.request_reach = REQUEST_BURST + SLACK
        self.request_full_at = 0.0
        self.token_limit: int | None = None
        self.token_cost = 0.0
        self.token_full_at = 0.0
        self.running = 0
        self.slots = _UNBOUNDED
        self.queued = 0
        self.queue: TenantQueue | None = None

    def limit(self, limits: LimitsSpec, default: LimitsSpec, share: float, now: float) -> None:
        """Take these limits. What was used or is owed, in requests and tokens, stays as it is."""
        requests, tokens, slots = (
            getattr(limits, name) if getattr(limits, name) is not None else getattr(default, name)
            for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent")
        )
        self.request_limit = requests
        cost = 0.0 if requests is None else 60.0 / (requests * share)
        self.request_full_at = _rescaled(self.request_full_at, self.request_cost, cost, now)
        self.request_cost = cost
        self.request_reach = max(REQUEST_BURST, cost) + SLACK
        self.token_limit = tokens
        cost = 0.0 if tokens is None else 60.0 / (tokens * share)
        self.token_full_at = _rescaled(self.token_full_at, self.token_cost, cost, now)
        self.token_cost = cost
        self.limited = requests is not None or tokens is not None
        # Rounded up: a slot too many in each router, not none in any.
        self.slots = _UNBOUNDED if slots is None else max(1, -int(-slots * share // 1))

    def forgettable(self, now: float, only_full: bool) -> bool:
        """Whether nothing is lost (or, not `only_full`, no debt) when this tenant is forgotten."""
        if self.named or self.running or self.queued:
            return False
        if only_full:
            return self.request_full_at <= now and self.token_full_at <= now
        return self.request_full_at <= now + self.request_reach and self.token_full_at <= now + TOKEN_BURST


def _rescaled(full_at: float, before: float, after: float, now: float) -> float:
    return now + (full_at - now) * after / before if full_at > now and before and after else 0.0
