"""`paceline bench router-loss`: what becomes of every request while routers and replicas come and go."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline_bench.output import Output
from paceline_bench.processes import raise_file_limit
from paceline_bench.results import Row, document, write_document
from paceline_bench.tables import show

from .clients import Asked, Client, Outcome, Tally, keep_asking
from .faults import FAULTS, Fault
from .fleet import Fleet
from .native import Programs, build
from .works import MODEL, UNIQUE, prompt

REPLICAS = 4
TOKENS = 20
GAP_MS = 15
STREAMED = 0.7
SETTLED = 1.0
"""Seconds of load before and after a fault."""
EXIT_NO, EXIT_WRONG_USE = 1, 2


def router_loss(
    clients: Annotated[int, typer.Option(min=1, max=2000, help="Clients, each with one request at a time.")] = 48,
    faults: Annotated[str, typer.Option(help="Only these, by comma, as named in the table.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Times that each fault happens.")] = 1,
    output: Annotated[Output, typer.Option("--output", "-o", help="Results for people or as JSON.")] = Output.TEXT,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.")] = None,
) -> None:
    """What becomes of every request while replicas are killed, drained, added and removed, and routers are replaced.

    Real routers in front of real replica processes that pace their tokens; most requests are streamed, half of the
    clients keep their connection. Lost is a request without an end that a client can read. Planned operations must have
    every request answered; where a replica is killed, a stream that had begun may end with an error in it.

    Exit codes: 0 all was right, 1 something was not, 2 wrong use.

    Examples:

        paceline bench router-loss --out results/router-loss

        paceline bench router-loss --faults "router rolled,replica killed" --repeat 10
    """
    raise_file_limit()
    console = Console(stderr=True)
    names = [name.strip() for name in faults.split(",") if name.strip()]
    if unknown := [name for name in names if name not in FAULTS]:
        typer.echo(f"error: no fault is called {unknown[0]!r}; there are {', '.join(FAULTS)}", err=True)
        raise typer.Exit(EXIT_WRONG_USE)
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name:
        programs = build(Path(name))
        for fault in (FAULTS[n] for n in names or FAULTS):
            tallies[fault.name] = tally = Tally()
            for turn in range(repeat):
                console.print(f"{fault.name} ({turn + 1} of {repeat})", highlight=False)
                folder = Path(name) / f"{len(tallies)}-{turn}"
                folder.mkdir()
                asyncio.run(run(fault, clients, tally, programs, folder, turn))
    rows = list(rows_of(tallies))
    content = document(rows, {})
    if output is Output.JSON:
        typer.echo(json.dumps(content, indent=2))
    else:
        show(table_of(tallies))
    if out is not None:
        console.print(f"wrote {write_document(out, content)}", highlight=False)
    if not all(FAULTS[n].right(tally) for n, tally in tallies.items()):
        raise typer.Exit(EXIT_NO)


async def run(fault: Fault, clients: int, tally: Tally, programs: Programs, folder: Path, seed: int = 0) -> None:
    """One fault under load, with routers and replicas of its own; outcomes are added to `tally`."""
    with Fleet(programs, folder) as fleet:
        for _ in range(REPLICAS):
            await fleet.add_replica()
        fleet.write()
        await fleet.add_router()
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                rng = random.Random(f"{seed} {number}")
                client = Client(fleet.ports, keep=number % 2 == 0, rng=rng)
                group.create_task(keep_asking(client, partial(make, rng), tally, over))
            try:
                await asyncio.sleep(SETTLED)
                await fault.act(fleet)
                await asyncio.sleep(SETTLED)
            finally:
                over.set()


def make(rng: random.Random) -> Asked:
    """A request: most are streamed, none is like another, in length neither."""
    tokens = rng.randint(2, TOKENS)
    streamed = rng.random() < STREAMED
    text = prompt(rng, rng.choice((64, 512, 4096)), "").replace(UNIQUE, f"{rng.getrandbits(64):016x}")
    fields: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    fields |= {"max_tokens": tokens, "seed": GAP_MS} | ({"stream": True} if streamed else {})
    return Asked(json.dumps(fields, separators=(",", ":")).encode(), tokens if streamed else 0)


def rows_of(tallies: dict[str, Tally]) -> Iterator[Row]:
    """One row per fault and outcome, zeros too, and how many were sent."""
    for name, tally in tallies.items():
        yield Row("loss", "paceline", "sent", tally.sent, "requests", {"fault": name})
        for outcome in Outcome:
            first = {"first": tally.first[outcome]} if outcome in tally.first else {}
            params = {"fault": name, **first}
            yield Row("loss", "paceline", outcome.value, tally.seen[outcome], "requests", params)


def table_of(tallies: dict[str, Tally]) -> Table:
    """One line per fault."""
    headings = ["answered", "error event mid-stream", "refused, Retry-After", "other status", "lost"]
    table = Table("fault", "sent", *headings, "right", "the first that was not", title="What became of every request")
    for name, tally in tallies.items():
        right = FAULTS[name].right(tally)
        counts = [f"{tally.seen[outcome]:,}" for outcome in Outcome]
        words = next((tally.first[o] for o in reversed(Outcome) if o in tally.first), "")
        table.add_row(name, f"{tally.sent:,}", *counts, "yes" if right else "NO", words[:160])
    return table
