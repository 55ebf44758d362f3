"""What is seen of services at a glance: a line for each of a fleet, a page for one. Pure; fits a width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from paceline_crds.conditions import ConditionStatus, ConditionType, Reason
from paceline_kube import JsonObject

from .services import behind, condition, name_of, order_of, status_of, wanted_replicas
from .tables import NOT_KNOWN, age, columns, fitted, folded, indented, seconds_of

WIDTH = 80

UNKNOWN = "?"
"""In a table. Never zero, and never an empty cell."""

NOTHING_PROMISED = "-"

SAID_BELOW = frozenset({Reason.AS_ASKED, Reason.SCALED_TO_ZERO, Reason.PINNED})
"""Reasons of a Ready with which nothing is left to say of a service in the fleet's page."""


def summary(obj: JsonObject) -> dict[str, Any]:
    """One line of the table, for programs; what is not known is null."""
    ready, traffic = condition(obj, ConditionType.READY), condition(obj, ConditionType.TRAFFIC_READY)
    found, slo = status_of(obj), condition(obj, ConditionType.SLO_MET)
    return {
        "namespace": obj["metadata"]["namespace"],
        "name": obj["metadata"]["name"],
        "ready": ready.get("status"),
        "reason": ready.get("reason"),
        "trafficReady": traffic.get("status"),
        "revision": found.get("currentRevision"),
        "askedFor": found.get("updatedRevision"),
        "replicas": {"ready": found.get("readyReplicas"), "wanted": wanted_replicas(obj)},
        "traffic": (found.get("traffic") or {}).get("entries"),
        "rollout": found.get("rollout"),
        "scaling": found.get("scaling"),
        "drift": drift_count(obj),
        "slo": {name: slo.get(name) for name in ("status", "reason", "message")} if slo else None,
        "statusIsOld": behind(obj),
        "message": ready.get("message"),
    }


def drift_count(obj: JsonObject) -> int | None:
    """Values that differ; None where not all replicas say what they run with, and none is known to differ."""
    in_sync = condition(obj, ConditionType.CONFIG_IN_SYNC).get("status")
    count = (status_of(obj).get("drift") or {}).get("count")
    return None if in_sync not in (ConditionStatus.TRUE, ConditionStatus.FALSE) or count is None else int(count)


def fleet(found: Sequence[JsonObject], with_namespace: bool, width: int | None) -> str:
    """A line for each service, and under the table a sentence for each of which there is more to say.

    Args:
        width: characters of a line; None: as many as it takes, with all the names as they are and each sentence in
            its line.
    """
    heads = ["NAME", "READY", "REASON", "TRAFFIC", "REPLICAS", "DRIFT", "SLO"]
    rows = [heads, *(_row(obj, short=width is not None) for obj in found)]
    shrinking = [0, 3]
    if with_namespace:
        spaces = ["NAMESPACE", *(obj["metadata"]["namespace"] for obj in found)]
        rows = [[space, *row] for space, row in zip(spaces, rows, strict=True)]
        shrinking = [0, 1, 4]
    said = [words(obj) for obj in found]
    if width is None:
        ends = ["MESSAGE", *("; ".join(one) or message_of(obj) for obj, one in zip(found, said, strict=True))]
        return columns([[*row, end] for row, end in zip(rows, ends, strict=True)])
    out = [columns(fitted(rows, width, shrinking))]
    for obj, one in zip(found, said, strict=True):
        if one:
            title = name_of(obj) if with_namespace else obj["metadata"]["name"]
            out.append("\n".join([f"\n{title}:", *(folded(sentence, width, 2) for sentence in one)]))
    return "\n".join(out)


def _row(obj: JsonObject, short: bool) -> list[str]:
    said = summary(obj)
    ready, wanted = said["replicas"]["ready"], said["replicas"]["wanted"]
    return [
        said["name"],
        said["ready"] or UNKNOWN,
        said["reason"] or UNKNOWN,
        traffic_of(obj, short),
        f"{UNKNOWN if ready is None else ready}/{UNKNOWN if wanted is None else wanted}",
        UNKNOWN if said["drift"] is None else str(said["drift"] or "none"),
        slo_word(obj),
    ]


