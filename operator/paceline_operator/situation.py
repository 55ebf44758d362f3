"""Where a service stands: the questions that its conditions are judged by. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from paceline_crds.conditions import Reason
from paceline_crds.revision import RevisionPool
from paceline_crds.rollout import RolloutStrategy
from paceline_crds.status import ScalingStatus, UpgradeStatus

from .actions import child_name
from .drift.compare import Drift
from .failures import Problem, first_cause
from .observed import DeploymentView, Observed, Ownership, PodView
from .render import Desired
from .rollout.state import Phase as Stage
from .room import lacks_room
from .served_names import Conflict
from .tuning.told import Told
from .verdict import Verdict


@dataclass(frozen=True, slots=True)
class Situation:
    """What the conditions are judged from.

    Attributes:
        desired: None where the spec cannot be rendered; then `problem` says why.
        problem: something that stopped the pass itself: a spec or a child that was refused.
        waiting: what the plan waits for, in words.
        conflict: other services ask for the same served name.
        drift: what the last look at the configuration found; None before the first one.
        upgrade: what this operator would render anew.
        split: what the routers advise of pools by shape; None before they were asked.
        outputs: whether replicas answer alike; None before they were asked.
        promises: spec.slo promises something.
        slo: whether it is kept; None before the routers were asked.
        keys: why no router can check the service's API keys, in words; empty where one can, or no key is needed.
        crd_lacks: fields that the cluster's CRDs lack.
        follows_load: the count of some pool follows load.
        scaling: what was decided about these pools; None before it was.
        tuned_pools: pools whose knobs follow load.
        tuning: what was decided about these; a pool is missing before it was.
        recorder: base URL of what takes pairs of answers; empty where there is none.
    """

    observed: Observed
    desired: Desired | None
    problem: Problem | None = None
    waiting: str = ""
    conflict: Conflict | None = None
    drift: Drift | None = None
    upgrade: UpgradeStatus | None = None
    split: Verdict | None = None
    outputs: Verdict | None = None
    promises: bool = False
    slo: Verdict | None = None
    keys: str = ""
    crd_lacks: tuple[str, ...] = ()
    follows_load: bool = False
    scaling: Mapping[str, ScalingStatus] | None = None
    tuned_pools: frozenset[str] = frozenset()
    tuning: Mapping[str, Told] = field(default_factory=dict)
    recorder: str = ""


def in_force(situation: Situation) -> Situation:
    """With the counts that are in force: while nothing is changed those of the Deployments, not those of the spec."""
    desired, observed = situation.desired, situation.observed
    if desired is None or not desired.suspended:
        return situation
    seen = {pool.name: observed.deployment(child_name(observed.name, pool)) for pool in desired.pools}
    counts = {name: desired.replicas[name] if of is None else of.replicas for name, of in seen.items()}
    return replace(situation, desired=replace(desired, replicas=counts))


def counts_that_wait(situation: Situation) -> str:
    """Counts of the spec that are not acted on because it is suspended, in words."""
    desired, observed = situation.desired, situation.observed
    if desired is None or not desired.suspended or observed.revision(desired.revision) is None:
        return ""
    words = []
    for pool in desired.pools:
        seen, asked = observed.deployment(child_name(observed.name, pool)), desired.replicas[pool.name]
        if seen is None or seen.replicas != asked:
            now = "no Deployment" if seen is None else seen.replicas
            words.append(f"pool {pool.name} stays at {now}, the spec asks for {asked}")
    return ", ".join(words)


def _serving_pools(situation: Situation) -> tuple[RevisionPool, ...]:
    """Pools of the revisions that get traffic, what two of them have just so once."""
    traffic = situation.observed.traffic
    named = [entry.revision for entry in traffic.entries if entry.weight] if traffic else []
    revisions = (situation.observed.revision(name) for name in dict.fromkeys(named))
    return tuple({(p.name, p.hash): p for revision in revisions if revision for p in revision.pools}.values())


def serving_replicas(situation: Situation) -> int:
    """Replicas that get traffic and can take it."""
    return sum(situation.observed.ready(pool.hash) for pool in _serving_pools(situation))


def refused(situation: Situation) -> str:
    """Why the asked-for revision is not even begun, in words: it was rejected, or waits; empty where that is not so."""
    state = situation.observed.traffic.rollout if situation.observed.traffic else None
    desired = situation.desired
    if state is None or desired is None or state.candidate or desired.revision == state.base:
        return ""
    if state.rejected == desired.revision:
        return (
            f"{desired.revision} was rejected: {state.message}; change the spec, or order it: by steps again "
            f"(`paceline skip {situation.observed.name}`) or at once (`paceline promote {situation.observed.name}`)"
        )
    return f"{desired.revision} cannot begin: {state.message}" if state.phase is Stage.BLOCKED else ""


def is_rejected(situation: Situation) -> bool:
    """Whether what the spec asks for was rejected by a gate or a person."""
    state = situation.observed.traffic.rollout if situation.observed.traffic else None
    desired = situation.desired
    return state is not None and desired is not None and state.rejected == desired.revision and not state.candidate


def short_pools(situation: Situation) -> list[RevisionPool]:
    """Pools of the asked-for revision that are not ready in full."""
    desired = situation.desired
    if desired is None:
        return []
    return [p for p in desired.pools if situation.observed.ready(p.hash) < desired.replicas[p.name]]


def total(desired: Desired) -> int:
    return sum(desired.replicas.values())


def cause_of(situation: Situation) -> Problem | None:
    """Why the asked-for revision is not ready, or what serves is not whole."""
    if situation.problem is not None:
        return situation.problem
    observed, desired = situation.observed, situation.desired
    pools = short_pools(situation) if desired is not None else list(_serving_pools(situation))
    wanted = {pool.hash for pool in pools}
    names = {child_name(observed.name, pool) for pool in pools}
    pods = [p for p in observed.pods if p.hash in wanted]
    return _first_of([d.problem for d in observed.deployments if d.name in names and d.problem], pods)


def _first_of(found: list[Problem], pods: list[PodView]) -> Problem | None:
    """The cause to tell, of those of Deployments and of the pods' own."""
    found = found + [p.problem for p in pods if p.problem and not p.over and not p.terminating]
    if found:
        cause = first_cause(found)
        assert cause is not None, "of some problems one is the first"
        alike = sum(1 for problem in found if problem.reason is cause.reason) - 1
        if not alike:
            return cause
        others = "1 replica more" if alike == 1 else f"{alike} replicas more"
        return replace(cause, message=f"{cause.message.rstrip('.')} (and {others})")
    # A pod that is evicted or lost tells something only where its successor does not, and until that one is ready.
    gone = [p for p in pods if p.problem and (p.over or p.problem.reason is Reason.NODE_LOST)]
    return first_cause(p.problem for p in gone if p.problem and not any(_follows(other, p) for other in pods))


