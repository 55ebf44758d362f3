"""What the status of a service says. Pure: a function of what was seen; the previous status gives only the times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from paceline_crds.conditions import Condition, ConditionStatus, ConditionType, Reason
from paceline_crds.names import LABEL_SERVICE, derived_name
from paceline_crds.revision import RevisionPool
from paceline_crds.rollout import RolloutStrategy
from paceline_crds.status import (
    AddressStatus,
    InferenceServiceStatus,
    PoolStatus,
    TrafficEntry,
    TrafficStatus,
)

from .drift.verdict import drift_status, in_sync
from .failures import Problem
from .observed import PodView
from .render import Desired
from .rollout.told import rollout_status, shadow_status
from .room import lacks_room
from .scaling.told import scaling_active
from .schemas import words as words_of_missing
from .situation import (
    Situation,
    cause_of,
    counts,
    counts_that_wait,
    in_force,
    is_idle,
    is_rejected,
    is_rolling,
    lasting_cause,
    refused,
    serving_cause,
    serving_counts,
    serving_replicas,
    short_pools,
    total,
)
from .tuning.told import tuning_active
from .verdict import Verdict

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def status_of(
    situation: Situation, previous: Iterable[Mapping[str, Any]], now: float, router_url: str
) -> dict[str, Any]:
    """The whole status as it is written.

    Args:
        previous: the conditions so far; only their `lastTransitionTime` is taken over, where the status is the same.
        now: seconds since the epoch.
        router_url: without a slash at its end.
    """
    observed, desired = situation.observed, situation.desired
    traffic = observed.traffic
    living = [p for p in observed.pods if not p.over and not p.terminating]
    known = desired is not None and observed.revision(desired.revision) is not None
    updated = desired.revision if desired is not None and known else None
    status = InferenceServiceStatus(
        observed_generation=observed.generation,
        conditions=_with_times(judge(situation), previous, now, observed.generation),
        replicas=len(living),
        ready_replicas=sum(1 for p in living if p.ready),
        selector=f"{LABEL_SERVICE}={derived_name(observed.name)}",
        address=AddressStatus(url=f"{router_url}/{observed.namespace}/{observed.name}/v1"),
        current_revision=traffic.revision if traffic else None,
        updated_revision=updated or (traffic.revision if traffic else None),
        pools=_pools(situation),
        traffic=TrafficStatus(
            generation=traffic.generation,
            entries=[TrafficEntry(pool=e.pool, revision=e.revision, weight=e.weight) for e in traffic.entries],
            shadow=shadow_status(
                traffic.rollout, traffic.shadow, desired.rules if desired else None, situation.recorder
            ),
        )
        if traffic
        else None,
        rollout=rollout_status(
            traffic.rollout if traffic else None,
            desired.revision if desired else "",
            observed.judgement,
            desired.waiting if desired else (),
        ),
        scaling=[situation.scaling[name] for name in sorted(situation.scaling)] if situation.scaling else None,
        tuning=[situation.tuning[name].status for name in sorted(situation.tuning)] or None,
        upgrade=situation.upgrade,
        drift=drift_status(situation.drift),
    )
    return status.model_dump(mode="json", exclude_none=True)


def judge(situation: Situation) -> dict[ConditionType, Verdict]:
    """All conditions, see the table in the contract."""
    waits = counts_that_wait(situation)
    situation = in_force(situation)
    verdicts = {
        ConditionType.READY: _ready(situation, waits),
        ConditionType.TRAFFIC_READY: _traffic_ready(situation),
        ConditionType.REVISION_READY: _revision_ready(situation),
        ConditionType.PROGRESSING: _progressing(situation),
    }
    if (upgrade := situation.upgrade) is not None:
        words = (
            f"the operator brings runtime {upgrade.image} and defaults of version {upgrade.hash_version}; nothing "
            f"changes until `paceline upgrade {situation.observed.name}`"
        )
        verdicts[ConditionType.UPGRADE_AVAILABLE] = Verdict(TRUE, Reason.NEWER_RELEASE, words)
    if situation.conflict is not None:
        reason = Reason.NAME_KEPT if situation.conflict.keeps else Reason.NAME_TAKEN
        verdicts[ConditionType.MODEL_NAME_CONFLICT] = Verdict(TRUE, reason, situation.conflict.message)
    if situation.crd_lacks:
        verdicts[ConditionType.CRD_OUTDATED] = Verdict(
            TRUE, Reason.FIELDS_MISSING, words_of_missing(situation.crd_lacks)
        )
    if situation.desired is not None and situation.desired.out_of_reach:
        verdicts[ConditionType.SHAPES_OUT_OF_REACH] = Verdict(
            TRUE, Reason.POOL_TOO_SHORT, situation.desired.out_of_reach
        )
    if situation.drift is not None:
        verdicts[ConditionType.CONFIG_IN_SYNC] = in_sync(situation.drift)
    if situation.scaling and (scaling := scaling_active(situation.scaling)) is not None:
        verdicts[ConditionType.SCALING_ACTIVE] = scaling
    if (tuning := tuning_active(situation.tuning)) is not None:
        verdicts[ConditionType.TUNING_ACTIVE] = tuning
    if situation.slo is not None:
        verdicts[ConditionType.SLO_MET] = situation.slo
    if situation.outputs is not None:
        verdicts[ConditionType.OUTPUTS_AGREE] = situation.outputs
    if situation.split is not None:
        verdicts[ConditionType.SPLIT_ADVISED] = situation.split
    return verdicts


def with_last_looks(status: Mapping[str, Any], before: Mapping[str, Any], situation: Situation) -> dict[str, Any]:
    """The status of an operator that has not looked at everything yet, with what the one before it found."""
    looks = {
        ConditionType.CONFIG_IN_SYNC: situation.drift,
        ConditionType.OUTPUTS_AGREE: situation.outputs,
        ConditionType.SPLIT_ADVISED: situation.split,
    }
    missing = [kind.value for kind, found in looks.items() if found is None]
    if situation.promises and situation.slo is None:
        missing.append(ConditionType.SLO_MET.value)
    undecided = situation.follows_load and not situation.scaling
    if undecided:
        missing.append(ConditionType.SCALING_ACTIVE.value)
    untuned = bool(situation.tuned_pools) and not situation.tuning
    if untuned:
        missing.append(ConditionType.TUNING_ACTIVE.value)
    order = [kind.value for kind in ConditionType]
    conditions = [*status["conditions"], *(c for c in before.get("conditions") or () if c.get("type") in missing)]
    fields = {"drift": situation.drift is None, "scaling": undecided, "tuning": untuned}
    kept = {name: before[name] for name, unknown in fields.items() if unknown and name in before}
    return {**status, "conditions": sorted(conditions, key=lambda c: order.index(c["type"])), **kept}


def _ready(situation: Situation, waits: str) -> Verdict:
    verdict = _ready_by_what_runs(situation)
    if situation.desired is not None and situation.desired.suspended:
        words = "; ".join(part for part in (verdict.message, waits) if part)
        # A count that waits is as little "as asked" as a revision that waits.
        status = FALSE if waits else verdict.status
        return Verdict(status, Reason.SUSPENDED, f"nothing is changed until spec.suspend is false; {words}")
    return verdict


def _ready_by_what_runs(situation: Situation) -> Verdict:
    desired, cause, serves = situation.desired, lasting_cause(situation), serving_replicas(situation)
    traffic = situation.observed.traffic
    if desired is None:
        problem = situation.problem
        assert problem is not None, "a spec that is not rendered has a problem"
        return Verdict(FALSE, problem.reason, problem.sentence)
    on_target = traffic is not None and traffic.revision == desired.revision
    if on_target and not is_rolling(situation):
        if situation.problem is not None:
            return Verdict(FALSE, situation.problem.reason, situation.problem.sentence)
        if total(desired) == 0:
            return Verdict(TRUE, Reason.SCALED_TO_ZERO, "no replicas are asked for")
        if not short_pools(situation):
            words = f"{desired.revision} serves, {serves} of {serves} ready"
            if desired.pinned:
                return Verdict(TRUE, Reason.PINNED, f"{words}; spec.rollout.order pins it")
            return Verdict(TRUE, Reason.AS_ASKED, words)
        if serves and cause is not None:
            return Verdict(FALSE, Reason.DEGRADED, f"{counts(situation)}; {cause.sentence}")
        if serves:
            # Nothing fails: more were asked for, or a replica took the place of another.
            words = f"{counts(situation)}, the others start; those that are ready serve"
            return Verdict(FALSE, Reason.STARTING, words)
        return _nothing_serves(situation, cause)
    if serves:
        current = traffic.revision if traffic else ""
        if words := refused(situation):
            reason = Reason.ROLLED_BACK if is_rejected(situation) else Reason.ROLLING_OUT
            return Verdict(FALSE, reason, f"{current} serves; {words}")
        if cause is not None:
            # A roll that is stuck: what serves goes on, and the user learns what to mend.
            words = f"{desired.revision} does not get ready: {cause.sentence}{_advice(desired, cause)}"
            return Verdict(FALSE, cause.reason, f"{words}; {current} goes on serving")
        waiting = situation.waiting or counts(situation)
        if lacks_room(cause_of(situation)):
            waiting += "; there is no room for both, so replicas are replaced one by one"
        words = "replicas of another revision are still to go" if on_target else f"{desired.revision} takes over"
        return Verdict(FALSE, Reason.ROLLING_OUT, f"{current} serves while {words}: {waiting}")
    if cause is None and total(desired) == 0 and not desired.suspended:
        words = situation.waiting or f"{desired.revision} takes over without replicas"
        return Verdict(FALSE, Reason.ROLLING_OUT, words)
    return _nothing_serves(situation, cause)


def _advice(desired: Desired, cause: Problem) -> str:
    """A roll needs room for both revisions; where there is none, the user can have the other strategy."""
    if desired.strategy is not RolloutStrategy.ROLLING:
        return ""
    if lacks_room(cause):
        return (
            " (if no room for both revisions is found, replicas are soon replaced one by one; with "
            "spec.rollout.strategy: Recreate they are without waiting)"
        )
    if cause.reason is Reason.QUOTA_EXCEEDED:
        return " (where the quota has no room for both revisions, set spec.rollout.strategy: Recreate)"
    return ""


def _nothing_serves(situation: Situation, cause: Problem | None) -> Verdict:
    suspended = situation.desired is not None and situation.desired.suspended
    if cause is None and suspended:
        cause = serving_cause(situation)
    if cause is not None:
        return Verdict(FALSE, cause.reason, cause.sentence)
    words = serving_counts(situation) if suspended else ""
    return Verdict(FALSE, Reason.STARTING, words or situation.waiting or counts(situation))


def _traffic_ready(situation: Situation) -> Verdict:
    serves, desired = serving_replicas(situation), situation.desired
    traffic = situation.observed.traffic
    if serves and traffic and situation.keys:
        return Verdict(FALSE, Reason.KEYS_UNREADABLE, situation.keys)
    if serves and traffic:
        words = "1 replica takes" if serves == 1 else f"{serves} replicas take"
        return Verdict(TRUE, Reason.SERVING, f"{words} requests for {traffic.revision}")
    if is_idle(situation):
        return Verdict(TRUE, Reason.IDLE, "no replicas are asked for")
    in_force = desired is not None and not desired.suspended
    cause = cause_of(situation) or (None if in_force else serving_cause(situation))
    if cause is not None:
        return Verdict(FALSE, cause.reason, cause.sentence)
    words = counts(situation) if in_force else serving_counts(situation)
    return Verdict(FALSE, Reason.NOTHING_SERVES, words or "no replica is ready")


def _revision_ready(situation: Situation) -> Verdict:
    desired = situation.desired
    if desired is None:
        assert situation.problem is not None, "a spec that is not rendered has a problem"
        return Verdict(FALSE, situation.problem.reason, situation.problem.sentence)
    if situation.observed.revision(desired.revision) is None:
        if situation.problem is not None:
            return Verdict(FALSE, situation.problem.reason, situation.problem.sentence)
        return Verdict(UNKNOWN, Reason.SUSPENDED if desired.suspended else Reason.STARTING, "no revision was made yet")
    if is_rejected(situation) and situation.problem is None:
        return Verdict(FALSE, Reason.ROLLED_BACK, refused(situation))
    if not short_pools(situation) and situation.problem is None:
        return Verdict(TRUE, Reason.AS_ASKED, f"every replica of {desired.revision} is ready")
    cause = cause_of(situation)
    if cause is not None:
        return Verdict(FALSE, cause.reason, cause.sentence)
    return Verdict(FALSE, Reason.STARTING, counts(situation))


def _progressing(situation: Situation) -> Verdict:
    desired = situation.desired
    if desired is None:
        assert situation.problem is not None, "a spec that is not rendered has a problem"
        return Verdict(FALSE, situation.problem.reason, situation.problem.sentence)
    if desired.suspended:
        return Verdict(FALSE, Reason.SUSPENDED, "nothing is changed until spec.suspend is false")
    cause = lasting_cause(situation)
    if cause is not None:
        return Verdict(FALSE, cause.reason, cause.sentence)
    if words := refused(situation):
        return Verdict(FALSE, Reason.ROLLED_BACK if is_rejected(situation) else Reason.ROLLING_OUT, words)
    if is_rolling(situation):
        return Verdict(TRUE, Reason.ROLLING_OUT, situation.waiting or counts(situation))
    if short_pools(situation):
        return Verdict(TRUE, Reason.STARTING, situation.waiting or counts(situation))
    return Verdict(FALSE, Reason.AS_ASKED, f"nothing is left to do for {desired.revision}")


def _pools(situation: Situation) -> list[PoolStatus] | None:
    desired, observed = situation.desired, situation.observed
    if desired is None:
        return None

    def draining(pool: str) -> list[PodView]:
        return [p for p in observed.pods if p.pool == pool and p.terminating and not p.over]

    def hashes(pool: RevisionPool) -> set[str]:
        """During a rollout by steps both revisions carry the pool's load."""
        traffic = observed.traffic
        rollout = traffic.rollout if traffic is not None else None
        base = observed.revision(rollout.base) if rollout is not None else None
        return {pool.hash} | {other.hash for other in (base.pools if base else ()) if other.name == pool.name}

    return [
        PoolStatus(
            name=pool.name,
            hash=pool.hash,
            desired=desired.replicas[pool.name],
            ready=sum(observed.ready(pool_hash) for pool_hash in hashes(pool)),
            draining=len(draining(pool.name)),
        )
        for pool in desired.pools
    ]


def _with_times(
    verdicts: Mapping[ConditionType, Verdict], previous: Iterable[Mapping[str, Any]], now: float, generation: int
) -> list[Condition]:
    """Conditions in a fixed order. The time of a condition is when its status last changed."""
    before = {c.get("type"): c for c in previous}
    stamp = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def since(kind: ConditionType, status: ConditionStatus) -> str:
        old = before.get(kind.value) or {}
        return str(old["lastTransitionTime"]) if old.get("status") == status.value else stamp

    return [
        Condition(
            type=kind.value,
            status=verdict.status,
            reason=verdict.reason.value,
            message=verdict.message,
            last_transition_time=since(kind, verdict.status),
            observed_generation=generation,
        )
        for kind, verdict in verdicts.items()
    ]
