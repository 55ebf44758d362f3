"""`paceline status`: what serves, and what is wrong, of one service or of all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from paceline_crds.conditions import ConditionStatus, ConditionType
from paceline_kube import EVENTS, Forbidden, JsonObject, KubeClient

from . import scaling
from .connection import (
    GOOD,
    NO,
    NOT_KNOWN,
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Output,
    OutputOption,
    Where,
    only_one,
    run,
)
from .services import behind, condition, name_of, order_of, services, status_of, wanted_replicas
from .tables import NOT_KNOWN as WORDS_NOT_KNOWN
from .tables import age, columns, indented, seconds_of, shortened
from .waiting import patiently

MESSAGE_CHARACTERS = 100
SHOWN_EVENTS = 10


def status(
    name: Annotated[str | None, typer.Argument(help="InferenceService. Left out: all of the namespace.")] = None,
    all_namespaces: AllNamespacesOption = False,
    of_scaling: Annotated[
        bool, typer.Option("--scaling", help="How many replicas pools should have by their load, and why.")
    ] = False,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """What serves, and what is wrong.

    Exit code 1 where a service takes no requests (TrafficReady is False), 3 where that is not known, else 0.
    With --scaling: 3 where a count is only held since something is not known, else 0.

    Examples:

      paceline status

      paceline status chat -n demo

      paceline status -A -o json

      paceline status chat --scaling
    """
    only_one(name, all_namespaces, namespace)

    async def work(client: KubeClient, chosen: str) -> int:
        found = await patiently(services(client, chosen, name, all_namespaces), "the services")
        if of_scaling:
            if output is Output.JSON:
                typer.echo(json.dumps([one for obj in found for one in scaling.decisions(obj)], indent=2))
            else:
                typer.echo("\n".join(scaling.lines(found, all_namespaces, time.time())))
            return GOOD if scaling.is_known(found) else NOT_KNOWN
        if name is not None:
            [one] = found
            events, words = await patiently(_events(client, one), "events")
            if output is Output.JSON:
                typer.echo(json.dumps({**summary(one), "status": status_of(one), "events": events}, indent=2))
            else:
                typer.echo("\n".join(one_service(one, events, words, time.time())))
        elif output is Output.JSON:
            typer.echo(json.dumps([summary(obj) for obj in found], indent=2))
        elif found:
            typer.echo(columns(table(found, all_namespaces)))
        else:
            typer.echo("no InferenceServices" + ("" if all_namespaces else f" in namespace {chosen}"))
        return exit_code(found)

    run(work, Where(namespace, kubeconfig, context))


def exit_code(found: Iterable[JsonObject]) -> int:
    """One that serves nothing outweighs one of which nothing is known."""
    traffic = [condition(obj, ConditionType.TRAFFIC_READY).get("status") for obj in found]
    if ConditionStatus.FALSE in traffic:
        return NO
    return NOT_KNOWN if any(value != ConditionStatus.TRUE for value in traffic) else GOOD


def summary(obj: JsonObject) -> dict[str, Any]:
    """One line of the table, for programs; what is not known is null."""
    ready, traffic = condition(obj, ConditionType.READY), condition(obj, ConditionType.TRAFFIC_READY)
    found = status_of(obj)
    return {
        "namespace": obj["metadata"]["namespace"],
        "name": obj["metadata"]["name"],
        "ready": ready.get("status"),
        "reason": ready.get("reason"),
        "trafficReady": traffic.get("status"),
        "revision": found.get("currentRevision"),
        "askedFor": found.get("updatedRevision"),
        "replicas": {"ready": found.get("readyReplicas"), "wanted": wanted_replicas(obj)},
        "drift": _drift_count(obj),
        "statusIsOld": behind(obj),
        "message": ready.get("message"),
    }


def _drift_count(obj: JsonObject) -> int | None:
    """Values that differ; None where not all replicas say what they run with, and none is known to differ."""
    in_sync = condition(obj, ConditionType.CONFIG_IN_SYNC).get("status")
    count = (status_of(obj).get("drift") or {}).get("count")
    return None if in_sync not in (ConditionStatus.TRUE, ConditionStatus.FALSE) or count is None else int(count)


def table(found: Iterable[JsonObject], with_namespace: bool) -> list[list[str]]:
    """Heads and a row for each service."""
    rows = [["NAME", "READY", "REASON", "REVISION", "REPLICAS", "DRIFT", "MESSAGE"]]
    rows += [_row(obj) for obj in found]
    if with_namespace:
        spaces = ["NAMESPACE", *(obj["metadata"]["namespace"] for obj in found)]
        rows = [[space, *row] for space, row in zip(spaces, rows, strict=True)]
    return rows


def _row(obj: JsonObject) -> list[str]:
    said = summary(obj)
    drift = WORDS_NOT_KNOWN if said["drift"] is None else str(said["drift"] or "none")
    message = said["message"] or "the operator has not said anything yet"
    if behind(obj) and said["ready"] is not None:
        message = f"(of an earlier spec) {message}"
    return [
        said["name"],
        said["ready"] or WORDS_NOT_KNOWN,
        said["reason"] or WORDS_NOT_KNOWN,
        said["revision"] or WORDS_NOT_KNOWN,
        _replicas(obj),
        drift,
        shortened(message, MESSAGE_CHARACTERS),
    ]


def _replicas(obj: JsonObject) -> str:
    ready, wanted = status_of(obj).get("readyReplicas"), wanted_replicas(obj)
    return f"{'?' if ready is None else ready}/{'?' if wanted is None else wanted}"


def one_service(obj: JsonObject, events: list[dict[str, Any]], words: str, now: float) -> Iterator[str]:
    """All that is known of one service, line by line. `words` say why there are no events."""
    found = status_of(obj)
    yield f"{name_of(obj)}: {_headline(obj)}"
    if behind(obj):
        yield "The operator has not seen the latest change of the spec yet: what follows is of the one before."
    if url := (found.get("address") or {}).get("url"):
        yield f"Address: {url}"
    if order := order_of(obj):
        undo = f"`paceline rollback {obj['metadata']['name']} --undo`"
        yield f"Order: {order.get('action')} {order.get('revision')}, until {undo}"
    if pools := found.get("pools"):
        rows = [["POOL", "READY", "DRAINING", "HASH"]]
        rows += [[p["name"], f"{p['ready']}/{p['desired']}", str(p.get("draining", 0)), p["hash"]] for p in pools]
        yield f"\nPools:\n{indented(rows)}"
    if traffic := found.get("traffic"):
        rows = [["POOL", "REVISION", "WEIGHT"]]
        rows += [[entry["pool"], entry["revision"], f"{entry['weight']}%"] for entry in traffic["entries"]]
        yield f"\nTraffic (generation {traffic['generation']}):\n{indented(rows)}"
    if conditions := found.get("conditions"):
        rows = [["CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"]]
        rows += [
            [
                c["type"],
                c["status"],
                age(seconds_of(c.get("lastTransitionTime")), now),
                c["reason"],
                c.get("message", ""),
            ]
            for c in conditions
        ]
        yield f"\nConditions:\n{indented(rows)}"
    yield from _drift(obj)
    if upgrade := found.get("upgrade"):
        yield (
            f"\nUpgrade: runtime {upgrade['image']}, defaults of version {upgrade['hashVersion']}; "
            f"`paceline upgrade {obj['metadata']['name']} --dry-run` shows what it would change"
        )
    if events:
        rows = [["LAST SEEN", "TYPE", "REASON", "MESSAGE"]]
        rows += [[age(seconds_of(e["lastSeen"]), now), e["type"], e["reason"], e["message"]] for e in events]
        yield f"\nEvents:\n{indented(rows)}"
    else:
        yield f"\nEvents: {words or 'none'}"


def _headline(obj: JsonObject) -> str:
    ready = condition(obj, ConditionType.READY)
    if not ready:
        return "not known: the operator has not written a status (is it running?)"
    verdict = {"True": "ready", "False": "not ready"}.get(ready["status"], WORDS_NOT_KNOWN)
    return f"{verdict} ({ready['reason']}), {ready.get('message', '')}"


def _drift(obj: JsonObject) -> Iterator[str]:
    drift = status_of(obj).get("drift") or {}
    items = drift.get("items") or []
    if not items:
        return
    rows = [["OBJECT", "FIELD", "RECORDED", "ACTUAL"]]
    rows += [[item["pod"], item["field"], item["desired"], item["actual"]] for item in items]
    more = int(drift["count"]) - len(items)
    rest = f"\n  and {more} more: paceline drift {obj['metadata']['name']}" if more > 0 else ""
    yield f"\nDrift:\n{indented(rows)}{rest}"


async def _events(client: KubeClient, obj: JsonObject) -> tuple[list[dict[str, Any]], str]:
    """The last events about a service, newest first, and in words why they could not be read."""
    metadata = obj["metadata"]
    selector = f"involvedObject.name={metadata['name']},involvedObject.uid={metadata['uid']}"
    try:
        listed = await client.list(EVENTS, metadata["namespace"], field_selector=selector)
    except Forbidden:
        return [], "not known (you may not read events here)"
    found = [
        {
            "lastSeen": e.get("lastTimestamp") or e.get("eventTime") or e["metadata"].get("creationTimestamp") or "",
            "type": e.get("type", ""),
            "reason": e.get("reason", ""),
            "message": e.get("message", ""),
        }
        for e in listed.items
        if (e.get("involvedObject") or {}).get("uid") == metadata["uid"]
    ]
    found.sort(key=lambda e: str(e["lastSeen"]), reverse=True)
    return found[:SHOWN_EVENTS], ""
