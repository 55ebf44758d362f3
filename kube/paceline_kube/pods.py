"""What a pod's status says of its readiness."""

from __future__ import annotations

from paceline_kube.client import JsonObject


def is_ready(pod: JsonObject) -> bool:
    """Whether a pod is ready and not on its way out."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
