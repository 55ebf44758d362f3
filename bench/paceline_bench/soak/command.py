"""`paceline bench soak`: a replica under mixed load for a long time."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from paceline_bench.http_client import BrokenAnswer, get
from paceline_bench.models import cache_folder, model_folder
from paceline_bench.output import Output
from paceline_bench.processes import ProcessGroup, free_port, raise_file_limit
from paceline_bench.results import Row, document, write_document
from paceline_bench.tables import show

from .observation import Checkpoint, checkpoint
from .traffic import MODEL, Tally, Traffic, Unexpected
from .verdict import faults, growth

STRETCHES = 12
START_SECONDS = 300.0
STOP_SECONDS = 60.0
BURST = 150
NO, NOT_KNOWN, UNREACHABLE = 1, 3, 4
SHORT = ("short",)
CACHES = {"tiny": "2Mi", "smollm2": "96Mi"}
"""Small enough that mixed requests push each other out."""
LENGTH = 1024


class Model(enum.StrEnum):
    """What is served."""

    TINY = "tiny"
    SMOLLM2 = "smollm2"


def soak(
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Mixed load for so long. [default: 30]")] = None,
    requests: Annotated[
        int | None, typer.Option(min=STRETCHES, help="Instead of that, so many short requests.", show_default=False)
    ] = None,
    model: Annotated[
        Model | None, typer.Option(help="What is served. [default: smollm2; with --requests: tiny]")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the load.")] = 0,
    cache: Annotated[Path | None, typer.Option(help="Folder for built models.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json and the replica's log.")] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="text, or json for programs.")] = Output.TEXT,
) -> None:
    """Load one `paceline serve` with everything at once and watch what must not grow.

    Short and long requests, chats, sampling with everything on, several answers to a prompt, clients that go away, slow
    readers, deadlines, malformed and over-long requests, tenants and priorities, and bursts beyond the queue. The load
    stops a dozen times to look at the idle replica: memory of both processes, blocks in use, open requests, open files,
    its own counts. Fixed greedy questions must be answered as at the beginning. At the end SIGTERM must end it with 0.

    Exit codes: 0 nothing grew and nothing went wrong; 1 something did; 2 wrong use; 4 the replica did not start.

    Examples:

        paceline bench soak --minutes 30 --out results/soak

        paceline bench soak --requests 20000 --out results/flat
    """
    if minutes is not None and requests is not None:
        raise typer.BadParameter("give --minutes or --requests, not both", param_hint="--requests")
    say = Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print
    served = model or (Model.SMOLLM2 if requests is None else Model.TINY)
    raise_file_limit()
    folder = model_folder(served, cache or cache_folder(), say)
    with tempfile.TemporaryDirectory(prefix="paceline-soak-") as temporary:
        logs = out or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        port = free_port()
        command = [sys.executable, "-m", "paceline_cli", "serve", folder.as_uri(), *_flags(served, port).split()]
        say(f"serving {served} on port {port}: {' '.join(command[1:])}")
        with ProcessGroup(command, environment={"HF_HUB_OFFLINE": "1"}, log=logs / "serve.log") as server:
            try:
                asyncio.run(_ready(server, port))
            except (TimeoutError, RuntimeError) as error:
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(UNREACHABLE) from None
            traffic = Traffic(port, LENGTH, seed)
            looked: list[Checkpoint] = []
            wrong: list[str] = []
            limit = (minutes or 30.0) * 60 / STRETCHES
            share = None if requests is None else -(-requests // STRETCHES)
            try:
                asyncio.run(_load(server, port, traffic, looked, clients, limit, share, say))
            except (OSError, LookupError, BrokenAnswer, Unexpected) as error:
                wrong.append(server.words(f"the replica no longer answers: {error}"))
            code = server.terminate(STOP_SECONDS)
            if code != 0:
                wrong.append(server.words(f"after SIGTERM the replica ended with {code}"))
    tally = traffic.tally
    wrong = faults(looked, tally.faults) + wrong if looked else tally.faults + wrong
    work = "soak" if requests is None else "soak-requests"
    made = document(list(rows_of(work, looked, tally, served)), {})
    if output is Output.JSON:
        typer.echo(json.dumps(made, indent=2))
    else:
        show(table_of(looked))
        show(outcomes_of(tally))
    if out is not None:
        typer.echo(write_document(out, made), err=output is Output.JSON)
    for words in wrong:
        typer.echo(f"wrong: {words}", err=True)
    if wrong:
        raise typer.Exit(NO)
    typer.echo(f"good: {tally.requests} requests, nothing grew", err=output is Output.JSON)


def _flags(model: Model, port: int) -> str:
    return (
        f"--host 127.0.0.1 --port {port} --served-name {MODEL} --max-num-seqs 16 --max-model-len {LENGTH} "
        f"--kv-cache-memory {CACHES[model]} --kv-host-memory 16Mi --max-queued-requests 64 --tenant-max-seqs 12 "
        f"--scheduling-policy Priority --scheduling-fair-share --log-level warning"
    )


async def _load(
    server: ProcessGroup,
    port: int,
    traffic: Traffic,
    looked: list[Checkpoint],
    clients: int,
    seconds: float,
    requests: int | None,
    say: Callable[[str], None],
) -> None:
    """Stretches of load with a look at the idle replica before, between and after them; looks go into `looked`.

    Args:
        server: the replica.
        port: it listens on.
        traffic: makes the requests.
        looked: takes the checkpoints.
        clients: requests at once.
        seconds: of one stretch of mixed load.
        requests: of one stretch of short ones instead, if given.
        say: told of progress.
    """
    await traffic.learn()
    began = time.monotonic()
    looked.append(await checkpoint(server, port, began, 0, 0))
    for number in range(STRETCHES):
        before, until = traffic.tally.requests, time.monotonic() + seconds
        started = 0

        def more() -> bool:
            return time.monotonic() < until if requests is None else started < requests  # noqa: B023

        async def client() -> None:
            nonlocal started
            while more():
                started += 1
                await traffic.run(traffic.draw(None if requests is None else SHORT))

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
            if requests is None:
                await asyncio.sleep(min(1.0, seconds / 4))
                for _ in range(BURST):
                    group.create_task(traffic.run("short"))
        tally = traffic.tally
        looked.append(await checkpoint(server, port, began, tally.requests, tally.unexpected))
        at = looked[-1]
        say(
            f"{number + 1} of {STRETCHES}: {tally.requests - before} requests, {at.unexpected} unexpected so far, "
            f"front {at.front_mib:.1f} MiB, core {at.core_mib:.1f} MiB, {at.blocks_in_use} blocks in use"
        )


async def _ready(server: ProcessGroup, port: int) -> None:
    """Until the replica is ready.

    Raises:
        RuntimeError: it ended.
        TimeoutError: it is not ready in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.ended() is not None:
            raise RuntimeError(server.words(f"the replica ended with {server.ended()}"))
        with contextlib.suppress(OSError, BrokenAnswer):
            if (await get(port, "/health/ready"))[0] == 200:
                return
        await asyncio.sleep(0.2)
    raise TimeoutError(server.words(f"the replica was not ready in {START_SECONDS:g} s"))


