"""What was seen of one service and its children, as frozen values that decisions are made of."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from paceline_crds.revision import Baseline, CanaryAnswer, InferenceRevision, RevisionPool, RevisionRollout

from .failures import Problem
from .rollout.asked import Judgement
from .rollout.state import State

MOST_GENERATIONS = 2**53
"""Beyond it not every reader of JSON tells two whole numbers apart."""


class Ownership(enum.Enum):
    """Whose an object is."""

    OURS = "ours"
    ORPHAN = "orphan"
    """Made by the operator for a service of this name, controlled by nobody (as `--cascade=orphan` leaves it): taken
    over.
    """
    FOREIGN = "foreign"
    """Controlled by something else, for example a deleted service of the same name, or not made by the operator,
    whatever label it carries: never touched.
    """


@dataclass(frozen=True, slots=True)
class Entry:
    """A share of a pool's traffic, `weight` in whole percent."""

    pool: str
    revision: str
    weight: int = 100


@dataclass(frozen=True, slots=True)
class Traffic:
    """Where requests go. Stored in the annotation `paceline.io/rollout` of the revision that gets them.

    Attributes:
        generation: grows with each change; the highest one of all revisions of a service is valid.
        revision: the revision that serves.
        moved_at: seconds since the epoch when it became so.
        rollout: of a rollout by steps, what it remembers; None where there is nothing.
        shadow: whole percent of the requests that are copied to its candidate.
    """

    generation: int
    revision: str
    entries: tuple[Entry, ...]
    moved_at: float
    rollout: State | None = None
    shadow: int = 0

    def to_json(self) -> str:
        """The annotation's value."""
        value: dict[str, Any] = {
            "generation": self.generation,
            "movedAt": self.moved_at,
            "weights": [{"pool": e.pool, "revision": e.revision, "weight": e.weight} for e in self.entries],
        }
        if self.rollout is not None:
            value["rollout"] = self.rollout.to_value()
        if self.shadow:
            value["shadow"] = self.shadow
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, revision: str, text: str) -> Traffic | None:
        """Read an annotation; None where it is not one of ours: it is published to routers as it is."""
        try:
            raw = json.loads(text)
            entries = tuple(Entry(str(e["pool"]), str(e["revision"]), int(e["weight"])) for e in raw["weights"])
            read = cls(int(raw["generation"]), revision, entries, float(raw["movedAt"]), _rollout(raw, revision))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        sound = 0 < read.generation < MOST_GENERATIONS and math.isfinite(read.moved_at)
        shares = all(0 <= entry.weight <= 100 for entry in entries)
        # Before the end of a rollout by steps its candidate may have all of the traffic.
        named = {revision} | ({read.rollout.candidate} if read.rollout else set())
        if not (sound and shares and any(entry.revision in named for entry in entries)):
            return None
        shadow = raw.get("shadow")
        return replace(read, shadow=shadow) if isinstance(shadow, int) and 0 < shadow <= 100 else read


def _rollout(raw: Mapping[str, Any], revision: str) -> State | None:
    """What a rollout remembers. One that cannot be read is none: the weights beside it stay, and it begins anew."""
    if "rollout" not in raw:
        return None
    try:
        state = State.from_value(raw["rollout"])
    except ValueError:
        return None
    return state if state.base == revision else None


class Range(NamedTuple):
    """Seconds of the fastest and of the slowest start."""

    fastest: int
    slowest: int


