"""`paceline history`: the revisions of a service, who asked for them, and what they changed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from paceline_crds.names import ANNOTATION_CHANGE_CAUSE, FIELD_MANAGER_CLI
from paceline_kube import JsonObject, KubeClient

from .connection import (
    GOOD,
    NOT_KNOWN,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Output,
    OutputOption,
    Where,
    run,
)
from .orders import CAUSE, ORDER
from .owned import owners
from .revisions import Kept, changes, kept_of, states, words_of
from .services import name_of, order_of, service
from .tables import NOT_KNOWN as WORDS_NOT_KNOWN
from .tables import age, columns, seconds_of, shortened, stamp_of
from .waiting import patiently

SHOWN_CHANGES = 3
WHY_CHARACTERS = 60


def history(
    name: Annotated[str, typer.Argument(help="InferenceService.")],
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """The kept revisions, newest first: when, by whom, why, and what each one changed against the one before.

    A revision keeps its name when an old configuration comes back, so the newest is not always the one that serves.
    Exit code 3 where no revision has been made yet.

    Examples:

      paceline history chat

      paceline history chat -n demo -o json
    """

    async def work(client: KubeClient, chosen: str) -> int:
        obj = await patiently(service(client, chosen, name), "the service")
        kept = await patiently(kept_of(client, obj), "the revisions")
        if output is Output.JSON:
            typer.echo(json.dumps([_as_json(kept, at, obj) for at in range(len(kept))], indent=2))
        elif kept:
            typer.echo(columns(table(kept, obj, time.time())))
            if words := _order_words(obj):
                typer.echo(f"\n{words}")
        else:
            typer.echo(f"{name_of(obj)}: no revision has been made yet")
        return GOOD if kept else NOT_KNOWN

    run(work, Where(namespace, kubeconfig, context))


def table(kept: Sequence[Kept], obj: JsonObject, now: float) -> list[list[str]]:
    """Heads and a row for each revision."""
    rows = [["REVISION", "STATE", "CREATED", "TOOK OVER", "BY", "CHANGED", "WHY", "START-UP", "BASELINE", "VERDICT"]]
    for at, one in enumerate(kept):
        served = "never"
        if one.traffic is not None:
            served = f"{age(one.traffic.moved_at, now)} ago (generation {one.traffic.generation})"
        found, pools = _changed(kept, at)
        rows.append(
            [
                one.name,
                ", ".join(states(one, obj)),
                f"{age(seconds_of(one.created), now)} ago",
                served,
                one.by or WORDS_NOT_KNOWN,
                found if isinstance(found, str) else words_of(found, pools, SHOWN_CHANGES) or "nothing",
                shortened(one.why, WHY_CHARACTERS) or "-",
                _start_up(one),
                WORDS_NOT_KNOWN,
                WORDS_NOT_KNOWN,
            ]
        )
    return rows


def _start_up(one: Kept) -> str:
    """How long replicas took to get ready: `17 s`, `17 to 40 s`, of each pool where there are several."""
    words = {
        pool: f"{took.slowest} s" if took.fastest == took.slowest else f"{took.fastest} to {took.slowest} s"
        for pool, took in one.start_ups.items()
    }
    if len(one.pools) == 1:
        return next(iter(words.values()), WORDS_NOT_KNOWN)
    return ", ".join(f"{pool} {took}" for pool, took in words.items()) or WORDS_NOT_KNOWN


def _changed(kept: Sequence[Kept], at: int) -> tuple[Any, int]:
    """What a revision changed against the one before it, or words where that cannot be said; and its pools."""
    if at + 1 == len(kept):
        return "the first one that is kept", 0
    new, old = kept[at], kept[at + 1]
    if new.parsed is None or old.parsed is None:
        return f"{WORDS_NOT_KNOWN} (a newer release wrote it)", 0
    return changes(old.pools, new.pools), len({pool.name for pool in (*old.pools, *new.pools)})


def _as_json(kept: Sequence[Kept], at: int, obj: JsonObject) -> dict[str, Any]:
    one = kept[at]
    found, _ = _changed(kept, at)
    known = None if isinstance(found, str) else found
    return {
        "revision": one.name,
        "state": states(one, obj),
        "created": one.created,
        "tookOver": None if one.traffic is None else stamp_of(one.traffic.moved_at),
        "generation": None if one.traffic is None else one.traffic.generation,
        "by": one.by or None,
        "why": one.why or None,
        "against": None if known is None else kept[at + 1].name,
        "changes": None
        if known is None
        else [{"pool": c.pool, "field": c.field, "before": c.before, "after": c.after} for c in known],
        "startUp": [
            {"pool": pool, "fastestSeconds": took.fastest, "slowestSeconds": took.slowest}
            for pool, took in one.start_ups.items()
        ],
        "baseline": None,
        "verdict": None,
    }


def _order_words(obj: JsonObject) -> str:
    order = order_of(obj)
    if not order:
        return ""
    by = ", ".join(owners(obj, ORDER)) or WORDS_NOT_KNOWN
    why = (obj["metadata"].get("annotations") or {}).get(ANNOTATION_CHANGE_CAUSE)
    ours = FIELD_MANAGER_CLI in owners(obj, CAUSE)
    reason = f", because: {shortened(str(why), WHY_CHARACTERS)}" if why and ours else ""
    undo = f"`paceline rollback {obj['metadata']['name']} --undo`"
    return f"spec.rollout.order pins {order.get('revision')} (by {by}{reason}) until {undo}"
