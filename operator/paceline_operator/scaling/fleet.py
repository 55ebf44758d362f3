"""A pool as the cluster has it, for the decision, and the count that a pass orders. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

from paceline_autoscaler.observed import Fleet
from paceline_crds.conditions import Reason
from paceline_crds.revision import RevisionPool
from paceline_operator.actions import child_name
from paceline_operator.observed import DeploymentView, Observed, Ownership, PodView
from paceline_operator.render import Desired
from paceline_operator.rollout.state import State

from .asked import Asked


@dataclass(frozen=True, slots=True)
class Standing:
    """The part of a service that carries a pool's load: the replicas of the revision that has the traffic.

    Attributes:
        pool: as rendered.
        pods: that are neither over nor ending.
        rolling: another revision is on its way, or its replicas are still there.
        starts: (fastest, slowest) seconds of measured starts, empty where there are none.
        beside: replicas of a revision that is rolled out by steps; they carry a part of the load, and what becomes of
            them is the rollout's to say.
    """

    pool: RevisionPool
    deployment: DeploymentView | None
    pods: tuple[PodView, ...]
    rolling: bool
    starts: tuple[float, ...]
    beside: tuple[PodView, ...] = ()

    @property
    def ready(self) -> tuple[PodView, ...]:
        """Those that take requests."""
        return tuple(pod for pod in self.pods if pod.ready)

    @property
    def loaded(self) -> tuple[PodView, ...]:
        """Those whose load together is the pool's."""
        return (*self.ready, *(pod for pod in self.beside if pod.ready))


def standing(observed: Observed, desired: Desired, name: str) -> Standing | None:
    """Where a pool stands; None while it has nothing of its own yet."""
    traffic = observed.traffic
    serving = observed.revision(traffic.revision) if traffic is not None else None
    rendered = {pool.name: pool for pool in (*desired.pools, *(serving.pools if serving else ()))}
    pool = rendered.get(name)
    if pool is None:
        return None
    state = traffic.rollout if traffic is not None else None
    stays = state is not None and not state.candidate and desired.revision != state.base
    asked_for = serving.pools if serving is not None and stays else desired.pools
    others = {child_name(observed.name, pool) for pool in asked_for}
    # A revision that was rejected, or cannot begin, is not on its way.
    rolling = serving is None or (serving.name != desired.revision and not stays)
    rolling |= any(
        d.name not in others and d.replicas and d.owner is not Ownership.FOREIGN for d in observed.deployments
    )
    pods = tuple(pod for pod in observed.pods_of(pool.hash) if not pod.terminating)
    took = serving.start_ups.get(pool.hash) if serving else None
    return Standing(
        pool,
        observed.deployment(child_name(observed.name, pool)),
        pods,
        rolling,
        () if took is None else (float(took.fastest), float(took.slowest)),
        _beside(observed, pool),
    )


def _beside(observed: Observed, pool: RevisionPool) -> tuple[PodView, ...]:
    """Replicas of the same pool in a revision that has a part of the traffic, and another configuration."""
    state = observed.traffic.rollout if observed.traffic is not None else None
    candidate = observed.revision(state.candidate) if state is not None and state.weight else None
    hashes = {other.hash for other in (candidate.pools if candidate else ()) if other.name == pool.name} - {pool.hash}
    return tuple(pod for pod in observed.pods if pod.hash in hashes and not pod.over and not pod.terminating)


def fleet_of(seen: Standing, target: int, draining: Collection[str], aside: Collection[str]) -> Fleet:
    """The fleet as the decision sees it.

    Args:
        target: what was decided last.
        draining, aside: uids of replicas that take no new requests, and of those that say nothing.
    """
    deployment, pods = seen.deployment, seen.pods
    pending = [pod for pod in pods if not pod.ready and _unplaced(pod)]
    starting = [pod for pod in pods if not pod.ready and not _unplaced(pod)]
    ready = [pod for pod in seen.loaded if pod.uid not in draining]
    problem = deployment.problem if deployment is not None else None
    refused = problem is not None and problem.reason is Reason.QUOTA_EXCEEDED
    silent = sum(pod.uid in aside for pod in ready)
    return Fleet(
        desired=target,
        ready=len(ready) - silent,
        starting=tuple(_seconds(pod.placed or pod.created) for pod in starting if pod.placed or pod.created),
        pending=len(pending),
        rolling=seen.rolling,
        quota=len(pods) if refused else None,
        aside=silent,
    )


def ordered(observed: Observed, desired: Desired, name: str, asked: Asked) -> int:
    """Replicas that a pool's Deployments ask for: what was decided last, as far as the cluster shows it."""
    traffic = observed.traffic
    serving = observed.revision(traffic.revision) if traffic is not None else None
    hashes = {pool.hash for pool in (*desired.pools, *(serving.pools if serving else ())) if pool.name == name}
    counts = [
        d.replicas
        for d in observed.deployments
        if d.hash in hashes and d.owner is not Ownership.FOREIGN and not d.deleting
    ]
    count = max(counts, default=None)
    if traffic is not None and traffic.rollout is not None and traffic.rollout.candidate:
        count = _together(observed, traffic.rollout, name) or count
    return asked.initial if count is None or (count == 0 and asked.least > 0) else count


def _together(observed: Observed, state: State, name: str) -> int | None:
    """The least count of a pool that a rollout by steps splits into what its Deployments have; None: there is none."""

    def asked_of(revision: str) -> int:
        view = observed.revision(revision)
        hashes = {pool.hash for pool in (view.pools if view else ()) if pool.name == name}
        return sum(d.replicas for d in observed.deployments if d.hash in hashes and not d.deleting)

    base, candidate = asked_of(state.base), asked_of(state.candidate)
    splits = ((count, state.replicas(count)) for count in range(1, base + candidate + 1))
    return next((count for count, it in splits if it.base >= base and it.candidate >= candidate), None)


def with_counts(
    desired: Desired, observed: Observed, asked: Mapping[str, Asked], decided: Mapping[str, int]
) -> Desired:
    """What is asked for, with the counts of pools that follow load.

    Args:
        asked: those pools.
        decided: by pool; where nothing was decided yet, what its Deployment asks for stays, so that an operator that
            has just begun changes nothing.
    """
    if not asked:
        return desired
    counts = dict(desired.replicas)
    for name in counts.keys() & asked.keys():
        count = decided.get(name)
        counts[name] = ordered(observed, desired, name, asked[name]) if count is None else count
    return replace(desired, replicas=MappingProxyType(counts))


def _unplaced(pod: PodView) -> bool:
    return not pod.placed and pod.problem is not None and pod.problem.reason is Reason.UNSCHEDULABLE


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