def _follows(pod: PodView, gone: PodView) -> bool:
    """Whether a ready pod was made after another one was gone."""
    return pod.ready and (pod.created >= gone.ended if gone.ended else pod.created > gone.created)


def lasting_cause(situation: Situation) -> Problem | None:
    """The cause, unless what is under way will end it: places that old replicas leave to new ones."""
    cause = cause_of(situation)
    return None if lacks_room(cause) and _makes_room(situation) else cause


def counts(situation: Situation) -> str:
    desired, observed = situation.desired, situation.observed
    if desired is None:
        return ""
    return ", ".join(
        f"pool {pool.name} has {observed.ready(pool.hash)} of {desired.replicas[pool.name]} replicas ready"
        for pool in (short_pools(situation) or desired.pools)
    )


def _serving_deployments(situation: Situation) -> list[tuple[RevisionPool, DeploymentView | None]]:
    """The Deployment of each pool that gets traffic."""
    observed = situation.observed
    return [(pool, observed.deployment(child_name(observed.name, pool))) for pool in _serving_pools(situation)]


def is_idle(situation: Situation) -> bool:
    """Whether nothing has to serve: what is in force asks for no replica."""
    desired, traffic = situation.desired, situation.observed.traffic
    if traffic is None:
        return False
    if desired is not None and not desired.suspended:
        if total(desired):
            return False
        if traffic.revision == desired.revision:
            return True
    # The spec is not in force: what its last acted-on version left is. A Deployment that is gone says nothing.
    deployments = [deployment for _, deployment in _serving_deployments(situation)]
    return bool(deployments) and all(d is not None and d.replicas == 0 for d in deployments)


def serving_cause(situation: Situation) -> Problem | None:
    """Why what gets the traffic is not ready."""
    pods = [p for p in situation.observed.pods if p.hash in {pool.hash for pool in _serving_pools(situation)}]
    return _first_of([d.problem for _, d in _serving_deployments(situation) if d is not None and d.problem], pods)


def serving_counts(situation: Situation) -> str:
    return ", ".join(
        f"pool {pool.name} has {situation.observed.ready(pool.hash)} of {seen.replicas} replicas ready"
        if seen is not None
        else f"pool {pool.name} has no Deployment"
        for pool, seen in _serving_deployments(situation)
    )


def is_rolling(situation: Situation) -> bool:
    """Whether something else than the asked-for revision still has replicas or traffic."""
    observed, desired = situation.observed, situation.desired
    if desired is None:
        return False
    traffic = observed.traffic
    if traffic is None or traffic.revision != desired.revision:
        return True
    kept = {child_name(observed.name, pool) for pool in desired.pools}
    return any(d.name not in kept and d.replicas and d.owner is not Ownership.FOREIGN for d in observed.deployments)


def _makes_room(situation: Situation) -> bool:
    """Whether old replicas have gone, or are going, so that new ones find a place."""
    observed, desired = situation.observed, situation.desired
    if desired is None or desired.strategy is not RolloutStrategy.ROLLING:
        return False
    hashes = {pool.hash for pool in desired.pools}
    fewer = any(
        d.replicas < desired.replicas.get(d.pool, 0)
        for d in observed.deployments
        if d.hash not in hashes and d.owner is not Ownership.FOREIGN
    )
    return fewer or any(p.terminating and not p.over and p.hash not in hashes for p in observed.pods)
