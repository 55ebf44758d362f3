"""A decision as the status tells it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from paceline_autoscaler.recommend import Decision
from paceline_crds.conditions import ConditionStatus, Reason
from paceline_crds.status import ScalingStatus
from paceline_operator.verdict import Verdict

UNKNOWN = frozenset({"MetricsUnavailable", "NotMeasured"})
"""Reasons of a decision that is only to hold, since something is not known."""

CONFLICT = "ScalerConflict"
"""Reason where nothing is decided, since somebody else scales the same."""

INACTIVE = UNKNOWN | {CONFLICT}


def scaling_status(
    pool: str, decision: Decision, sources: Iterable[str], now: float, before: ScalingStatus | None
) -> ScalingStatus:
    """The entry of a pool. While neither count nor reason changes it stays as it was: live figures are for metrics.

    Args:
        sources: who was asked.
        now: seconds since the epoch.
    """
    if before is not None and (before.desired, before.reason) == (decision.replicas, decision.reason):
        return before
    return ScalingStatus(
        pool=pool,
        desired=decision.replicas,
        reason=decision.reason,
        message=decision.message,
        since=datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        sources=list(sources),
        inputs={
            name: value if isinstance(value, str) else f"{value:.4g}"
            for name, value in decision.inputs.items()
            if value is not None
        },
    )


def scaling_active(pools: Mapping[str, ScalingStatus]) -> Verdict | None:
    """The condition; None where no pool follows load."""
    if not pools:
        return None
    conflicts = [one for one in pools.values() if one.reason == CONFLICT]
    held = [one for one in pools.values() if one.reason in UNKNOWN]
    told = "; ".join(f"pool {one.pool}: {one.desired}, {one.message}" for one in conflicts or held or pools.values())
    if conflicts:
        return Verdict(ConditionStatus.FALSE, Reason.SCALER_CONFLICT, told)
    if held:
        return Verdict(ConditionStatus.FALSE, Reason.METRICS_UNAVAILABLE, told)
    return Verdict(ConditionStatus.TRUE, Reason.FOLLOWS_LOAD, told)