def traffic_of(obj: JsonObject, short: bool) -> str:
    """Who gets the requests: `chat-7f3c9`, or `chat-7f3c9 75% chat-8d1e0 25%`; a range where pools differ.

    Args:
        short: several revisions without the name of the service, with which each of them begins.
    """
    weights: dict[str, list[int]] = {}
    for entry in (status_of(obj).get("traffic") or {}).get("entries") or ():
        weights.setdefault(entry["revision"], []).append(int(entry["weight"]))
    named = {revision: shares for revision, shares in weights.items() if max(shares)}
    if len(named) == 1:
        return next(iter(named))
    begin = f"{obj['metadata']['name']}-" if short else ""
    return " ".join(f"{name.removeprefix(begin)} {_range(shares)}" for name, shares in named.items()) or UNKNOWN


def _range(shares: Sequence[int]) -> str:
    low, high = min(shares), max(shares)
    return f"{low}%" if low == high else f"{low}-{high}%"


def slo_word(obj: JsonObject) -> str:
    """Whether it keeps what it promises, in one word: `kept`, `inner` (a P99 is missed), `missed`, `?`, or `-`."""
    found = condition(obj, ConditionType.SLO_MET)
    if not found:
        return NOTHING_PROMISED
    if found["reason"] == Reason.INNER_LINE_CROSSED:
        return "inner"
    return {"True": "kept", "False": "missed"}.get(found["status"], UNKNOWN)


def message_of(obj: JsonObject) -> str:
    """What Ready says."""
    ready = condition(obj, ConditionType.READY)
    message = str(ready.get("message") or "the operator has not said anything yet")
    return f"(of an earlier spec) {message}" if behind(obj) and ready else message


def words(obj: JsonObject) -> list[str]:
    """What there is to say of a service beside its line, the most urgent first."""
    said = []
    ready, slo = condition(obj, ConditionType.READY), condition(obj, ConditionType.SLO_MET)
    if ready.get("reason") not in SAID_BELOW or behind(obj):
        said.append(message_of(obj))
    if slo and slo_word(obj) in ("inner", "missed"):
        said.append(f"SLO: {slo['reason']}, {slo.get('message', '')}")
    if rollout := status_of(obj).get("rollout"):
        said.append(f"rollout: {rollout_words(rollout)}")
    if drift_count(obj):
        said.append(f"drift: {condition(obj, ConditionType.CONFIG_IN_SYNC).get('message', '')}")
    return said


def rollout_words(rollout: Mapping[str, Any]) -> str:
    """Where a rollout by steps is, and why."""
    step = f", step {rollout['step']} of {rollout.get('steps', UNKNOWN)}" if rollout.get("step") is not None else ""
    weight = f" at {rollout.get('weight', UNKNOWN)} %"
    verdict = f", verdict {rollout['verdict']}" if rollout.get("verdict") else ""
    message = f": {rollout['message']}" if rollout.get("message") else ""
    return (
        f"{rollout.get('revision', UNKNOWN)} {rollout.get('phase', UNKNOWN)}{step}{weight}{verdict} "
        f"({rollout.get('reason', UNKNOWN)}){message}"
    )