UNITS = {
    "front_mib": "MiB",
    "core_mib": "MiB",
    "open_files": "files",
    "open_requests": "requests",
    "blocks_in_use": "blocks",
    "unexpected": "requests",
    "preemptions": "requests",
}


def rows_of(work: str, looked: Sequence[Checkpoint], tally: Tally, model: str) -> list[Row]:
    """What was seen at begin and end, how memory grew, and what came of the requests."""
    rows = []
    for at, seen in (("begin", looked[:1]), ("end", looked[-1:])):
        for each in seen:
            params = {"model": model, "at": at, "requests": each.requests, "seconds": round(each.seconds)}
            rows += [Row(work, "paceline", name, getattr(each, name), unit, params) for name, unit in UNITS.items()]
    for name in ("front_mib", "core_mib"):
        grown = growth(looked, name) if looked else None
        if grown is not None:
            rows.append(Row(work, "paceline", f"{name}_growth", grown, "MiB", {"model": model, "over": "last third"}))
    for (kind, outcome), count in sorted(tally.outcomes.items()):
        params = {"model": model, "kind": kind, "outcome": outcome}
        rows.append(Row(work, "paceline", "requests", count, "requests", params))
    return rows


def table_of(looked: Sequence[Checkpoint]) -> Table:
    """The idle replica, time after time."""
    table = Table("after s", "requests", *(name.replace("_", " ") for name in UNITS), title="the replica while idle")
    for each in looked:
        cells = (getattr(each, name) for name in UNITS)
        shown = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells)
        table.add_row(f"{each.seconds:.0f}", str(each.requests), *shown)
    return table


def outcomes_of(tally: Tally) -> Table:
    """What came of the requests, by kind."""
    names = sorted({outcome for _, outcome in tally.outcomes})
    table = Table("kind", *names, title="requests by what came of them")
    for kind in sorted({kind for kind, _ in tally.outcomes}):
        table.add_row(kind, *(str(tally.outcomes[kind, name] or "") for name in names))
    return table
