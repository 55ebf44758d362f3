"""What the status says of drift. Pure."""

from __future__ import annotations

from paceline_crds.conditions import ConditionStatus, Reason
from paceline_crds.status import DriftItem, DriftStatus
from paceline_operator.verdict import Verdict

from .compare import Drift

SHOWN_ITEMS = 10
NAMED = 3


def in_sync(drift: Drift) -> Verdict:
    """`ConfigInSync`: False where something differs, Unknown where a replica, or nobody yet, says what it runs with."""
    if drift.items:
        first = drift.items[0]
        subjects = len({item.subject for item in drift.items})
        more = f" (and {len(drift.items) - 1} more on {subjects} objects)" if len(drift.items) > 1 else ""
        words = f"{first.subject}: {first.field} is {first.actual}, recorded is {first.desired}{more}"
        return Verdict(ConditionStatus.FALSE, Reason.DRIFTED, words)
    if drift.unknown:
        named = "; ".join(f"{name}: {why}" for name, why in sorted(drift.unknown.items())[:NAMED])
        more = f" and {len(drift.unknown) - NAMED} more" if len(drift.unknown) > NAMED else ""
        words = f"what {len(drift.unknown)} replicas run with is not known ({named}{more})"
        return Verdict(ConditionStatus.UNKNOWN, Reason.NOT_KNOWN, words)
    if not drift.checked:
        why = "no replica is ready to say what it runs with" if drift.running else "no replica is there to say it"
        return Verdict(ConditionStatus.UNKNOWN, Reason.NOT_KNOWN, why)
    count = "1 replica reports" if drift.checked == 1 else f"{drift.checked} replicas report"
    return Verdict(ConditionStatus.TRUE, Reason.IN_SYNC, f"{count} what is recorded")


def drift_status(drift: Drift | None) -> DriftStatus | None:
    """`status.drift`; absent before the first look."""
    if drift is None:
        return None
    items = [
        DriftItem(pod=item.subject, field=item.field, desired=item.desired, actual=item.actual)
        for item in drift.items[:SHOWN_ITEMS]
    ]
    return DriftStatus(count=len(drift.items), items=items or None)