def one_service(
    obj: JsonObject,
    events: list[dict[str, Any]],
    why_none: str,
    now: float,
    width: int | None,
    verdict: str | None = None,
) -> Iterator[str]:
    """All that is known of one service, line by line.

    Args:
        why_none: why there are no events.
        verdict: what its rollout's gates say now, with why; None where nothing is rolled out.
    """

    def sentence(text: str, by: int = 4) -> str:
        return " " * by + text if width is None else folded(text, width, by)

    found = status_of(obj)
    yield sentence(f"{name_of(obj)}: {_headline(obj)}", 0)
    if behind(obj):
        yield "The operator has not seen the latest change of the spec yet: what follows is"
        yield "of the one before."
    if url := (found.get("address") or {}).get("url"):
        yield f"Address: {url}"
    if order := order_of(obj):
        undo = f"`paceline rollback {obj['metadata']['name']} --undo`"
        yield sentence(f"Order: {order.get('action')} {order.get('revision')}, until {undo}", 0)
    if pools := found.get("pools"):
        rows = [["POOL", "READY", "DRAINING", "HASH"]]
        rows += [[p["name"], f"{p['ready']}/{p['desired']}", str(p.get("draining", 0)), p["hash"]] for p in pools]
        yield f"\nPools:\n{indented(rows)}"
    if traffic := found.get("traffic"):
        rows = [["POOL", "REVISION", "WEIGHT"]]
        rows += [[entry["pool"], entry["revision"], f"{entry['weight']}%"] for entry in traffic["entries"]]
        yield f"\nTraffic (generation {traffic['generation']}):\n{indented(rows)}"
    if rollout := found.get("rollout"):
        yield f"\nRollout, since {age(seconds_of(rollout.get('since')), now)}:"
        yield sentence(rollout_words(rollout), 2)
        if verdict:
            yield sentence(f"its verdict: {verdict}", 2)
        if rollout.get("waitingPools"):
            yield sentence(f"then, by a rollout of their own (lastPools): {', '.join(rollout['waitingPools'])}", 2)
        if rollout.get("prospect"):
            yield sentence(f"its step, as computed before it: {rollout['prospect']}", 2)
    for one in found.get("scaling") or ():
        yield f"\nScaling of pool {one['pool']}: {one['desired']} ({one['reason']}), for {_since(one, now)}"
        yield sentence(one.get("message") or NOT_KNOWN, 2)
    yield from _conditions(found.get("conditions") or (), now, sentence)
    yield from _drift(obj)
    if upgrade := found.get("upgrade"):
        dry = f"`paceline upgrade {obj['metadata']['name']} --dry-run` shows what it would change"
        yield f"\nUpgrade: runtime {upgrade['image']}, defaults of version {upgrade['hashVersion']};"
        yield dry
    if events:
        yield "\nEvents:"
        for event in events:
            yield f"  {age(seconds_of(event['lastSeen']), now):<7} {event['type']:<7} {event['reason']}"
            yield sentence(event["message"], 10)
    else:
        yield f"\nEvents: {why_none or 'none'}"


def _since(one: Mapping[str, Any], now: float) -> str:
    return age(seconds_of(one.get("since")), now)


def _conditions(conditions: Iterable[Mapping[str, Any]], now: float, sentence: Any) -> Iterator[str]:
    conditions = list(conditions)
    if not conditions:
        return
    rows = [["CONDITION", "STATUS", "SINCE", "REASON"]]
    rows += [
        [c["type"], c["status"], age(seconds_of(c.get("lastTransitionTime")), now), c["reason"]] for c in conditions
    ]
    head, *lines = columns(rows).splitlines()
    yield f"\nConditions:\n  {head}"
    for line, one in zip(lines, conditions, strict=True):
        yield f"  {line}"
        if one.get("message"):
            yield sentence(one["message"], 4)


def _headline(obj: JsonObject) -> str:
    ready = condition(obj, ConditionType.READY)
    if not ready:
        return "not known: the operator has not written a status (is it running?)"
    verdict = {"True": "ready", "False": "not ready"}.get(ready["status"], NOT_KNOWN)
    return f"{verdict} ({ready['reason']}), {ready.get('message', '')}"


def _drift(obj: JsonObject) -> Iterator[str]:
    drift = status_of(obj).get("drift") or {}
    items = drift.get("items") or []
    if not items:
        return
    yield "\nDrift:"
    for item in items:
        yield f"  {item['pod']}"
        yield f"    {item['field']}: recorded {item['desired']}, is {item['actual']}"
    more = int(drift["count"]) - len(items)
    if more > 0:
        yield f"  and {more} more: paceline drift {obj['metadata']['name']}"
