"""What a pass may do, and a plan of it: every action says in words what it does."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from paceline_crds.names import derived_name
from paceline_crds.revision import RevisionPool

from .observed import Traffic
from .rollout.transition import Record


def child_name(service: str, pool: RevisionPool) -> str:
    """Name of the Deployment and of the ConfigMap of a pool hash."""
    return derived_name(service, pool.name, pool.hash)


@dataclass(frozen=True, slots=True)
class CreateRevision:
    """Store what was rendered; with `adopt` it exists already and only gets its owner back."""

    name: str
    adopt: bool = False

    @property
    def sentence(self) -> str:
        return f"{'adopt' if self.adopt else 'create'} revision {self.name}"


@dataclass(frozen=True, slots=True)
class ApplyConfigMap:
    """Make (or take over) the ConfigMap of a pool hash."""

    name: str
    pool: RevisionPool

    @property
    def sentence(self) -> str:
        return f"create config {self.name}"


@dataclass(frozen=True, slots=True)
class ApplyDeployment:
    """Make or scale the Deployment of a pool hash. `before` is its count of replicas so far, None where it is new.

    `force`: other managers' claims on the template are overruled.
    """

    name: str
    pool: RevisionPool
    replicas: int
    before: int | None
    uid: str = ""
    resource_version: str = ""
    force: bool = False

    @property
    def sentence(self) -> str:
        if self.force:
            return f"put the template of {self.name} right"
        if self.before is None:
            return f"create deployment {self.name} with {self.replicas}"
        if self.before == self.replicas:
            return f"take deployment {self.name} over"
        return f"scale {self.name} from {self.before} to {self.replicas}"


@dataclass(frozen=True, slots=True)
class MoveTraffic:
    """Record where requests go from now on; the status publishes it to the routers."""

    traffic: Traffic

    @property
    def sentence(self) -> str:
        return f"move traffic to {self.traffic.revision} as generation {self.traffic.generation}"


@dataclass(frozen=True, slots=True)
class RecordRollout:
    """Record where a rollout by steps is now, and where requests go with it; the status publishes it to the routers."""

    traffic: Traffic
    record: Record

    @property
    def sentence(self) -> str:
        said = self.record
        return f"take the rollout of {said.revision} from {said.before} to {said.after}: {said.reason}"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one child, and only if it is still the one that was seen."""

    kind: str
    name: str
    uid: str
    resource_version: str

    @property
    def sentence(self) -> str:
        return f"delete {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class ApplyBudget:
    """Make (or take over) the PodDisruptionBudget of a pool."""

    name: str
    pool: str

    @property
    def sentence(self) -> str:
        return f"create disruption budget {self.name}"


Action = CreateRevision | ApplyConfigMap | ApplyDeployment | MoveTraffic | RecordRollout | Delete | ApplyBudget


def tidies(action: Action) -> bool:
    """Whether nothing that is asked for hangs on an action: a budget only guards, and what nobody needs may wait.

    A Deployment that is to go still has replicas, or takes the place of others: that one is waited for.
    """
    return isinstance(action, ApplyBudget) or (
        isinstance(action, Delete) and action.kind in ("revision", "config", "budget")
    )


class Phase(enum.StrEnum):
    """Where a service stands, for people and metrics; nothing is decided by it."""

    SUSPENDED = "Suspended"
    BLOCKED = "Blocked"
    SURGING = "Surging"
    ACKNOWLEDGING = "Acknowledging"
    STOPPING = "Stopping"
    DRAINING = "Draining"
    SETTLED = "Settled"
    WATCHING = "Watching"


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in the order they are taken, and what is waited for.

    Attributes:
        poll: something outside the API server is waited for: look again soon.
        again: seconds after which something is due although nothing changes; None: nothing is.
        conflict: what is waited for is somebody else's object under a name that is needed.
    """

    phase: Phase
    actions: tuple[Action, ...] = ()
    waiting: str = ""
    poll: bool = False
    again: float | None = None
    conflict: bool = False

    @property
    def records(self) -> tuple[Record, ...]:
        """Decisions of a rollout by steps that are taken."""
        return tuple(action.record for action in self.actions if isinstance(action, RecordRollout))

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of it in words."""
        words = tuple(action.sentence for action in self.actions)
        return (*words, f"wait: {self.waiting}") if self.waiting else words
