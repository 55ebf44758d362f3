"""Reading InferenceServices: from the API server, and what their status says. Objects are plain JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline_crds.conditions import ConditionStatus, ConditionType
from paceline_crds.rollout import OrderAction
from paceline_kube import INFERENCESERVICES, Forbidden, JsonObject, KubeClient, NotFound

from .connection import Stop, words_of


async def service(client: KubeClient, namespace: str, name: str) -> JsonObject:
    """One service.

    Raises:
        Stop: there is none of this name; the words name those that are there, or the namespace that has it.
    """
    try:
        return await client.get(INFERENCESERVICES, name, namespace)
    except NotFound as exc:
        if not exc.details.get("name") and exc.reason != "NotFound":
            raise Stop(words_of(exc)) from exc
        there = [obj["metadata"]["name"] for obj in (await client.list(INFERENCESERVICES, namespace)).items]
        words = f"there are {', '.join(sorted(there)[:10])}" if there else await _elsewhere(client, name)
        raise Stop(f"no InferenceService {namespace}/{name}: {words}") from exc


async def _elsewhere(client: KubeClient, name: str) -> str:
    """Which namespace to write, for a name that is looked for in one without any service."""
    words = "there is none in this namespace"
    try:
        found = (await client.list(INFERENCESERVICES, None)).items
    except Forbidden:
        return words
    spaces = sorted(obj["metadata"]["namespace"] for obj in found if obj["metadata"]["name"] == name)
    if spaces:
        return f"{words}; write {' or '.join(f'-n {space}' for space in spaces[:10])}"
    return words + ("; `paceline status -A` shows those of others" if found else ", nor in any other")


async def services(
    client: KubeClient, namespace: str, name: str | None, all_namespaces: bool = False
) -> list[JsonObject]:
    """The named one, else all of the namespace, else all there are.

    Raises:
        Stop: the named one is not there.
    """
    if name is not None:
        return [await service(client, namespace, name)]
    found = await client.list(INFERENCESERVICES, None if all_namespaces else namespace)
    return sorted(found.items, key=lambda obj: (obj["metadata"]["namespace"], obj["metadata"]["name"]))


def name_of(obj: JsonObject) -> str:
    """`namespace/name`."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def status_of(obj: JsonObject) -> JsonObject:
    """The status; empty where the operator has not written one."""
    found: JsonObject = obj.get("status") or {}
    return found


def condition(obj: JsonObject, kind: ConditionType) -> JsonObject:
    """A condition; empty where there is none."""
    return next((c for c in status_of(obj).get("conditions") or () if c.get("type") == kind), {})


def behind(obj: JsonObject) -> bool:
    """Whether the status speaks of an older spec than the present one."""
    return int(status_of(obj).get("observedGeneration") or 0) < int(obj["metadata"].get("generation") or 0)


def serving(obj: JsonObject) -> str | None:
    """The revision that gets the requests, as the status has it."""
    return status_of(obj).get("currentRevision")


def wanted_replicas(obj: JsonObject) -> int | None:
    """Replicas asked for, over all pools; None where the status does not say."""
    pools = status_of(obj).get("pools")
    return None if pools is None else sum(int(pool["desired"]) for pool in pools)


def order_of(obj: JsonObject) -> JsonObject | None:
    """The order of the spec that pins a revision; orders about a rollout by steps are none."""
    order: JsonObject | None = rollout_of(obj).get("order")
    return order if order is not None and order.get("action", OrderAction.PIN) == OrderAction.PIN else None


def rollout_of(obj: JsonObject) -> JsonObject:
    """How the spec wants a new revision to take over."""
    found: JsonObject = obj["spec"].get("rollout") or {}
    return found


def suspended(obj: JsonObject) -> bool:
    """Whether the operator changes nothing of it."""
    return bool(obj["spec"].get("suspend"))


def settled_on(revision: str, generation: int) -> Callable[[JsonObject], bool]:
    """A check that a service of at least this generation serves with this revision alone, every replica ready."""

    def check(obj: JsonObject) -> bool:
        status, ready = status_of(obj), condition(obj, ConditionType.READY)
        return (
            int(status.get("observedGeneration") or 0) >= generation
            and status.get("currentRevision") == revision
            and status.get("updatedRevision") == revision
            and ready.get("status") == ConditionStatus.TRUE
        )

    return check


def says(obj: JsonObject) -> str:
    """What the status says of Ready, for a line of progress."""
    ready: dict[str, Any] = condition(obj, ConditionType.READY)
    if not ready or behind(obj):
        return "the operator has not seen the change yet"
    return f"{ready['reason']}: {ready.get('message', '')}".rstrip(": ")
