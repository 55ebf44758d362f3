"""`paceline upgrade`: take over the defaults and the runtime image that a newer operator brings."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from paceline_crds.conditions import ConditionStatus, ConditionType
from paceline_crds.service import InferenceService
from paceline_kube import JsonObject, KubeClient
from paceline_operator.defaults import TABLES
from paceline_operator.render import InvalidSpec, carried_from, render
from paceline_operator.upgrades import Order, with_order

from . import orders
from .connection import (
    GOOD,
    NO,
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
from .revisions import Change, Kept, changes, kept_of, words_of
from .services import condition, name_of, order_of, services, status_of, suspended
from .tables import NOT_KNOWN, seconds_of, stamp_of
from .waiting import TookTooLong, until

SKEW_SECONDS = 2.0
"""Longest wait for the second of the newest revision to be over; a server's clock may be ahead of ours for ever."""


def upgrade(
    name: Annotated[str | None, typer.Argument(help="InferenceService. Left out: with --all only.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All services of the namespace, one after another.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; `paceline history` shows it.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the new revision serves.")] = False,
    timeout: TimeoutOption = 600.0,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take over newer defaults and a newer runtime image, where the spec is silent. Replicas are replaced.

    A new operator changes nothing that runs by itself. Exit code 0 also where there is nothing to take over, 1 where an
    order cannot be given, or is not carried out in time (it stands then).

    Examples:

      paceline upgrade chat --dry-run

      paceline upgrade chat --wait --reason "fix of the tokeniser"

      paceline upgrade --all -n demo --wait
    """
    if everything == (name is not None):
        raise typer.BadParameter("name one InferenceService, or write --all", param_hint="NAME")

    async def work(client: KubeClient, chosen: str) -> int:
        done = []
        for obj in await services(client, chosen, name):
            try:
                found = await _one(client, obj, reason, dry_run, wait, timeout)
            except Stop as stop:
                found = {"service": name_of(obj), "state": "refused", "words": str(stop)}
            if output is Output.TABLE:
                typer.echo(f"{found['service']}: {found['words']}", err=found["state"] == "refused")
            done.append(found)
        if output is Output.JSON:
            typer.echo(json.dumps(done, indent=2))
        elif not done:
            typer.echo(f"no InferenceServices in namespace {chosen}")
        return NO if any(found["state"] == "refused" for found in done) else GOOD

    run(work, Where(namespace, kubeconfig, context))


async def _one(
    client: KubeClient, obj: JsonObject, reason: str | None, dry_run: bool, wait: bool, timeout: float
) -> dict[str, Any]:
    offered = status_of(obj).get("upgrade")
    found: dict[str, Any] = {"service": name_of(obj), "state": "asAsked", "words": "nothing to take over"}
    if not offered:
        return found
    if (order := order_of(obj)) is not None:
        raise Stop(
            f"it is pinned to {order.get('revision')}, which an upgrade does not change: take the order back first "
            f"(`paceline rollback {obj['metadata']['name']} --undo`)"
        )
    if suspended(obj):
        raise Stop("spec.suspend is true, so nothing would be done: set it to false first")
    kept = await kept_of(client, obj)
    asked = Order(
        at=await _moment(kept, dry_run),
        image=str(offered["image"]),
        hash_version=int(offered["hashVersion"]),
        why=reason or "",
    )
    changed = preview(obj, kept, asked)
    what = changed if isinstance(changed, str) else words_of(changed, len({change.pool for change in changed}))
    found |= {
        "image": asked.image,
        "hashVersion": asked.hash_version,
        "changes": None if isinstance(changed, str) else [asdict(change) for change in changed],
        "state": "wouldChange" if dry_run else "ordered",
        "words": f"{'would change' if dry_run else 'ordered'}: {what}",
    }
    if dry_run:
        return found
    began = time.monotonic()
    await orders.upgrade(client, obj, asked)
    if wait:
        try:
            now, _ = await until(client, obj["metadata"]["namespace"], obj["metadata"]["name"], _taken_over, timeout)
        except TookTooLong as exc:
            raise Stop(f"not taken over after {timeout:.0f} s, and the order stands: {exc}") from exc
        took, revision = round(time.monotonic() - began, 1), status_of(now)["currentRevision"]
        found |= {"state": "takenOver", "revision": revision, "seconds": took}
        found["words"] = f"{revision} serves, after {took} s: {what}"
    return found


def _taken_over(obj: JsonObject) -> bool:
    status = status_of(obj)
    ready = condition(obj, ConditionType.READY).get("status") == ConditionStatus.TRUE
    return ready and "upgrade" not in status and status.get("currentRevision") == status.get("updatedRevision")


async def _moment(kept: Sequence[Kept], dry_run: bool) -> str:
    """A second after the one in which the newest revision was made: an order from the same second is an old one."""
    newest = max((seconds_of(k.created) or 0.0 for k in kept), default=0.0)
    left = newest + 1.0 - time.time()
    if 0.0 < left <= SKEW_SECONDS and not dry_run:
        await asyncio.sleep(left)
    return stamp_of(max(time.time(), newest + 1.0))


def preview(obj: JsonObject, kept: Sequence[Kept], asked: Order) -> list[Change] | str:
    """What the order changes against the revision that is asked for now; words where that cannot be told from here."""
    if asked.hash_version not in TABLES:
        return f"{NOT_KNOWN} (this `paceline` does not have the defaults of version {asked.hash_version})"
    before = next((k for k in kept if k.name == status_of(obj).get("updatedRevision")), None)
    if before is None or before.parsed is None:
        return f"{NOT_KNOWN} (the present revision cannot be read)"
    readable = [k.parsed for k in kept if k.parsed is not None]
    try:
        parsed = InferenceService.from_object(obj)
        desired = render(parsed, with_order(carried_from(readable), asked, readable), asked.image)
    except (InvalidSpec, ValidationError) as exc:
        return f"{NOT_KNOWN} (the spec cannot be rendered: {exc})"
    return changes(before.pools, desired.pools)
