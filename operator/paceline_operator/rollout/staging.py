"""One pass over a service whose traffic moves by steps: what the state machine is told, and the children that its state
asks for. Pure.

A pass takes at most one edge, and takes it by writing the record of the traffic with the new state in it, over the very
version that was judged. What hangs on the state, replicas and routers, follows in the passes after it. So whoever reads
the record goes on where it stands, and an operator that ends between two writes has left nothing half done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from paceline_crds.conditions import Reason
from paceline_crds.revision import RevisionPool
from paceline_crds.rollout import OrderAction
from paceline_operator.actions import Action, Phase, Plan, RecordRollout, child_name
from paceline_operator.failures import first_cause
from paceline_operator.keeping import (
    Limits,
    ensure_pool,
    ensure_record,
    retire,
    standstill,
    strays_of,
    tidy,
)
from paceline_operator.observed import Entry, Observed, RevisionView, Traffic
from paceline_operator.render import Desired

from .asked import Asked, Order, Policy, Seen, Step
from .state import SHADOW_STEP, State
from .state import Phase as Stage
from .transition import BASE_SHORT, transition

BROKEN = frozenset(
    {
        Reason.MODEL_NOT_FOUND,
        Reason.MODEL_INVALID,
        Reason.CONFIG_ERROR,
        Reason.CRASH_LOOP,
        Reason.OUT_OF_MEMORY,
    }
)
"""Reasons for which a replica does not start that no waiting will cure."""

ROOM_SECONDS = 30.0
"""Between two looks for room: it lists nodes and pods of the whole cluster."""

AT_ONCE = Policy((Step(100, 0.0, 0.0),))
"""Where the strategy is no longer Canary, what is under way is finished."""

WORDS: Mapping[Stage, str] = {
    Stage.PREPARING: "its replicas for the coming step get ready",
    Stage.SHADOW: "it gets copies of requests",
    Stage.MOVING: "routers follow its share of the traffic",
    Stage.JUDGING: "its step is watched",
    Stage.HELD: "a gate is worse, and a person decides",
    Stage.FINISHING: "it has all of the traffic, and the old revision is kept until the hold ends",
    Stage.ROLLING_BACK: "the traffic goes back",
}

PHASES: Mapping[Stage, Phase] = {
    Stage.PREPARING: Phase.SURGING,
    Stage.MOVING: Phase.ACKNOWLEDGING,
    Stage.ROLLING_BACK: Phase.ACKNOWLEDGING,
    Stage.BLOCKED: Phase.WATCHING,
}


@dataclass(frozen=True, slots=True)
class Stand:
    """The two revisions of a rollout.

    Attributes:
        candidate: what is rolled out, or would be; None where there is nothing.
        counts: replicas of each pool, both revisions together.
    """

    state: State
    traffic: Traffic
    base: RevisionView
    candidate: tuple[RevisionPool, ...]
    counts: Mapping[str, int]

    @property
    def changed(self) -> tuple[RevisionPool, ...]:
        """The candidate's pools that the base does not have just so."""
        old = {(pool.name, pool.hash) for pool in self.base.pools}
        return tuple(pool for pool in self.candidate if (pool.name, pool.hash) not in old)

    @property
    def total(self) -> int:
        """Replicas that change hands; where no pool does, those of all."""
        return sum(self.counts[pool.name] for pool in self.changed or self.candidate or self.base.pools)


def stand_of(observed: Observed, desired: Desired) -> Stand | None:
    """Where a service stands, if its traffic moves by steps; None where it moves at once.

    That is so for a service that has not served yet, and for one whose revision serves nobody: nothing can be compared,
    and nothing is lost.
    """
    traffic = observed.traffic
    base = observed.revision(traffic.revision) if traffic is not None else None
    if traffic is None or base is None or base.parsed is None:
        return None
    state = replace(traffic.rollout or State(traffic.revision), generation=traffic.generation)
    if state.candidate:
        under_way = observed.revision(state.candidate)
        pools = under_way.pools if under_way is not None else ()
    elif _begins_or_ended(observed, desired, state, base):
        pools = desired.pools
    else:
        return None
    counts = {pool.name: _count(observed, desired, pool) for pool in (*base.pools, *pools)}
    return Stand(state, traffic, base, pools, counts)


def _begins_or_ended(observed: Observed, desired: Desired, state: State, base: RevisionView) -> bool:
    """Whether the state machine has a say though no candidate is under way."""
    if desired.rules is None or desired.pinned:
        return False
    if desired.revision == state.base:
        return bool(state.rejected) or state.phase is Stage.BLOCKED
    return desired.revision == state.rejected or desired.rules.paused or not _lost(observed, base)


def _lost(observed: Observed, base: RevisionView) -> bool:
    """Whether a revision serves nobody, and not only because it starts."""
    hashes = {pool.hash for pool in base.pools}
    living = [pod for pod in observed.pods if pod.hash in hashes and not pod.over]
    if any(pod.ready and not pod.terminating for pod in living):
        return False
    return bool(living) and all(pod.problem is not None for pod in living)


