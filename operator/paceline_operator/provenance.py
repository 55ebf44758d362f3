"""Who asked for a revision, and why: from the metadata of the service. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_crds.names import ANNOTATION_ASKED_BY, ANNOTATION_CHANGE_CAUSE, ANNOTATION_UPGRADE, FIELD_MANAGER_OPERATOR

from .render import InvalidSpec
from .upgrades import read_order

CAUSE_CHARACTERS = 1024


def provenance(metadata: Mapping[str, Any], newest: str = "") -> dict[str, str]:
    """Annotations for a revision that a service with this metadata makes: who asked for it, and the stated cause.

    Args:
        newest: when the newest revision so far was made, RFC 3339; an upgrade that was ordered after it is what makes
            this one.
    """
    found: dict[str, str] = {}
    annotations = metadata.get("annotations") or {}
    try:
        order = read_order(annotations)
    except InvalidSpec:
        order = None
    ordered = order is not None and order.holds(newest)
    if by := upgraded_by(metadata) if ordered else asked_by(metadata):
        found[ANNOTATION_ASKED_BY] = by
    if cause := order.why if ordered and order is not None else annotations.get(ANNOTATION_CHANGE_CAUSE):
        found[ANNOTATION_CHANGE_CAUSE] = str(cause)[:CAUSE_CHARACTERS]
    return found


def order_cause(metadata: Mapping[str, Any]) -> str | None:
    """The stated cause of the order in `spec.rollout.order`: the service's, where whoever wrote the order wrote it.

    Any other says why the spec was changed at some earlier time.
    """
    cause = (metadata.get("annotations") or {}).get(ANNOTATION_CHANGE_CAUSE)
    for entry in metadata.get("managedFields") or () if cause else ():
        fields = entry.get("fieldsV1") or {}
        ordered = "f:order" in ((fields.get("f:spec") or {}).get("f:rollout") or {})
        stated = (fields.get("f:metadata") or {}).get("f:annotations") or {}
        if ordered and f"f:{ANNOTATION_CHANGE_CAUSE}" in stated:
            return str(cause)[:CAUSE_CHARACTERS]
    return None


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


def upgraded_by(metadata: Mapping[str, Any]) -> str:
    """The field manager that ordered the upgrade; empty where the metadata does not say."""
    for entry in metadata.get("managedFields") or ():
        written = (entry.get("fieldsV1") or {}).get("f:metadata") or {}
        if f"f:{ANNOTATION_UPGRADE}" in (written.get("f:annotations") or {}):
            return str(entry.get("manager") or "")
    return ""
