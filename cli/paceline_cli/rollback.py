"""`paceline rollback`: a kept revision serves again, until the order is taken back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from paceline_kube import JsonObject, KubeClient

from .connection import (
    GOOD,
    NOT_KNOWN,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Output,
    OutputOption,
    Stop,
    TimeoutOption,
    Where,
    run,
)
from .orders import pin, unpin
from .revisions import Kept, before, kept_of
from .services import behind, name_of, order_of, service, serving, settled_on, status_of, suspended
from .waiting import TookTooLong, until


def rollback(
    name: Annotated[str, typer.Argument(help="InferenceService.")],
    to: Annotated[
        str | None, typer.Option(help="A kept revision; `paceline history` lists them. Default: what served before.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Why; written into the annotation kubernetes.io/change-cause.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the order back: the spec is in force again.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the revision has all of the traffic.")
    ] = True,
    timeout: TimeoutOption = 600.0,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a kept revision serve again, whatever the rest of the spec asks for (spec.rollout.order), until `--undo`.

    While a new revision is still on its way, the default is the one that serves now: the roll is taken back.
    Exit code 1 where the order cannot be given, or is not carried out in time (it stands then).

    Examples:

      paceline rollback chat

      paceline rollback chat --to chat-7f3c9a1b2c --reason "first tokens twice as late"

      paceline rollback chat --undo
    """
    if undo and (to is not None or reason is not None):
        raise typer.BadParameter(
            "it takes back what was ordered, so it goes without --to and --reason", param_hint="--undo"
        )

    async def work(client: KubeClient, chosen: str) -> int:
        obj = await service(client, chosen, name)
        began = time.monotonic()
        if undo:
            done = await _undo(client, obj, wait, timeout)
        else:
            done = await _roll_back(client, obj, to, reason, wait, timeout)
        done["seconds"] = round(time.monotonic() - began, 1) if wait else None
        typer.echo(json.dumps(done, indent=2) if output is Output.JSON else _words(done))
        return GOOD

    run(work, Where(namespace, kubeconfig, context))


async def _roll_back(
    client: KubeClient, obj: JsonObject, to: str | None, reason: str | None, wait: bool, timeout: float
) -> dict[str, Any]:
    name = obj["metadata"]["name"]
    target = choose(obj, await kept_of(client, obj), to)
    came_from = serving(obj)
    began = time.monotonic()
    stored, note = await pin(client, obj, target.name, reason)
    if note:
        typer.echo(f"note: {note}", err=True)
    done: dict[str, Any] = {
        "service": name_of(obj),
        "ordered": target.name,
        "servedBefore": came_from,
        "trafficMovedAfterSeconds": None,
        "revision": None,
    }
    if not wait:
        return done
    settled = settled_on(target.name, stored["metadata"]["generation"])

    def check(now: JsonObject) -> bool:
        if done["trafficMovedAfterSeconds"] is None and serving(now) == target.name:
            done["trafficMovedAfterSeconds"] = round(time.monotonic() - began, 1)
        return settled(now)

    await _wait(client, obj, check, f"{name} is not wholly on {target.name}", timeout)
    done["revision"] = target.name
    return done


async def _undo(client: KubeClient, obj: JsonObject, wait: bool, timeout: float) -> dict[str, Any]:
    done: dict[str, Any] = {"service": name_of(obj), "ordered": None, "servedBefore": serving(obj), "revision": None}
    if order_of(obj) is None:
        raise Stop(f"{name_of(obj)} has no order: its spec is in force", GOOD)
    stored = await unpin(client, obj)
    if not wait:
        return done
    generation = stored["metadata"]["generation"]

    def check(now: JsonObject) -> bool:
        asked_for = status_of(now).get("updatedRevision")
        return asked_for is not None and settled_on(asked_for, generation)(now)

    now = await _wait(client, obj, check, f"{obj['metadata']['name']} is not as its spec asks", timeout)
    done["revision"] = serving(now)
    return done


async def _wait(client: KubeClient, obj: JsonObject, check: Any, what: str, timeout: float) -> JsonObject:
    try:
        found, _ = await until(client, obj["metadata"]["namespace"], obj["metadata"]["name"], check, timeout)
    except TookTooLong as exc:
        raise Stop(f"{what} after {timeout:.0f} s, and the order stands: {exc}") from exc
    except asyncio.CancelledError:
        typer.echo(f"{what}, and is not waited for any longer: the order stands", err=True)
        raise
    return found


def choose(obj: JsonObject, kept: Sequence[Kept], to: str | None) -> Kept:
    """The revision to go back to.

    Raises:
        Stop: there is none, or going there makes no sense; the words say why, and what does.
    """
    whole, name = name_of(obj), obj["metadata"]["name"]
    if suspended(obj):
        raise Stop(f"spec.suspend of {whole} is true, so nothing would be done: set it to false first")
    order, current, asked_for = order_of(obj), serving(obj), status_of(obj).get("updatedRevision")
    names = ", ".join(k.name for k in kept) or "none"
    if to is not None:
        found = next((k for k in kept if k.name in (to, f"{name}-{to}")), None)
        if found is None:
            raise Stop(f"revision {to} of {whole} is not kept; kept are: {names}")
    elif order is not None:
        raise Stop(
            f"{whole} is pinned to {order.get('revision')} already: name another revision with --to (kept are: "
            f"{names}), or take the order back with --undo"
        )
    elif behind(obj):
        raise Stop(
            f"the operator has not seen the latest change of {whole} yet, so what served before it is not known: wait "
            f"a moment, or name the revision with --to (kept are: {names})",
            NOT_KNOWN,
        )
    elif current is None:
        raise Stop(f"nothing of {whole} has served yet, so there is nothing to go back to", NOT_KNOWN)
    elif asked_for != current:
        # A roll that is under way or stuck: back means what serves now.
        found = next((k for k in kept if k.name == current), None)
    else:
        found = before(kept, current)
    if found is None:
        raise Stop(f"no other revision that has served {whole} is kept: name one with --to (kept are: {names})")
    if found.parsed is None:
        raise Stop(f"{found.name} was written by a newer release, so it cannot be read: use the `paceline` of that one")
    pinned_there = order is not None and order.get("revision") == found.name
    if found.name == asked_for and order is None:
        on_its_way = "serves already" if current == found.name else "is on its way already"
        raise Stop(
            f"{found.name} is what the spec of {whole} asks for, and {on_its_way}; there is nothing to roll back"
        )
    if pinned_there and found.name == current == asked_for:
        raise Stop(f"{whole} is pinned to {found.name} already, which serves; take the order back with --undo")
    return found


def _words(done: dict[str, Any]) -> str:
    if done["ordered"] is None:
        if done["seconds"] is None:
            return f"{done['service']}: the order is taken back"
        return f"{done['service']}: the order is taken back; {done['revision']} serves, after {done['seconds']} s"
    if done["seconds"] is None:
        return f"{done['service']}: {done['ordered']} is ordered; `paceline status` says how far it is"
    return (
        f"{done['service']}: {done['ordered']} serves again, instead of {done['servedBefore']}: first requests after "
        f"{done['trafficMovedAfterSeconds']} s, all of the traffic after {done['seconds']} s"
    )