def _count(observed: Observed, desired: Desired, pool: RevisionPool) -> int:
    if pool.name in desired.replicas:
        return desired.replicas[pool.name]
    seen = observed.deployment(child_name(observed.name, pool))
    return seen.replicas if seen is not None else 0


def asks_room(stand: Stand | None, desired: Desired) -> bool:
    """Whether a rollout would begin, if there is room."""
    if stand is None or stand.state.candidate or desired.suspended or stand.total <= 0:
        return False
    state, order = stand.state, _asked(stand, desired).order
    ordered = order is not None and order.revision == state.rejected and not state.followed(order)
    return desired.revision != state.base and (desired.revision != state.rejected or ordered)


def asks_routers(observed: Observed, stand: Stand) -> bool:
    """Whether what the routers follow has to be known."""
    if stand.state.phase in (Stage.MOVING, Stage.ROLLING_BACK):
        return True
    return any(d.replicas for d in strays_of(observed, _kept(stand)))


def plan(observed: Observed, desired: Desired, stand: Stand, now: float, limits: Limits) -> Plan:
    """The actions that are due now.

    Args:
        observed: with `routers` where `asks_routers`, `free` where `asks_room`, and the newest `judgement`.
        now: seconds since the epoch.
    """
    if (stopped := standstill(observed, desired)) is not None:
        return stopped
    actions = list(ensure_record(observed, desired))
    state, asked = stand.state, _asked(stand, desired)
    done = transition(state, asked, seen_of(observed, stand, now, limits), now)
    if done.state != state:
        traffic = _traffic(stand, desired, done.state, now)
        assert done.record is not None, "a change of the state is a decision"
        actions.append(RecordRollout(traffic, done.record))
        return Plan(_phase(done.state), tuple(actions), _words(done.state), again=0.0)
    actions += _replicas(observed, stand)
    strays = strays_of(observed, _kept(stand))
    retired, waiting = retire(observed, strays, stand.traffic, now, limits)
    actions += retired
    actions += tidy(observed, desired, stand.base)
    if not state.candidate:
        blocked = state.phase is Stage.BLOCKED
        phase = Phase.ACKNOWLEDGING if waiting else _phase(state) if blocked else Phase.SETTLED
        return Plan(
            phase, tuple(actions), waiting or state.message, bool(waiting), again=ROOM_SECONDS if blocked else None
        )
    polls = state.phase in (Stage.MOVING, Stage.ROLLING_BACK) or bool(waiting)
    return Plan(_phase(state), tuple(actions), _words(state), polls, again=_next_due(state, asked.policy, now))


def _phase(state: State) -> Phase:
    return PHASES.get(state.phase, Phase.WATCHING if state.candidate else Phase.SETTLED)


def _words(state: State) -> str:
    if not state.candidate:
        return state.message
    words = state.message if state.reason == BASE_SHORT else WORDS[state.phase]
    return f"{state.candidate} at {state.weight} %: {words}"


def _next_due(state: State, policy: Policy, now: float) -> float | None:
    """Seconds until time alone makes an edge due; what is seen of the world wakes a pass by itself."""
    if state.phase not in (Stage.SHADOW, Stage.JUDGING, Stage.FINISHING) and state.reason != BASE_SHORT:
        return None
    step = policy.shadow if state.step == SHADOW_STEP else state.steps[state.step]
    if step is None:
        return None
    left = [state.since + seconds - now for seconds in (step.hold, step.most)]
    return min((seconds for seconds in left if seconds > 0), default=None)


# --- what the state machine is told -----------------------------------------------------------------------------------


def _asked(stand: Stand, desired: Desired) -> Asked:
    rules, state = desired.rules, stand.state
    if rules is not None and not desired.pinned:
        return Asked(desired.revision, rules.policy, rules.order, rules.paused)
    why = "spec.rollout.order pins it" if desired.pinned else f"spec.rollout.strategy is {desired.strategy}"
    order = Order(f"{why}/{state.candidate}", state.candidate, OrderAction.PROMOTE, "spec", why)
    return Asked(desired.revision, rules.policy if rules else AT_ONCE, order)


def seen_of(observed: Observed, stand: Stand, now: float, limits: Limits) -> Seen:
    """What the state machine needs to know of the world."""
    state = stand.state
    names = {state.base: _ready_of_base(observed, stand), state.candidate: _ready_of_candidate(observed, stand)}
    return Seen(
        total=stand.total,
        free=observed.free,
        ready={name: count for name, count in names.items() if name},
        acknowledged=_acknowledged(observed, stand, now, limits),
        judgement=observed.judgement,
        broken=_broken(observed, stand),
        pools=max(1, len(stand.changed)),
    )


