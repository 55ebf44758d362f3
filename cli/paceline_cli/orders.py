"""What `paceline` writes into a user's InferenceService: manual orders and the annotation of an upgrade.

Always by server-side apply under a manager of its own, and never over a field that somebody else owns.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from paceline_crds.names import ANNOTATION_CHANGE_CAUSE, ANNOTATION_UPGRADE, FIELD_MANAGER_CLI
from paceline_crds.rollout import OrderAction
from paceline_kube import INFERENCESERVICES, Conflict, Invalid, JsonObject, KubeClient
from paceline_operator.upgrades import Order

from .connection import Stop
from .owned import conflicts, merged, owned_by, owners, without
from .services import name_of, order_of, rollout_of

ORDER = ("spec", "rollout", "order")
PAUSED = ("spec", "rollout", "paused")
CAUSE = ("metadata", "annotations", ANNOTATION_CHANGE_CAUSE)

ATTEMPTS = 5
"""The operator may write the status between a look and a write."""


async def pin(client: KubeClient, obj: JsonObject, revision: str, reason: str | None) -> tuple[JsonObject, str]:
    """Order that a kept revision serves.

    Returns:
        The service as stored, and a note for the user where the reason could not be written down.

    Raises:
        Stop: somebody else owns the order.
    """
    order = {"spec": {"rollout": {"order": {"revision": revision, "action": OrderAction.PIN.value}}}}
    ours = merged(_ours(obj, CAUSE, ORDER), order)
    if reason is None:
        return await _apply(client, obj, ours, order), ""
    cause = {"metadata": {"annotations": {ANNOTATION_CHANGE_CAUSE: reason}}}
    told = merged(ours, cause)
    if (others := _others(obj, CAUSE)) and (obj["metadata"]["annotations"].get(ANNOTATION_CHANGE_CAUSE) != reason):
        note = f"the reason is not written down: the annotation {ANNOTATION_CHANGE_CAUSE} belongs to {others}"
        return await _apply(client, obj, ours, order), note
    return await _apply(client, obj, told, merged(order, cause)), ""


async def unpin(client: KubeClient, obj: JsonObject) -> JsonObject:
    """Give the order and its reason up.

    Raises:
        Stop: the order stays, since somebody else owns it (as well).
    """
    stored = obj
    if FIELD_MANAGER_CLI in owners(obj, ORDER):
        stored = await _apply(client, obj, without(_ours(obj, CAUSE), ORDER), {})
    if order_of(stored) is not None:
        raise Stop(
            f"the order of {name_of(obj)} belongs to {_others(stored, ORDER)} and stays: take spec.rollout.order out "
            "where it was written (in Git, if that is where the service comes from)"
        )
    return stored


async def order(
    client: KubeClient, obj: JsonObject, revision: str, action: OrderAction, by: str, reason: str | None
) -> JsonObject:
    """Order something about a rollout by steps. Each order is a new one, whatever was ordered before.

    Raises:
        Stop: somebody else owns the order.
    """
    said = {"revision": revision, "action": action.value, "id": uuid.uuid4().hex[:12], "by": by}
    wanted = {"spec": {"rollout": {"order": {**said, **({"why": reason} if reason else {})}}}}
    return await _apply(client, obj, merged(_ours(obj, ORDER), wanted), wanted)


async def pause(client: KubeClient, obj: JsonObject, paused: bool) -> JsonObject:
    """Let a rollout by steps stay where it is, or go on.

    Raises:
        Stop: somebody else owns the field.
    """
    if paused:
        wanted = {"spec": {"rollout": {"paused": True}}}
        return await _apply(client, obj, merged(_ours(obj), wanted), wanted)
    stored = obj
    if FIELD_MANAGER_CLI in owners(obj, PAUSED):
        stored = await _apply(client, obj, _ours(obj, PAUSED), {})
    if rollout_of(stored).get("paused"):
        raise Stop(
            f"spec.rollout.paused of {name_of(obj)} belongs to {_others(stored, PAUSED)} and stays true: take it out "
            "where it was written (in Git, if that is where the service comes from)"
        )
    return stored


async def upgrade(client: KubeClient, obj: JsonObject, order: Order) -> JsonObject:
    """Order that newer defaults and a newer image are taken over.

    Raises:
        Stop: somebody else owns the annotation.
    """
    said = {"at": order.at, "image": order.image, "hashVersion": order.hash_version}
    text = json.dumps({**said, "why": order.why} if order.why else said)
    wanted = {"metadata": {"annotations": {ANNOTATION_UPGRADE: text}}}
    return await _apply(client, obj, merged(owned_by(obj, FIELD_MANAGER_CLI), wanted), wanted)


def _ours(obj: JsonObject, *leave_out: tuple[str, ...]) -> JsonObject:
    """What this manager owns already, which an apply has to name again to keep it."""
    found = owned_by(obj, FIELD_MANAGER_CLI)
    for path in leave_out:
        found = without(found, path)
    return found


def _others(obj: JsonObject, path: tuple[str, ...]) -> str:
    return ", ".join(manager for manager in owners(obj, path) if manager != FIELD_MANAGER_CLI)


async def _apply(client: KubeClient, obj: JsonObject, ours: JsonObject, wanted: Mapping[str, Any]) -> JsonObject:
    metadata = obj["metadata"]
    # The uid: never on another service of this name, and never a new one.
    identity = {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}
    body = merged(ours, {"metadata": identity})
    try:
        return await client.apply(INFERENCESERVICES, body, field_manager=FIELD_MANAGER_CLI)
    except Conflict as exc:
        taken = conflicts(exc)
        if not taken:
            raise Stop(f"{name_of(obj)} was changed or deleted meanwhile: {exc.message}") from exc
        refusal = Stop(_refusal(obj, taken, wanted))
        if not {field for fields in taken.values() for field in fields} <= set(_maps(wanted)):
            raise refusal from exc
        return await _fill_in(client, body, taken, refusal)
    except Invalid as exc:
        if any(cause.get("field") == "metadata.uid" for cause in exc.causes):
            raise Stop(f"{name_of(obj)} was deleted and made anew meanwhile: nothing was ordered") from exc
        raise


async def _fill_in(client: KubeClient, body: JsonObject, taken: Mapping[str, list[str]], refusal: Stop) -> JsonObject:
    """Apply by force where others own maps that are empty (`annotations: {}` in a chart): that takes nothing from them.

    Only over the version in which they were seen to be empty.
    """
    metadata = body["metadata"]
    for _ in range(ATTEMPTS):
        live = await client.get(INFERENCESERVICES, metadata["name"], metadata["namespace"])
        if any(_value(live, field) for fields in taken.values() for field in fields):
            raise refusal
        version = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"]}}
        try:
            return await client.apply(
                INFERENCESERVICES, merged(body, version), field_manager=FIELD_MANAGER_CLI, force=True
            )
        except Conflict:
            continue
    raise refusal


def _maps(wanted: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the maps that lead to what is wanted, as the API server writes them."""
    for key, value in wanted.items():
        if isinstance(value, Mapping):
            yield f"{path}.{key}"
            yield from _maps(value, f"{path}.{key}")


def _value(obj: JsonObject, field: str) -> Any:
    found: Any = obj
    for part in field.removeprefix(".").split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _refusal(obj: JsonObject, taken: Mapping[str, list[str]], wanted: Mapping[str, Any]) -> str:
    whose = "; ".join(f"{', '.join(f.lstrip('.') for f in fields)} belongs to {by}" for by, fields in taken.items())
    return (
        f"nothing was changed in {name_of(obj)}: {whose}, which would put it back. Write this where that manager takes "
        f"the service from (in Git, for Argo CD or Flux):\n{_yaml(wanted)}"
    )


def _yaml(value: Mapping[str, Any], depth: int = 1) -> str:
    lines = []
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            lines += ["  " * depth + f"{key}:", _yaml(inner, depth + 1)]
        else:
            # A JSON string is a YAML string.
            lines.append("  " * depth + f"{key}: {inner if str(inner).isalnum() else json.dumps(inner)}")
    return "\n".join(lines)
