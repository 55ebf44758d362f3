"""`paceline bench router`: what a request costs in our router and in others, in one run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paceline_bench.comparison import OURS
from paceline_bench.machine import load_average
from paceline_bench.output import Output
from paceline_bench.processes import raise_file_limit
from paceline_bench.results import Row, document, versions, write_document
from paceline_bench.tables import show

from . import memory, shown
from .features import ALL
from .native import build, cores, replicas
from .rounds import Terms, measure, rows
from .systems import SYSTEMS, Running, System, started
from .works import WORKS, select

REPLICAS = 4
EXIT_NO, EXIT_WRONG_USE, EXIT_NOT_KNOWN = 1, 2, 3


def router(
    seconds: Annotated[float, typer.Option(min=0.2, help="Timed seconds of each run.")] = 1.5,
    warm: Annotated[float, typer.Option(min=0.1, help="Seconds of load before each timed part.")] = 0.5,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each system under each load, in turns.")] = 3,
    systems: Annotated[str, typer.Option(help="Only these, by comma: paceline and peers.")] = "",
    peers: Annotated[bool, typer.Option(help="Compare with other routers.")] = True,
    works: Annotated[str, typer.Option(help="Only these loads, by comma: json, sse, json:4096, json:64:1024, …")] = "",
    features: Annotated[str, typer.Option(help="Of ours: plain, all, or both by comma.")] = "plain,all",
    identical: Annotated[bool, typer.Option(help="One text for all prompts, so that every prefix is known.")] = False,
    half_load: Annotated[bool, typer.Option(help="Also time the first byte at half load.")] = True,
    processes: Annotated[int, typer.Option(min=1, help="Processes of our router; peers have one thread each.")] = 1,
    requests: Annotated[int, typer.Option(min=0, help="Then so many requests to ours, watching its memory.")] = 0,
    output: Annotated[Output, typer.Option("--output", "-o", help="Results for people or as JSON.")] = Output.TEXT,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.")] = None,
) -> None:
    """CPU of the router per request and per streamed chunk, its rate, and what it adds to the first byte, beside peers.

    The router under test has one core; load and replicas (small C programs, built with gcc) have another. CPU is user
    plus system time of all its processes. Systems take turns, so ratios within a run hold on a machine that others use;
    absolute figures of two runs do not compare. A peer that is not there is said. Every request is counted.

    Exit codes: 0 good, 1 requests went unanswered, 2 wrong use, 3 a system asked for by name could not be measured.

    Examples:

        paceline bench router --out results/router

        paceline bench router --systems paceline,vllm-router,c-relay --works json:64:32,sse --rounds 5

        paceline bench router --systems paceline --features all --works json:64:32 --requests 1000000
    """
    raise_file_limit()
    console = Console(stderr=True)
    try:
        wanted = select(works.split(",")) if works else list(WORKS)
        chosen = _chosen(systems, features, peers)
    except ValueError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None
    if processes > 1 and not _has_processes():
        typer.echo("error: this router has no --processes yet; leave it out", err=True)
        raise typer.Exit(EXIT_WRONG_USE)
    terms = Terms(seconds, warm, rounds, identical, half_load)
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        programs = build(folder)
        backends = stack.enter_context(replicas(programs, REPLICAS, folder))
        routers: list[Running] = []
        for system in chosen:
            if system.program() is None:
                missing[system.name] = system.hint if system.ours else f"not installed: {system.hint}"
                continue
            several = processes if system.ours else 1
            try:
                routers.append(stack.enter_context(started(system, backends, folder, programs, several)))
            except RuntimeError as exc:
                missing[system.key] = str(exc)
        for key, why in missing.items():
            console.print(f"left out: {key}: {why}", style="yellow", markup=False, highlight=False)
        if not routers:
            raise typer.Exit(EXIT_NOT_KNOWN)
        for system in (running.system for running in routers if running.system.ours):
            console.print(f"{system.key}: the {system.params['build']} build", highlight=False)
        figures = measure(
            routers, wanted, terms, programs, backends, folder, lambda text: console.print(text, highlight=False)
        )
        found: list[Row] = []
        if requests:
            for running in (r for r in routers if r.system.name == OURS):
                console.print(f"{requests:,} requests to {running.system.key}", highlight=False)
                found += memory.watch(running, requests, programs, folder, figures)
        # After the last request, so that all that went unanswered is in there.
        found = [*rows(figures, terms), *found]
    content = document(
        found, versions("uvloop", "httptools", "msgspec", "aiohttp"), [{"load1": load_average(), "cores": cores()}]
    )
    if output is Output.JSON:
        typer.echo(json.dumps(content, indent=2))
    else:
        show(shown.costs(figures))
        if figures.half:
            show(shown.half_load(figures))
        for line in [*shown.flatness(figures), *memory.words(found)]:
            typer.echo(line)
    if out is not None:
        console.print(f"wrote {write_document(out, content)}", highlight=False)
    _say_unanswered(found, figures.trouble, console)
    asked = [name for name in systems.split(",") if name] and missing
    if any(row.metric == "not_answered" and row.system == OURS and row.value for row in found):
        raise typer.Exit(EXIT_NO)
    if asked:
        raise typer.Exit(EXIT_NOT_KNOWN)


def _chosen(systems: str, features: str, peers: bool) -> list[System]:
    names = [name for name in systems.split(",") if name]
    known = {system.name for system in SYSTEMS.values()}
    kinds = set(features.split(","))
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no system is called {unknown[0]}; there are {', '.join(sorted(known))}")
    if unknown := [kind for kind in kinds if kind not in ("plain", ALL)]:
        raise ValueError(f"features are plain and all, not {unknown[0]!r}")
    ours = [s for s in SYSTEMS.values() if s.ours and s.features in kinds]
    theirs = [s for s in SYSTEMS.values() if not s.ours and peers]
    return [s for s in [*ours, *theirs] if not names or s.name in names]


def _has_processes() -> bool:
    command = [sys.executable, "-m", "paceline_router", "--help"]
    return "--processes" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _say_unanswered(found: Sequence[Row], trouble: dict[str, str], console: Console) -> None:
    for row in found:
        if row.metric == "not_answered" and row.value:
            what = {k: v for k, v in asdict(row)["params"].items() if k not in ("features", "build", "sent")}
            key = next(k for k, s in SYSTEMS.items() if (s.name, s.features) == (row.system, row.params["features"]))
            console.print(
                f"{key}: of {row.params['sent']:,} requests {row.value:,.0f} were not answered: {what}; "
                f"the first: {trouble[key]}",
                style="red",
                markup=False,
                highlight=False,
            )
