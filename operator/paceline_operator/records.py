"""The record of where requests go, where somebody takes it away.

It stands on the revision that serves and cannot be made anew from anything else. Without it an older one would count,
whose replicas are long gone, or none, and the traffic would move at once to what has no replica yet. So what was there
is remembered from the moment it is taken away, until it is put back or a newer one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_crds.names import ANNOTATION_ROLLOUT, API_VERSION
from paceline_kube import Change, JsonObject, Key, uid_of

from .gather import ownership
from .observed import Observed, Ownership, Traffic


def record_of(revision: JsonObject) -> Traffic | None:
    """The record that a revision carries; None where it has none, or one that cannot be read."""
    text = (revision["metadata"].get("annotations") or {}).get(ANNOTATION_ROLLOUT)
    return None if text is None else Traffic.from_json(revision["metadata"]["name"], text)


class Records:
    """Revisions whose record of the traffic was taken away, by service: of each the one that counted last."""

    def __init__(self) -> None:
        self._taken: dict[Key, tuple[Traffic, JsonObject]] = {}

    def see(self, service: Key, change: Change) -> None:
        """A revision of the service has changed."""
        if change.old is None or (before := record_of(change.old)) is None:
            return
        after = record_of(change.new) if change.new is not None and uid_of(change.new) == uid_of(change.old) else None
        if after is not None and after.generation >= before.generation:
            return
        known = self._taken.get(service)
        if known is None or known[0].generation <= before.generation:
            self._taken[service] = before, change.old

    def lost(self, service: Key, observed: Observed) -> JsonObject | None:
        """The revision to put back, as it was; None where what is there counts."""
        taken = self._taken.get(service)
        if taken is None:
            return None
        record, revision = taken
        now = observed.traffic
        counts = now is not None and now.generation >= record.generation
        if counts or ownership(revision, observed.uid, observed.name) is Ownership.FOREIGN:
            del self._taken[service]
            return None
        return revision

    def forget(self, service: Key) -> None:
        """The service is gone."""
        self._taken.pop(service, None)


def anew(revision: JsonObject) -> dict[str, Any]:
    """The manifest that makes a deleted revision anew, with its record."""
    metadata: Mapping[str, Any] = revision["metadata"]
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceRevision",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": revision["spec"],
    }
