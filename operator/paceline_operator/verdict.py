"""A condition without its times."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_crds.conditions import ConditionStatus, Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status, the word for programs, and the sentence for people."""

    status: ConditionStatus
    reason: Reason
    message: str
