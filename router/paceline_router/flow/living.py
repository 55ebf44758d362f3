"""What one service keeps from one table to the next: estimates, tenants, the gate, budgets, and health of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from paceline_router.choice.policies import ChoicePolicy, make_chooser
from paceline_router.flow import health
from paceline_router.flow.holding import BATCH_DEFAULT
from paceline_router.flow.retries import RetryBudget
from paceline_router.shape.interference import Interference
from paceline_router.shape.shaper import Shaper
from paceline_router.tenancy.gate import Gate
from paceline_router.tenancy.tenants import Tenants

if TYPE_CHECKING:
    from paceline_router.flow.backend import Backend
    from paceline_router.flow.waiting import Waiting
    from paceline_router.report.metrics import ServiceMetrics
    from paceline_router.shadow.tap import Tap
    from paceline_router.table.policy import Policy
    from paceline_router.table.routes import Group, Route
    from paceline_router.tenancy.keys import Keys

HOPELESS: Final = frozenset(["CrashLoop", "ImagePull", "ModelNotFound", "OutOfMemory", "QuotaExceeded"])
"""Reasons of a service that is not ready for which waiting is of no use: somebody has to change something first."""


class Living:
    """One service of the data plane.

    Attributes:
        route: of the table in use.
        policy: of the spec in use.
        backends: its ready replicas.
        arrivals: requests let in since the router started.
        held_bytes: of bodies that wait.
        learn_from: when the next answer is worth learning from.
        over_long_from: tokens from which the rule for over-long requests is asked; None: never.
        pumping: waiting requests are being let go now.
        shadow: copies some requests for a candidate; None: nothing is copied.
        watchers: by pool, what its requests do to each other.
        watch_from: when the next request is watched.
        unbounded: the batch of some replica is not known, so nobody can say that all are full.
    """

    __slots__ = (
        "arrivals",
        "backends",
        "budget",
        "chooser",
        "gate",
        "held_bytes",
        "key",
        "learn_from",
        "metrics",
        "over_long_from",
        "policy",
        "pumping",
        "route",
        "shadow",
        "shaper",
        "tenants",
        "unbounded",
        "watch_from",
        "watchers",
    )

    def __init__(self, route: Route, metrics: ServiceMetrics, now: float, choice_policy: str) -> None:
        self.key = route.service.key
        self.metrics = metrics
        self.route = route
        self.shadow: Tap | None = None
        self.policy: Policy = route.service.policy
        self.budget = RetryBudget(now, self.policy.retry_percent)
        self.shaper = Shaper()
        self.tenants = Tenants()
        self.gate: Gate[Waiting] = Gate()
        self.chooser: ChoicePolicy[Backend] = make_chooser(choice_policy)
        self.backends: tuple[Backend, ...] = ()
        self.arrivals = 0
        self.held_bytes = 0
        self.learn_from = 0.0
        self.over_long_from: int | None = None
        self.pumping = False
        self.unbounded = True
        self.watchers: dict[str, Interference] = {}
        self.watch_from = 0.0

    def use(self, route: Route, now: float) -> None:
        """Follow a new table. `identify_by` comes after it where tenancy or keys have changed."""
        before = self.backends
        self.route = route
        policy = self.policy = route.service.policy
        self.budget.use(policy.retry_percent)
        self.shaper.use(policy.routing)
        self.metrics.use(policy)
        found: dict[Backend, None] = {}
        lengths: list[int] = []
        self.unbounded = False
        for lane in (*route.lanes, *route.revisions.values()):
            for group in lane.order:
                if route.apart and all(backend.key in route.apart for backend in group.backends):
                    for backend in group.backends:
                        backend.wave = batch_of(group)
                    continue
                self.unbounded = self.unbounded or group.bound is None
                for backend in group.backends:
                    backend.wave = batch_of(group)
                    found[backend] = None
                if group.max_model_len is not None:
                    lengths.append(group.max_model_len)
        if not found and route.apart:
            self.unbounded = True  # of those that are asked for by hand, nobody else's queue says anything
        over_long = policy.routing.over_long
        above = None if over_long is None else over_long.above_tokens
        self.over_long_from = above if above is not None else min(lengths, default=None)
        self.backends = tuple(found)
        for backend in before:
            if backend not in found:
                self.chooser.forget(backend)
        for backend in found.keys() - set(before):
            backend.pardon()  # what was held against it before it became ready, again perhaps, is over
            if before:
                backend.warm_up(now)
        if self.backends and self.ejected() == len(self.backends):
            min(self.backends, key=lambda backend: backend.health.until).pardon()

    def identify_by(self, keys: Keys | None, share: float) -> None:
        """Take the keys of the service and the share of its limits that this process enforces."""
        self.tenants.use(self.policy.tenancy, keys, share)
        self.gate.use(self.policy.tenancy)

    def watcher(self, pool: str, now: float) -> Interference:
        """The recorder of a pool, made on first use; there are no more than pools."""
        found = self.watchers.get(pool)
        if found is None:
            found = self.watchers[pool] = Interference(now)
        return found

    # Health of the fleet

    def ejected(self) -> int:
        """How many replicas are out of the choice."""
        return sum(backend.health.ejected for backend in self.backends)

    def breaking(self) -> bool:
        """Whether most replicas are."""
        return health.breaking(self.ejected(), len(self.backends))

    def judge(self, backend: Backend, event: health.Event, now: float, probe: bool = False) -> None:
        """Take something that was seen of a replica; the last one is never ejected."""
        others = any(not other.health.ejected for other in self.backends if other is not backend)
        before = backend.health.ejections
        backend.judge(event, now, may_eject=others, probe=probe)
        if backend.health.ejections > before:
            self.metrics.ejections += 1

    # Holding

    def patience(self) -> float | None:
        """Seconds that a request may wait for a replica; None where none is to be expected."""
        route, policy = self.route, self.policy
        if self.backends:
            return self.gate.max_wait or None  # all are full
        if route.service.trouble in HOPELESS:
            return None
        if policy.hold_at_zero is not None:
            # Also while the first one starts: its start is what the time is for.
            return policy.hold_at_zero or None
        if route.known == route.draining and not route.service.wanted:
            return None
        return policy.hold or None

    def room(self) -> bool:
        """Whether a request that waits may go: some replica has not its whole batch from this router yet. More at
        once would only wait there instead, out of order and bound to one replica.
        """
        for backend in self.backends:  # noqa: SIM110 - a generator costs more than the look at the first replica
            if backend.in_flight < backend.wave and not backend.health.ejected:
                return True
        return False


def batch_of(group: Group) -> int:
    """Requests in a replica's batch: half of the pool's bound, which is for one batch that runs and one that waits."""
    return BATCH_DEFAULT if group.bound is None else max(1, group.bound // 2)
