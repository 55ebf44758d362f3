"""Who asked for a revision, and why: from the metadata of the service. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_crds.names import ANNOTATION_ASKED_BY, ANNOTATION_CHANGE_CAUSE, FIELD_MANAGER_OPERATOR

CAUSE_CHARACTERS = 1024


def provenance(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Annotations for a revision that a service with this metadata makes: its last writer and the stated cause."""
    found: dict[str, str] = {}
    if by := asked_by(metadata):
        found[ANNOTATION_ASKED_BY] = by
    if cause := (metadata.get("annotations") or {}).get(ANNOTATION_CHANGE_CAUSE):
        found[ANNOTATION_CHANGE_CAUSE] = str(cause)[:CAUSE_CHARACTERS]
    return found


def asked_by(metadata: Mapping[str, Any]) -> str:
    """The field manager that wrote the spec last; empty where the metadata does not say."""
    writers = [
        entry
        for entry in metadata.get("managedFields") or ()
        if "f:spec" in (entry.get("fieldsV1") or {})
        and entry.get("manager") != FIELD_MANAGER_OPERATOR
        and not entry.get("subresource")
    ]
    last = max(writers, key=lambda entry: str(entry.get("time") or ""), default=None)
    return str(last.get("manager") or "") if last is not None else ""
