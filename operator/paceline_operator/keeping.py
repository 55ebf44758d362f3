"""What every way of replacing a revision shares: names that are taken, children that are made, scaled and taken away.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from paceline_crds.revision import RevisionPool

from .actions import (
    Action,
    ApplyConfigMap,
    ApplyDeployment,
    CreateRevision,
    Delete,
    Phase,
    Plan,
    child_name,
)
from .observed import ConfigMapView, DeploymentView, Observed, Ownership, RevisionView, RouterView, Traffic
from .render import Desired
from .room import NO_ROOM_SECONDS


@dataclass(frozen=True, slots=True)
class Limits:
    """What is waited for, and how long.

    Attributes:
        router_ack_timeout: seconds that a ready router which cannot be asked may hold a rollout up.
        no_room: seconds for which new replicas find no place before old ones go first.
    """

    router_ack_timeout: float
    no_room: float = NO_ROOM_SECONDS


def standstill(observed: Observed, desired: Desired) -> Plan | None:
    """The plan while nothing may be done, with why; None where the way is free."""
    if desired.suspended:
        return Plan(Phase.SUSPENDED, waiting="spec.suspend is true")
    if taken := name_taken(observed, desired):
        return Plan(Phase.BLOCKED, waiting=taken, poll=True, conflict=True)
    if going := on_its_way_out(observed, desired):
        return Plan(Phase.BLOCKED, waiting=going, poll=True)
    return None


def ensure_record(observed: Observed, desired: Desired) -> Iterator[Action]:
    """Make the InferenceRevision that is asked for, or take over one that lost its owner."""
    known = observed.revision(desired.revision)
    if known is None or known.owner is Ownership.ORPHAN:
        yield CreateRevision(desired.revision, adopt=known is not None)


def name_taken(observed: Observed, desired: Desired) -> str:
    """Which name that is needed is taken by an object that is not ours, in words; empty where none is."""
    revision = observed.revision(desired.revision)
    if revision is not None and revision.owner is Ownership.FOREIGN:
        return f"InferenceRevision {revision.name} belongs to another owner and has to go first"
    for pool in desired.pools:
        name = child_name(observed.name, pool)
        deployment, config = observed.deployment(name), observed.config_map(name)
        if deployment is not None and deployment.owner is Ownership.FOREIGN:
            return f"Deployment {name} belongs to another owner and has to go first"
        if config is not None and config.owner is Ownership.FOREIGN:
            return f"ConfigMap {name} belongs to another owner and has to go first"
    return ""


def on_its_way_out(observed: Observed, desired: Desired) -> str:
    """Which Deployment that is needed is on its way out, in words; empty where none is."""
    seen = (observed.deployment(child_name(observed.name, pool)) for pool in desired.pools)
    going = [deployment.name for deployment in seen if deployment is not None and deployment.deleting]
    return f"Deployment {going[0]} is being deleted and is made anew when it is gone" if going else ""


def ensure_pool(observed: Observed, pool: RevisionPool, replicas: int) -> Iterator[Action]:
    name = child_name(observed.name, pool)
    config = observed.config_map(name)
    if config is None or config.owner is Ownership.ORPHAN:
        yield ApplyConfigMap(name, pool)
    seen = observed.deployment(name)
    if seen is None:
        yield ApplyDeployment(name, pool, replicas, None)
    elif seen.replicas != replicas or seen.owner is Ownership.ORPHAN or not seen.labelled:
        yield _scale(seen, pool, replicas)


def _scale(seen: DeploymentView, pool: RevisionPool, replicas: int) -> ApplyDeployment:
    return ApplyDeployment(seen.name, pool, replicas, seen.replicas, seen.uid, seen.resource_version)


def strays_of(observed: Observed, pools: Iterable[RevisionPool]) -> list[DeploymentView]:
    """Our Deployments that are of none of these pools."""
    kept = {child_name(observed.name, pool) for pool in pools}
    return [
        d for d in observed.deployments if d.name not in kept and d.owner is not Ownership.FOREIGN and not d.deleting
    ]


def retire(
    observed: Observed, strays: list[DeploymentView], traffic: Traffic | None, now: float, limits: Limits
) -> tuple[list[Action], str]:
    """Scale what nobody needs to zero once all routers have left it, and delete it once it is empty."""
    actions: list[Action] = []
    waiting = ""
    if any(d.replicas for d in strays):
        waiting = routers_behind(observed, traffic, now, limits)
    rendered = {child_name(observed.name, pool): pool for r in observed.revisions for pool in r.pools}
    for stray in strays:
        if stray.replicas:
            if waiting:
                continue
            pool = rendered.get(stray.name)
            # Without a record of its configuration it cannot be applied with another count; deleting drains it as well.
            actions.append(_delete("deployment", stray) if pool is None else _scale(stray, pool, 0))
        elif not stray.existing and not observed.pods_of(stray.hash):
            actions.append(_delete("deployment", stray))
    return actions, waiting


def routers_behind(observed: Observed, traffic: Traffic | None, now: float, limits: Limits) -> str:
    """Which ready routers have not followed yet; empty when the rollout may go on."""
    if traffic is None or observed.routers is None:
        return "" if traffic is None else "routers have not been asked yet"
    waited = now - traffic.moved_at
    serving = observed.revision(traffic.revision)
    hashes = {pool.hash for pool in serving.pools} if serving else set()
    ready = {(p.name, traffic.revision) for p in observed.pods if p.hash in hashes and p.ready and not p.terminating}
    for router in observed.routers:
        if router.error:
            # It may be anything but a router that still sends requests to the old replicas; so the wait has an end.
            if waited < limits.router_ack_timeout:
                return f"router {router.name} cannot be asked whether it follows the traffic: {router.error}"
        elif router.generation is None or router.generation < traffic.generation:
            seen = "none" if router.generation is None else router.generation
            return f"router {router.name} follows generation {traffic.generation} of the traffic (now {seen})"
        elif unseen := ready - _takes(router, traffic):
            # Ready for Kubernetes and known to the router are two facts.
            return (
                f"router {router.name} takes {len(ready) - len(unseen)} of {len(ready)} replicas of {traffic.revision}"
            )
    return ""


def _takes(router: RouterView, traffic: Traffic) -> Set[tuple[str, str]]:
    """The replicas that a router takes. What both revisions of a rollout have just so goes by either name."""
    if traffic.rollout is None or not traffic.rollout.candidate:
        return router.takes
    return {(name, traffic.revision) for name, _ in router.takes}


def tidy(observed: Observed, desired: Desired, serving: RevisionView | None) -> Iterator[Action]:
    """Delete configs that no pod can still read, and revisions beyond the history limit that do not run."""
    needed = {child_name(observed.name, pool) for pool in desired.pools}
    needed |= {child_name(observed.name, pool) for pool in serving.pools} if serving else set()
    needed |= {d.name for d in observed.deployments}
    for config in observed.config_maps:
        stays = config.name in needed or config.deleting or config.owner is Ownership.FOREIGN
        if not stays and not observed.pods_of(config.hash):
            yield _delete("config", config)

    own_hashes = {pool.hash for pool in desired.pools}
    traffic = observed.traffic
    named = {desired.revision, serving.name if serving else "", traffic.revision if traffic else ""}
    if traffic is not None and traffic.rollout is not None:
        named.add(traffic.rollout.candidate)
    running = {d.hash for d in observed.deployments} - own_hashes
    idle = [
        r
        for r in observed.revisions
        if r.name not in named
        and r.owner is not Ownership.FOREIGN
        and not r.deleting
        and not running.intersection(pool.hash for pool in r.pools)
    ]
    idle.sort(key=lambda r: (r.created, r.name), reverse=True)
    for revision in idle[desired.history_limit :]:
        yield _delete("revision", revision)


def _delete(kind: str, seen: DeploymentView | ConfigMapView | RevisionView) -> Delete:
    return Delete(kind, seen.name, seen.uid, seen.resource_version)
