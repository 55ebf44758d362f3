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

from paceline_crds.rollout import RolloutStrategy

from .actions import (
    Action,
    MoveTraffic,
    Phase,
    Plan,
    child_name,
)
from .keeping import Limits, ensure_pool, ensure_record, retire, standstill, strays_of, tidy
from .observed import DeploymentView, Entry, Observed, Ownership, RevisionView, Traffic
from .render import Desired
from .room import keeps, no_room, until_no_room


def plan(observed: Observed, desired: Desired, now: float, limits: Limits) -> Plan:
    """The actions that are due now.

    Args:
        observed: with `routers` filled in when `asks_routers(observed, desired)`.
        desired: the rendered spec.
        now: seconds since the epoch.
    """
    if (stopped := standstill(observed, desired)) is not None:
        return stopped

    actions = list(ensure_record(observed, desired))

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

    retired, waiting = retire(observed, strays, traffic, now, limits)
    actions += retired
    actions += tidy(observed, desired, serving)
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
        yield from ensure_pool(observed, pool, desired.replicas[pool.name])


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
            yield from ensure_pool(observed, pool, replicas)


def _strays(observed: Observed, desired: Desired, serving: RevisionView | None) -> list[DeploymentView]:
    """Our Deployments that are neither asked for nor serving."""
    if serving is not None and serving.parsed is None:
        # A newer release wrote it: any of them may serve.
        return []
    return strays_of(observed, (*desired.pools, *(serving.pools if serving else ())))


def _missing(observed: Observed, desired: Desired) -> str:
    """Which pools of the asked-for revision are not ready in full."""
    short = [
        f"{pool.name} {observed.ready(pool.hash)}/{desired.replicas[pool.name]}"
        for pool in desired.pools
        if observed.ready(pool.hash) < desired.replicas[pool.name]
    ]
    return f"replicas of {desired.revision} get ready ({', '.join(short)})" if short else ""