@dataclass(frozen=True, slots=True)
class RevisionView:
    """A kept revision. `parsed` is None where this release cannot read it (a newer one wrote it).

    Attributes:
        start_ups: (fastest, slowest) seconds from a place on a node until ready, by pool hash, as far as measured.
        baselines: what was measured of its requests, by name of the pool.
        canaries: what its replicas agreed upon to say to the fixed question, by pool hash.
        rollout: how its rollout by steps went, as far as that is kept.
    """

    name: str
    uid: str
    resource_version: str
    created: str
    owner: Ownership
    parsed: InferenceRevision | None
    traffic: Traffic | None
    start_ups: Mapping[str, Range] = field(default_factory=dict)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    canaries: Mapping[str, CanaryAnswer] = field(default_factory=dict)
    rollout: RevisionRollout | None = None
    deleting: bool = False

    @property
    def pools(self) -> tuple[RevisionPool, ...]:
        """Its pools as rendered."""
        return () if self.parsed is None else tuple(self.parsed.spec.pools)


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """The Deployment of a pool hash.

    Attributes:
        replicas: `spec.replicas`.
        existing: pods it reports, of any readiness.
    """

    name: str
    uid: str
    resource_version: str
    pool: str
    hash: str
    replicas: int
    existing: int
    owner: Ownership
    deleting: bool
    labelled: bool
    problem: Problem | None


@dataclass(frozen=True, slots=True)
class ConfigMapView:
    """The ConfigMap of a pool hash."""

    name: str
    uid: str
    resource_version: str
    pool: str
    hash: str
    owner: Ownership
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class BudgetView:
    """The PodDisruptionBudget of a pool."""

    name: str
    uid: str
    resource_version: str
    pool: str
    owner: Ownership
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of the service.

    Attributes:
        over: it has ended for good (evicted, say) and stays as a record only.
        created, placed, ready_since, ended: RFC 3339 in UTC, whole seconds; empty where not known. `placed` is when it
            got a node, `ended` when it was over, or lost with its node.
        restarts: of its containers, together.
    """

    name: str
    pool: str
    hash: str
    ready: bool
    terminating: bool
    over: bool
    problem: Problem | None
    uid: str = ""
    resource_version: str = ""
    created: str = ""
    ended: str = ""
    placed: str = ""
    ready_since: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class RouterView:
    """What a ready router says of this service.

    Attributes:
        generation: of the traffic it follows; None where it does not know the service yet, or `error` says why it could
            not be asked.
        takes: (pod, revision) of the replicas it sends requests to.
    """

    name: str
    generation: int | None
    error: str = ""
    takes: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Observed:
    """One service at one moment.

    Attributes:
        routers: ready routers; None where nobody needed to ask them.
        free: replicas that would find a place beside those that are there; None where nobody needed to know, or could.
        judgement: the newest verdict on a rollout by steps; None where there is none.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    revisions: tuple[RevisionView, ...] = ()
    deployments: tuple[DeploymentView, ...] = ()
    config_maps: tuple[ConfigMapView, ...] = ()
    pods: tuple[PodView, ...] = ()
    budgets: tuple[BudgetView, ...] = ()
    routers: tuple[RouterView, ...] | None = None
    free: int | None = None
    judgement: Judgement | None = None

    @property
    def traffic(self) -> Traffic | None:
        """The valid record of where requests go."""
        records = [r.traffic for r in self.revisions if r.traffic is not None and r.owner is not Ownership.FOREIGN]
        return max(records, key=lambda t: t.generation, default=None)

    def revision(self, name: str) -> RevisionView | None:
        """A kept revision by name."""
        return next((r for r in self.revisions if r.name == name), None)

    def deployment(self, name: str) -> DeploymentView | None:
        """A Deployment by name."""
        return next((d for d in self.deployments if d.name == name), None)

    def config_map(self, name: str) -> ConfigMapView | None:
        """A ConfigMap by name."""
        return next((c for c in self.config_maps if c.name == name), None)

    def ready(self, pool_hash: str) -> int:
        """Replicas of a pool hash that take requests."""
        return sum(1 for p in self.pods if p.hash == pool_hash and p.ready and not p.terminating)

    def pods_of(self, pool_hash: str) -> tuple[PodView, ...]:
        """Pods of a pool hash that exist, those that are just ending among them."""
        return tuple(p for p in self.pods if p.hash == pool_hash and not p.over)
