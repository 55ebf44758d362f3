"""`paceline status --scaling`: how many replicas each pool should have by its load, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paceline_crds.conditions import ConditionStatus, ConditionType
from paceline_kube import JsonObject

from .services import condition, status_of
from .tables import NOT_KNOWN as WORDS_NOT_KNOWN
from .tables import age, columns, seconds_of

SHOWN = ("work", "peak", "needed", "for_queue", "waiting", "held", "ready", "starting", "start_up")
"""Numbers that have a column; `-o json` has all."""

ADVICE = "no pool follows load: set spec.scaling.maxReplicas"


def decisions(obj: JsonObject) -> list[dict[str, Any]]:
    """The decisions about a service's pools, for programs; `ready` is null where the status does not say."""
    ready = {pool["name"]: pool.get("ready") for pool in status_of(obj).get("pools") or ()}
    where = {"namespace": obj["metadata"]["namespace"], "name": obj["metadata"]["name"]}
    return [{**where, "ready": ready.get(one["pool"]), **one} for one in status_of(obj).get("scaling") or ()]


def lines(found: Iterable[JsonObject], with_namespace: bool, now: float) -> Iterator[str]:
    """A table of the decisions, and under it each one's sentence. A number that was not known is a question mark."""
    made = [one for obj in found for one in decisions(obj)]
    if not made:
        yield ADVICE
        return
    heads = ["NAME", "POOL", "READY", "DECIDED", "REASON", "SINCE", *(name.upper() for name in SHOWN)]
    rows = [heads, *(_row(one, now) for one in made)]
    if with_namespace:
        spaces = ["NAMESPACE", *(one["namespace"] for one in made)]
        rows = [[space, *row] for space, row in zip(spaces, rows, strict=True)]
    yield columns(rows)
    yield ""
    for one in made:
        asked = f" (asked: {', '.join(one['sources'])})" if one.get("sources") else ""
        yield f"{one['name']}/{one['pool']}: {one.get('message', '')}{asked}"


def is_known(found: Iterable[JsonObject]) -> bool:
    """Whether every decision was made from known figures."""
    with_scaling = [obj for obj in found if status_of(obj).get("scaling")]
    kind = ConditionType.SCALING_ACTIVE
    return all(condition(obj, kind).get("status") == ConditionStatus.TRUE for obj in with_scaling)


def _row(one: Mapping[str, Any], now: float) -> list[str]:
    inputs = one.get("inputs") or {}
    ready = "?" if one["ready"] is None else str(one["ready"])
    since = age(seconds_of(one.get("since")), now) if one.get("since") else WORDS_NOT_KNOWN
    fixed = [one["name"], one["pool"], ready, str(one["desired"]), one["reason"], since]
    return [*fixed, *(str(inputs.get(name, "?")) for name in SHOWN)]
