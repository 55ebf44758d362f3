"""`paceline status`: what serves, and what is wrong, of one service or of all."""

from __future__ import annotations

import asyncio
import enum
import json
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any

import typer

from paceline_crds.conditions import ConditionStatus, ConditionType
from paceline_kube import EVENTS, Forbidden, JsonObject, KubeClient, KubeError

from . import scaling
from .connection import (
    GOOD,
    NO,
    NOT_KNOWN,
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Where,
    away,
    only_one,
    run,
    words_of,
)
from .glance import WIDTH, fleet, one_service, summary
from .services import condition, services, status_of
from .tables import stamp_of
from .verdict import under_way
from .waiting import patiently

SHOWN_EVENTS = 10

CLEAR = "\x1b[H\x1b[2J"
"""Of a terminal."""


class Output(enum.StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


def output_of(text: str) -> Output:
    """How to print, by what the user wrote.

    Raises:
        typer.BadParameter: it is another word.
    """
    try:
        return Output(text)
    except ValueError:
        raise typer.BadParameter(f"write table, wide or json, not {text!r}") from None


def status(
    name: Annotated[str | None, typer.Argument(help="InferenceService. Left out: all of the namespace.")] = None,
    all_namespaces: AllNamespacesOption = False,
    of_scaling: Annotated[
        bool, typer.Option("--scaling", help="How many replicas pools should have by their load, and why.")
    ] = False,
    namespace: NamespaceOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until interrupted.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks with --watch.")] = 2.0,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: Annotated[
        Output,
        typer.Option(
            "--output",
            "-o",
            parser=output_of,
            metavar="<table|wide|json>",
            help="table (80 columns), wide or json.",
        ),
    ] = Output.TABLE,
) -> None:
    """What serves, and what is wrong: traffic, replicas, drift, rollout, SLO, and the last decisions with reasons.

    In the table, ? is not known; SLO says kept, inner (a P99 is missed), missed, or - where nothing is promised.

    Exit code 1 where a service takes no requests (TrafficReady is False), 3 where that is not known, else 0.
    With --scaling: 3 where a count is only held since something is not known, else 0.

    Examples:

      paceline status

      paceline status chat -n demo

      paceline status -A -o json

      paceline status chat --watch

      paceline status chat --scaling
    """
    only_one(name, all_namespaces, namespace)

    async def look(client: KubeClient, chosen: str) -> tuple[str, int]:
        found = await patiently(services(client, chosen, name, all_namespaces), "the services")
        if of_scaling:
            known = GOOD if scaling.is_known(found) else NOT_KNOWN
            if output is Output.JSON:
                return json.dumps([one for obj in found for one in scaling.decisions(obj)], indent=2), known
            return "\n".join(scaling.lines(found, all_namespaces, time.time())), known
        code = exit_code(found)
        width = None if output is Output.WIDE else max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
        if name is not None:
            [one] = found
            events, words = await patiently(_events(client, one), "events")
            verdict = await patiently(under_way(client, one, time.time()), "the revision")
            if output is Output.JSON:
                said = {**summary(one), "verdict": verdict, "status": status_of(one), "events": events}
                return json.dumps(said, indent=2), code
            return "\n".join(one_service(one, events, words, time.time(), width, verdict)), code
        if output is Output.JSON:
            return json.dumps([summary(obj) for obj in found], indent=2), code
        if found:
            return fleet(found, all_namespaces, width), code
        where = "" if all_namespaces else f" in namespace {chosen} (-A shows all namespaces)"
        return f"no InferenceServices{where}", code

    async def work(client: KubeClient, chosen: str) -> int:
        if watch:
            clear = CLEAR if sys.stdout.isatty() and output is not Output.JSON else ""
            return await again_and_again(lambda: look(client, chosen), every, clear)
        text, code = await look(client, chosen)
        typer.echo(text)
        return code

    run(work, Where(namespace, kubeconfig, context))


async def again_and_again(
    look: Callable[[], Awaitable[tuple[str, int]]],
    every: float,
    clear: str = "",
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> int:
    """Print what `look` finds, until interrupted; the exit code of the last look.

    An API server that is away for a moment is told of and waited for.

    Args:
        every: seconds between two looks.
        clear: printed before each, to overwrite the one before.
    """
    code = NOT_KNOWN
    try:
        while True:
            try:
                text, code = await look()
            except KubeError as exc:
                if not away(exc):
                    raise
                text, code = f"the API server does not answer: {words_of(exc)}", NOT_KNOWN
            typer.echo(f"{clear}{text}" if clear else f"{text}\n--- {stamp_of(time.time())}")
            await pause(every)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return code


def exit_code(found: Iterable[JsonObject]) -> int:
    """One that serves nothing outweighs one of which nothing is known."""
    traffic = [condition(obj, ConditionType.TRAFFIC_READY).get("status") for obj in found]
    if ConditionStatus.FALSE in traffic:
        return NO
    return NOT_KNOWN if any(value != ConditionStatus.TRUE for value in traffic) else GOOD


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
