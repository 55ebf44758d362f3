"""`paceline history`: the revisions of a service, who asked for them, and what they changed."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from paceline_crds.names import ANNOTATION_CHANGE_CAUSE, FIELD_MANAGER_CLI
from paceline_crds.revision import Baseline
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
from .tables import age, columns, duration, seconds_of, shortened, stamp_of
from .waiting import patiently

SHOWN_CHANGES = 3
SHOWN_EVENTS = 5
WHY_CHARACTERS = 200
WIDTH = 80
NAME_WIDTH = 10


def history(
    name: Annotated[str, typer.Argument(help="InferenceService.")],
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """The kept revisions, newest first: when, by whom, why, what each one changed against the one before, what was
    measured of it while it served, and the verdict of its rollout.

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
            typer.echo(shown(kept, obj, time.time()))
            if words := _order_words(obj):
                typer.echo(f"\n{words}")
        else:
            typer.echo(f"{name_of(obj)}: no revision has been made yet")
        return GOOD if kept else NOT_KNOWN

    run(work, Where(namespace, kubeconfig, context))


def shown(kept: Sequence[Kept], obj: JsonObject, now: float, width: int = WIDTH) -> str:
    """A line for each revision, and under it what needs more than a column, folded into `width`."""
    rows = [["REVISION", "STATE", "CREATED", "TRAFFIC MOVED"]]
    for one in kept:
        served = "never"
        if one.traffic is not None:
            served = f"{age(one.traffic.moved_at, now)} ago (generation {one.traffic.generation})"
        created = f"{age(seconds_of(one.created), now)} ago"
        rows.append([one.name, ", ".join(states(one, obj)), created, served])
    head, *lines = columns(rows).splitlines()
    blocks = [head]
    for at, line in enumerate(lines):
        blocks += [line, *(part for name, text in details(kept, at) for part in _folded(name, text, width))]
    return "\n".join(blocks)


def details(kept: Sequence[Kept], at: int) -> list[tuple[str, str]]:
    """What is known of a revision beside its place in time: the name of each thing, and what it is."""
    one = kept[at]
    found, pools = _changed(kept, at)
    said = [("by", one.by or WORDS_NOT_KNOWN)]
    if one.why:
        said.append(("why", shortened(one.why, WHY_CHARACTERS)))
    said.append(("changed", found if isinstance(found, str) else words_of(found, pools, SHOWN_CHANGES) or "nothing"))
    said.append(("start-up", _start_up(one)))
    several = len(one.baselines) > 1
    said += [
        ("baseline", (f"{pool}: " if several else "") + baseline_words(baseline))
        for pool, baseline in sorted(one.baselines.items())
    ] or [("baseline", f"{WORDS_NOT_KNOWN} ({no_baseline(one)})")]
    said.append(("verdict", verdict_words(one)))
    shown_events = one.timeline[-SHOWN_EVENTS:]
    said += [("" if at else "decided", _event_words(event)) for at, event in enumerate(shown_events)]
    return said


def _folded(name: str, text: str, width: int) -> list[str]:
    """`name` and its text, folded at words into the rest of the line."""
    left = f"  {name:<{NAME_WIDTH}}"
    return textwrap.wrap(
        text,
        width,
        initial_indent=left,
        subsequent_indent=" " * len(left),
        break_long_words=False,
        break_on_hyphens=False,
    )


def baseline_words(one: Baseline) -> str:
    """`TTFT 0.1s/0.3s/1.2s, TPOT 9ms/12ms/40ms (P50/P90/P99), 1,204 requests in 4h, 2 failed`."""
    times = [f"{name} {p.p50}/{p.p90}/{p.p99}" for name, p in (("TTFT", one.ttft), ("TPOT", one.tpot)) if p is not None]
    begin, end = seconds_of(one.since), seconds_of(one.until)
    over = f" in {duration(end - begin)} until {one.until}" if begin is not None and end is not None else ""
    measured = f"{', '.join(times)} (P50/P90/P99), " if times else ""
    failed = f", {one.failed:,} failed" if one.failed else ", none failed"
    return f"{measured}{one.requests:,} requests{over}{failed}"


def no_baseline(one: Kept) -> str:
    """Why there is none."""
    if one.traffic is None:
        return "it never served"
    return "routers have measured no request of it, or not yet: the first is written after five minutes of service"


def verdict_words(one: Kept) -> str:
    """`Pass against chat-7f3c9 at 25 %, 2026-…: a sentence`, or why there is none."""
    it = one.verdict
    if not it:
        return f"{WORDS_NOT_KNOWN} (no rollout by steps has judged it)"
    words = WORDS_NOT_KNOWN if it.get("verdict") == "NotKnown" else str(it.get("verdict") or WORDS_NOT_KNOWN)
    against = f" against {it['base']}" if it.get("base") else ""
    weight = f" at {it['weight']} % of the requests" if "weight" in it else ""
    return f"{words}{against}{weight}, {it.get('at') or 'at a time that is not known'}: {it.get('message') or '-'}"


def _event_words(event: Mapping[str, Any]) -> str:
    message = f": {event['message']}" if event.get("message") else ""
    return f"{event.get('at')} {event.get('phase')} at {event.get('weight')} %, by {event.get('by')}{message}"


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
        "trafficMoved": None if one.traffic is None else stamp_of(one.traffic.moved_at),
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
        "baseline": [
            {"pool": pool, **baseline.model_dump(mode="json", by_alias=True, exclude_none=True)}
            for pool, baseline in sorted(one.baselines.items())
        ]
        or None,
        "verdict": dict(one.verdict) or None,
        "timeline": [dict(event) for event in one.timeline],
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