def _ready_of_base(observed: Observed, stand: Stand) -> int:
    """Its ready replicas as one number, held against those that change hands: enough only where each of its own pools
    has enough, none only where it has none at all.
    """
    needed, shared = stand.state.replicas(stand.total).base, {pool.hash for pool in stand.candidate}
    short, found = False, 0
    for pool in stand.base.pools:
        ready = observed.ready(pool.hash)
        found += ready
        short |= pool.hash not in shared and ready < stand.state.replicas(stand.counts[pool.name]).base
    if not found:
        return 0
    return max(1, min(found, needed - 1)) if short else max(found, needed)


def _ready_of_candidate(observed: Observed, stand: Stand) -> int:
    """Its ready replicas as one number: enough only where each pool has enough, none where one pool has none."""
    needed = stand.state.replicas(stand.total).candidate
    short, found = False, 0
    for pool in stand.changed:
        wants = stand.state.replicas(stand.counts[pool.name]).candidate
        ready = observed.ready(pool.hash)
        if wants and not ready:
            return 0
        short |= ready < wants
        found += ready
    return min(found, needed - 1) if short else max(found, needed)


def _acknowledged(observed: Observed, stand: Stand, now: float, limits: Limits) -> int | None:
    """The lowest generation that every ready router follows, replicas of the candidate known to it; None: not known."""
    if observed.routers is None:
        return None
    generation = stand.traffic.generation
    found = [generation]
    hashes = {pool.hash for pool in stand.changed} if stand.state.weight else set()
    for router in observed.routers:
        if router.error:
            # It may be anything but a router that sends requests elsewhere; so the wait has an end.
            if now - stand.traffic.moved_at < limits.router_ack_timeout:
                return None
            continue
        takes = {name for name, _ in router.takes}
        unseen = any(not _known(observed, pool_hash, takes) for pool_hash in hashes)
        found.append(generation - 1 if unseen else -1 if router.generation is None else router.generation)
    return min(found)


def _known(observed: Observed, pool_hash: str, takes: set[str]) -> bool:
    """Whether a router sends requests to a pool that has ready replicas. Kubernetes' word for ready is not its own."""
    ready = {pod.name for pod in observed.pods_of(pool_hash) if pod.ready and not pod.terminating}
    return not ready or bool(ready & takes)


def _broken(observed: Observed, stand: Stand) -> str | None:
    """Why the candidate cannot start, where no waiting will help."""
    if not stand.state.candidate:
        return None
    if not stand.candidate:
        return f"revision {stand.state.candidate} is gone, or of a newer release"
    hashes = {pool.hash for pool in stand.changed}
    problems = [pod.problem for pod in observed.pods if pod.hash in hashes and not pod.over and not pod.terminating]
    cause = first_cause(one for one in problems if one is not None and one.reason in BROKEN)
    return None if cause is None else f"{cause.reason}: {cause.sentence}"


# --- what the state asks for ------------------------------------------------------------------------------------------


def _kept(stand: Stand) -> tuple[RevisionPool, ...]:
    return (*stand.base.pools, *(stand.candidate if stand.state.candidate else ()))


def _replicas(observed: Observed, stand: Stand) -> Iterator[Action]:
    """The Deployments of both revisions at the counts of the state; what both have just so is there once."""
    state = stand.state
    shared = {pool.hash for pool in stand.candidate} & {pool.hash for pool in stand.base.pools}
    for pool in stand.base.pools:
        total = stand.counts[pool.name]
        count = total if pool.hash in shared or not state.candidate else state.replicas(total).base
        if state.phase is Stage.MOVING:
            count = max(count, _standing(observed, pool))
        yield from ensure_pool(observed, pool, count)
    if state.candidate:
        for pool in stand.changed:
            count = state.replicas(stand.counts[pool.name]).candidate
            if state.phase is Stage.MOVING:
                count = max(count, _standing(observed, pool))
            yield from ensure_pool(observed, pool, count)


def _standing(observed: Observed, pool: RevisionPool) -> int:
    """Replicas that are asked for already: none goes while some router may still send it what it sent before."""
    seen = observed.deployment(child_name(observed.name, pool))
    return seen.replicas if seen is not None else 0


def _traffic(stand: Stand, desired: Desired, state: State, now: float) -> Traffic:
    """The record of a state. Another distribution, or another revision that carries the record, is another generation:
    the highest one counts.
    """
    before = stand.traffic
    pools = desired.pools if state.base == desired.revision and state.base != stand.base.name else stand.base.pools
    if state.base != before.revision and state.base == stand.state.candidate:
        pools = stand.candidate
    entries = [Entry(pool.name, state.base, 100 - state.weight) for pool in pools if state.weight < 100]
    if state.candidate and state.weight:
        entries += [Entry(pool.name, state.candidate, state.weight) for pool in stand.candidate]
    copied = desired.rules.shadow if desired.rules is not None and state.shadows else 0
    found = Traffic(state.generation, state.base, tuple(entries), before.moved_at, shadow=copied)
    if (found.entries, found.revision, found.shadow) != (before.entries, before.revision, before.shadow):
        generation = max(state.generation, before.generation + 1)
        state = replace(state, generation=generation)
        found = replace(found, generation=generation, moved_at=now)
    return replace(found, rollout=state if state.remembers else None)
