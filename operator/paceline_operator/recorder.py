"""Where the reconciler tells its decisions; the queue in front of the API server is in `events`."""

from __future__ import annotations

from typing import Protocol

from paceline_kube import JsonObject


class Recorder(Protocol):
    """Tells decisions as Kubernetes events. Must not block; may drop and merge repeats."""

    def event(self, about: JsonObject, *, type: str, reason: str, message: str) -> None:
        """`about` is the InferenceService as read; `type` is Normal or Warning."""
        ...
