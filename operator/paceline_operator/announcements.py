"""Events about a status that was written: what has become true, or false for another reason, and each warning once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paceline_crds.conditions import ConditionStatus, ConditionType, Reason
from paceline_kube import JsonObject

from .recorder import Recorder

QUIET = frozenset({Reason.ROLLING_OUT, Reason.STARTING, Reason.SUSPENDED})
"""Reasons of a Ready that is False without anything being wrong."""

WARNINGS = (ConditionType.MODEL_NAME_CONFLICT, ConditionType.CRD_OUTDATED, ConditionType.SHAPES_OUT_OF_REACH)
"""Conditions that are there only while something should be mended."""

WARNING_REASONS = {
    (ConditionType.TRAFFIC_READY, Reason.KEYS_UNREADABLE): "KeysUnreadable",
    (ConditionType.CONFIG_IN_SYNC, Reason.DRIFTED): "ConfigDrift",
    (ConditionType.OUTPUTS_AGREE, Reason.ANSWER_CHANGED): "AnswerChanged",
    (ConditionType.OUTPUTS_AGREE, Reason.REPLICA_DIFFERS): "ReplicaDiffers",
    (ConditionType.OUTPUTS_AGREE, Reason.CACHE_CONTAMINATED): "CacheContaminated",
}
"""Reasons of conditions that are always there, and the Event's."""


def announce(
    recorder: Recorder, service: JsonObject, before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]
) -> None:
    """Tell of what the conditions of a service say now and did not say before."""
    old = {str(condition.get("type")): condition for condition in before}
    new = {str(condition.get("type")): condition for condition in now}
    ready, was = new[ConditionType.READY], old.get(ConditionType.READY, {})
    if (was.get("status"), was.get("reason")) != (ready["status"], ready["reason"]):
        if ready["status"] == ConditionStatus.TRUE:
            recorder.event(service, type="Normal", reason="Ready", message=ready["message"])
        elif ready["reason"] not in QUIET:
            recorder.event(service, type="Warning", reason=ready["reason"], message=ready["message"])
    told = {kind: str(kind) for kind in WARNINGS if kind in new}
    told |= {kind: words for (kind, why), words in WARNING_REASONS.items() if new.get(kind, {}).get("reason") == why}
    for kind, reason in told.items():
        if new[kind]["message"] != old.get(kind, {}).get("message"):
            recorder.event(service, type="Warning", reason=reason, message=new[kind]["message"])
