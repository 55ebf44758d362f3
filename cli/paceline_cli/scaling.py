"""`paceline status --scaling`: how many replicas each pool should have by its load, what its knobs should be, and the
numbers behind it.
"""

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

KNOB_SHOWN = ("tpot", "limit", "waiting", "running", "requests")
"""The same of a decision about knobs."""

ADVICE = "no pool follows load: set spec.scaling.maxReplicas, or spec.runtime.autoRanges"

KINDS = {"scaling": ConditionType.SCALING_ACTIVE, "tuning": ConditionType.TUNING_ACTIVE}
"""Lists of the status that have decisions, and the condition of each."""


def decisions(obj: JsonObject) -> list[dict[str, Any]]:
    """The decisions about a service's pools, for programs; `ready` is null where the status does not say.

    What was decided about a pool's knobs is under `tuning`; the fields beside it are about its count, where that
    follows load.
    """
    status = status_of(obj)
    ready = {pool["name"]: pool.get("ready") for pool in status.get("pools") or ()}
    where = {"namespace": obj["metadata"]["namespace"], "name": obj["metadata"]["name"]}
    counts = {one["pool"]: one for one in status.get("scaling") or ()}
    knobs = {one["pool"]: one for one in status.get("tuning") or ()}
    return [
        {
            **where,
            "ready": ready.get(pool),
            **counts.get(pool, {"pool": pool}),
            **({"tuning": {k: v for k, v in knobs[pool].items() if k != "pool"}} if pool in knobs else {}),
        }
        for pool in sorted({*counts, *knobs})
    ]


def lines(found: Iterable[JsonObject], with_namespace: bool, now: float) -> Iterator[str]:
    """A table of the decisions about counts, one of those about knobs, and under each the sentences. A number that was
    not known is a question mark.
    """
    made = [one for obj in found for one in decisions(obj)]
    if not made:
        yield ADVICE
        return
    counts = [one for one in made if "desired" in one]
    if counts:
        heads = ["NAME", "POOL", "READY", "DECIDED", "REASON", "SINCE", *(name.upper() for name in SHOWN)]
        yield _table(heads, [(one, _row(one, now)) for one in counts], with_namespace)
        yield ""
        for one in counts:
            asked = f" (asked: {', '.join(one['sources'])})" if one.get("sources") else ""
            yield f"{one['name']}/{one['pool']}: {one.get('message', '')}{asked}"
    knobs = [one for one in made if "tuning" in one]
    if knobs:
        if counts:
            yield ""
        heads = ["NAME", "POOL", "KNOB", "DECIDED", "STARTED", "REASON", "SINCE"]
        heads += [name.upper() for name in KNOB_SHOWN]
        yield _table(heads, [(one, row) for one in knobs for row in _knob_rows(one, now)], with_namespace)
        yield ""
        for one in knobs:
            yield f"{one['name']}/{one['pool']}: {one['tuning'].get('message', '')}"


def is_known(found: Iterable[JsonObject]) -> bool:
    """Whether every decision was made from known figures."""
    return all(
        condition(obj, kind).get("status") == ConditionStatus.TRUE
        for obj in found
        for name, kind in KINDS.items()
        if status_of(obj).get(name)
    )


def _table(heads: list[str], rows: list[tuple[Mapping[str, Any], list[str]]], with_namespace: bool) -> str:
    if not with_namespace:
        return columns([heads, *(row for _, row in rows)])
    return columns([["NAMESPACE", *heads], *([one["namespace"], *row] for one, row in rows)])


def _since(one: Mapping[str, Any], now: float) -> str:
    return age(seconds_of(one.get("since")), now) if one.get("since") else WORDS_NOT_KNOWN


def _row(one: Mapping[str, Any], now: float) -> list[str]:
    inputs = one.get("inputs") or {}
    ready = "?" if one["ready"] is None else str(one["ready"])
    fixed = [one["name"], one["pool"], ready, str(one["desired"]), one["reason"], _since(one, now)]
    return [*fixed, *(str(inputs.get(name, "?")) for name in SHOWN)]


def _knob_rows(one: Mapping[str, Any], now: float) -> Iterator[list[str]]:
    """A row for each knob; the numbers are the pool's, and stand once."""
    said = one["tuning"]
    inputs = said.get("inputs") or {}
    numbers = [said["reason"], _since(said, now), *(str(inputs.get(name, "?")) for name in KNOB_SHOWN)]
    for knob, value in sorted(said["knobs"].items()):
        started = str((said.get("started") or {}).get(knob, "?"))
        yield [one["name"], one["pool"], knob, str(value), started, *numbers]
        numbers = [""] * len(numbers)
