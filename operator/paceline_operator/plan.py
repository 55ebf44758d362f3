"""What to do next for one service. Pure: `plan(observed, desired, now)`.

A rollout has no state of its own beside the record of the traffic: each pass looks at what is there and takes the steps
that are due.

- *Rolling*: the new revision's Deployments come up in full beside the old ones; the traffic moves when they are ready;
  when every ready router has followed, the old Deployments go to zero, drain, and are deleted.
  Where devices are so scarce that the new ones find no place beside the old ones, old ones go one by one (see `room`),
  and the traffic moves when as many new ones as old ones are ready.
- *Recreate*: the traffic moves first, the old Deployments go to zero and drain, then the new ones are made.

What is neither asked for nor serving is never started again, and never stopped before all routers have left it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline_crds.revision import RevisionPool
from paceline_crds.service import RolloutStrategy

from .actions import (
    Action,
    ApplyConfigMap,
    ApplyDeployment,
    CreateRevision,
    Delete,
    MoveTraffic,
    Phase,
    Plan,
    child_name,
)
from .observed import ConfigMapView, DeploymentView, Entry, Observed, Ownership, RevisionView, Traffic
from .render import Desired
from .room import NO_ROOM_SECONDS, keeps, no_room, until_no_room


@dataclass(frozen=True, slots=True)
class Limits:
    """What is waited for, and how long.

    Attributes:
        router_ack_timeout: seconds that a ready router which cannot be asked may hold a rollout up.
        no_room: seconds for which new replicas find no place before old ones go first.
    """

    router_ack_timeout: float
    no_room: float = NO_ROOM_SECONDS


def plan(observed: Observed, desired: Desired, now: float, limits: Limits) -> Plan:
    """The actions that are due now.

    Args:
        observed: with `routers` filled in when `asks_routers(observed, desired)`.
        desired: the rendered spec.
        now: seconds since the epoch.
    """
    if desired.suspended:
        return Plan(Phase.SUSPENDED, waiting="spec.suspend is true")
    if taken := _taken(observed, desired):
        return Plan(Phase.BLOCKED, waiting=taken, poll=True, conflict=True)
    if going := _going(observed, desired):
        return Plan(Phase.BLOCKED, waiting=going, poll=True)

    actions: list[Action] = []
    known = observed.revision(desired.revision)
    if known is None or known.owner is Ownership.ORPHAN:
        actions.append(CreateRevision(desired.revision, adopt=known is not None))

    traffic = observed.traffic
    recreate = desired.strategy is RolloutStrategy.RECREATE
    move = _move(observed, desired, traffic, now, limits, at_once=recreate)
    if recreate and move is not None:
        actions.append(move)
        traffic = move.traffic
    serving = None if traffic is None or traffic.revision == desired.revision else observed.revision(traffic.revision)

    strays = _strays(observed, desired, serving)
    running = [d.name for d in strays if d.replicas or d.existing or observed.pods_of(d.hash)]
    held = recreate and bool(running)
    if not held:
        actions += _ensure(observed, desired)
    actions += _keep_serving(observed, desired, serving, now, limits)
    if not recreate and move is not None:
        actions.append(move)
    if not recreate and move is not None and traffic is not None:
        # The old ones stay until a later pass has seen that routers follow.
        return Plan(Phase.ACKNOWLEDGING, tuple(actions), f"routers follow generation {move.traffic.generation}", True)

    retire, waiting = _retire(observed, strays, traffic, now, limits)
    actions += retire
    actions += _tidy(observed, desired, serving)
    if waiting:
        return Plan(Phase.ACKNOWLEDGING, tuple(actions), waiting, poll=True)
    if held:
        return Plan(Phase.STOPPING, tuple(actions), f"the pods of {', '.join(running)} end, then new ones are made")
    if serving is not None or _missing(observed, desired):
        again = _until_no_room(observed, desired, now, limits) if serving is not None and not recreate else None
        return Plan(Phase.SURGING, tuple(actions), _missing(observed, desired), again=again)
    if running:
        return Plan(Phase.DRAINING, tuple(actions), f"the pods of {', '.join(running)} finish their requests")
    return Plan(Phase.SETTLED, tuple(actions))


def asks_routers(observed: Observed, desired: Desired) -> bool:
    """Whether `plan` has to know what the routers follow."""
    if desired.suspended or observed.traffic is None:
        return False
    serving = observed.traffic.revision
    strays = _strays(observed, desired, observed.revision(serving) if serving != desired.revision else None)
    return any(d.replicas for d in strays)


def _taken(observed: Observed, desired: Desired) -> str:
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


def _going(observed: Observed, desired: Desired) -> str:
    """Which Deployment that is needed is on its way out, in words; empty where none is."""
    seen = (observed.deployment(child_name(observed.name, pool)) for pool in desired.pools)
    going = [deployment.name for deployment in seen if deployment is not None and deployment.deleting]
    return f"Deployment {going[0]} is being deleted and is made anew when it is gone" if going else ""


def _move(
    observed: Observed, desired: Desired, traffic: Traffic | None, now: float, limits: Limits, *, at_once: bool
) -> MoveTraffic | None:
    """Move the traffic to the asked-for revision, if it is time."""
    if traffic is not None and traffic.revision == desired.revision:
        return None
    if traffic is not None and not at_once:
        # Where the old revision has nothing left to lose, the first new replica is better than none.
        old = observed.revision(traffic.revision)
        old_serves = old is not None and (old.parsed is None or any(observed.ready(pool.hash) for pool in old.pools))
        before = {pool.name: pool for pool in old.pools} if old is not None else {}
        for pool in desired.pools:
            wanted = desired.replicas[pool.name] if old_serves else min(desired.replicas[pool.name], 1)
            if old_serves and pool.name in before and no_room(observed, pool.hash, now, limits.no_room):
                wanted = min(wanted, max(observed.ready(before[pool.name].hash), 1))
            if observed.ready(pool.hash) < wanted:
                return None
    entries = tuple(Entry(pool.name, desired.revision) for pool in desired.pools)
    return MoveTraffic(Traffic(1 if traffic is None else traffic.generation + 1, desired.revision, entries, now))


def _ensure(observed: Observed, desired: Desired) -> Iterator[Action]:
    """Every pool that is asked for has its ConfigMap, and its Deployment at the asked-for count."""
    for pool in desired.pools:
        yield from _ensure_pool(observed, pool, desired.replicas[pool.name])


def _until_no_room(observed: Observed, desired: Desired, now: float, limits: Limits) -> float | None:
    waiting = (until_no_room(observed, pool.hash, now, limits.no_room) for pool in desired.pools)
    return min((seconds for seconds in waiting if seconds), default=None)


def _keep_serving(
    observed: Observed, desired: Desired, serving: RevisionView | None, now: float, limits: Limits
) -> Iterator[Action]:
    """While the old revision serves it stays whole, and follows the count of its pool (zero only once traffic left).

    Where there is no room for a whole new one beside it, it makes room.
    """
    if serving is None:
        return
    wanted_names = {child_name(observed.name, pool) for pool in desired.pools}
    rolling = desired.strategy is RolloutStrategy.ROLLING
    successors = {pool.name: pool for pool in desired.pools}
    for pool in serving.pools:
        name = child_name(observed.name, pool)
        if name in wanted_names:
            continue
        seen = observed.deployment(name)
        replicas = desired.replicas.get(pool.name) or (seen.replicas if seen else 0)
        if seen is not None and (seen.deleting or seen.owner is Ownership.FOREIGN):
            continue
        new = successors.get(pool.name)
        if rolling and seen is not None and new and no_room(observed, new.hash, now, limits.no_room):
            replicas = keeps(observed, pool, new, seen, replicas, now, limits.no_room)
        if seen is not None or replicas:
            yield from _ensure_pool(observed, pool, replicas)


def _ensure_pool(observed: Observed, pool: RevisionPool, replicas: int) -> Iterator[Action]:
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


def _strays(observed: Observed, desired: Desired, serving: RevisionView | None) -> list[DeploymentView]:
    """Our Deployments that are neither asked for nor serving."""
    if serving is not None and serving.parsed is None:
        # A newer release wrote it: any of them may serve.
        return []
    kept = {child_name(observed.name, pool) for pool in desired.pools}
    if serving is not None:
        kept |= {child_name(observed.name, pool) for pool in serving.pools}
    return [
        d for d in observed.deployments if d.name not in kept and d.owner is not Ownership.FOREIGN and not d.deleting
    ]


def _retire(
    observed: Observed, strays: list[DeploymentView], traffic: Traffic | None, now: float, limits: Limits
) -> tuple[list[Action], str]:
    """Scale what nobody needs to zero once all routers have left it, and delete it once it is empty."""
    actions: list[Action] = []
    waiting = ""
    if any(d.replicas for d in strays):
        waiting = _routers_behind(observed, traffic, now, limits)
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


def _routers_behind(observed: Observed, traffic: Traffic | None, now: float, limits: Limits) -> str:
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
        elif unseen := ready - router.takes:
            # Ready for Kubernetes and known to the router are two facts.
            return (
                f"router {router.name} takes {len(ready) - len(unseen)} of {len(ready)} replicas of {traffic.revision}"
            )
    return ""


def _missing(observed: Observed, desired: Desired) -> str:
    """Which pools of the asked-for revision are not ready in full."""
    short = [
        f"{pool.name} {observed.ready(pool.hash)}/{desired.replicas[pool.name]}"
        for pool in desired.pools
        if observed.ready(pool.hash) < desired.replicas[pool.name]
    ]
    return f"replicas of {desired.revision} get ready ({', '.join(short)})" if short else ""


def _tidy(observed: Observed, desired: Desired, serving: RevisionView | None) -> Iterator[Action]:
    """Delete configs that no pod can still read, and revisions beyond the history limit that do not run."""
    needed = {child_name(observed.name, pool) for pool in desired.pools}
    needed |= {child_name(observed.name, pool) for pool in serving.pools} if serving else set()
    needed |= {d.name for d in observed.deployments}
    for config in observed.config_maps:
        stays = config.name in needed or config.deleting or config.owner is Ownership.FOREIGN
        if not stays and not observed.pods_of(config.hash):
            yield _delete("config", config)

    own_hashes = {pool.hash for pool in desired.pools}
    running = {d.hash for d in observed.deployments} - own_hashes
    idle = [
        r
        for r in observed.revisions
        if r.name != desired.revision
        and (serving is None or r.name != serving.name)
        and (observed.traffic is None or r.name != observed.traffic.revision)
        and r.owner is not Ownership.FOREIGN
        and not r.deleting
        and not running.intersection(pool.hash for pool in r.pools)
    ]
    idle.sort(key=lambda r: (r.created, r.name), reverse=True)
    for revision in idle[desired.history_limit :]:
        yield _delete("revision", revision)


def _delete(kind: str, seen: DeploymentView | ConfigMapView | RevisionView) -> Delete:
    return Delete(kind, seen.name, seen.uid, seen.resource_version)
