"""`paceline bench engine`: tokens per second of our engine and server beside the field's, alternated in one run."""

from __future__ import annotations

import enum
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import offline, serving, tables
from .comparison import Case
from .machine import Weather, as_json, in_words
from .models import cache_folder
from .output import Output
from .results import document, write_document
from .systems import PEERS, SYSTEMS, NotInstalled, System, parse_peer_pythons, python_of

UNITS = {
    "tokens_per_s": "1/s",
    "cpu_ms_per_token": "ms",
    "roofline_percent": "%",
    "ttft_ms_p50": "ms",
    "tpot_ms_p50": "ms",
}
SERVER_WORK = "server-smollm2"
NOT_KNOWN = 3


class Work(enum.StrEnum):
    """What can be measured."""

    LLAMA40M = "llama40m"
    SMOLLM2 = "smollm2"
    SERVER = SERVER_WORK


class DType(enum.StrEnum):
    """In which weights are held."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


SystemName = enum.StrEnum("SystemName", {name: name for name in SYSTEMS})  # type: ignore[misc]


def engine(
    work: Annotated[list[Work] | None, typer.Option(help="What to measure; may be given again. [default: all]")] = None,
    system: Annotated[
        list[SystemName] | None,
        typer.Option(help="Which systems; may be given again. [default: all that are installed]"),
    ] = None,
    dtype: Annotated[list[DType] | None, typer.Option(help="Types of weights. [default: both]")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch sizes. [default: 1, 8, 32]")] = None,
    streams: Annotated[
        list[int] | None, typer.Option(min=1, help="Concurrent HTTP streams. [default: 1, 8, 32, 128]")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens in each prompt.")] = 64,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens to make of each.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each system; the median counts.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="OMP_NUM_THREADS of every system. [default: one per core]")
    ] = None,
    peer_python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help=f"The Python in which a peer is installed ({', '.join(PEERS)}); also $PACELINE_PEER_NAME.",
        ),
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for built models.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json and the workers' logs.")] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="text, or json for programs.")] = Output.TEXT,
) -> None:
    """Compare our engine and server with vLLM, transformers, CTranslate2 and llama.cpp on this machine's CPU.

    Each system runs in a process of its own with the same weights and threads. They take turns of well under a second,
    and whoever has no turn is held still; ratios are taken turn by turn. Greedy, end-of-sequence ignored, prefix cache
    off, prompts of random tokens, prefill included. Between rounds the machine's memory bandwidth and matrix rate are
    read. A peer that is not installed is said and left out. The models are made on the spot, once.

    Exit codes: 0 measured; 2 wrong use; 3 a system that was asked for by name could not be measured.

    Examples:

        paceline bench engine --out results/engine

        paceline bench engine --work llama40m --dtype float32 --peer-python vllm=/opt/vllm/bin/python

        paceline bench engine --work server-smollm2 --streams 32 -o json
    """
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    try:
        pythons = parse_peer_pythons(peer_python or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--peer-python") from None
    count = threads or len(os.sched_getaffinity(0))
    works, dtypes = work or list(Work), dtype or list(DType)
    asked = [str(name) for name in system or list(SystemName)]
    versions: dict[str, str] = {}
    systems = _installed(asked, pythons, versions, console)
    terms = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "rounds": rounds, "threads": count}
    offline_setup = offline.Setup(batches=tuple(batch or (1, 8, 32)), **terms)
    serving_setup = serving.Setup(streams=tuple(streams or (1, 8, 32, 128)), **terms)
    cases: list[Case] = []
    weather: list[Weather] = []
    failed = {name for name in asked if name not in {s.name for s, _ in systems}}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as temporary:
        logs = (out or Path(temporary)) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        for name in works:
            for kind in dtypes:
                where = (cache or cache_folder(), logs, console.print)
                if name is Work.SERVER:
                    outcome = serving.run(name, kind, systems, serving_setup, *where)
                else:
                    outcome = offline.run(name, kind, systems, offline_setup, *where)
                cases += outcome.cases
                weather += outcome.weather
                failed |= set(outcome.failures)
                for measured, found in outcome.versions.items():
                    versions[measured] = ", ".join(f"{distribution} {number}" for distribution, number in found.items())
                if output is Output.TEXT and outcome.cases:
                    tables.show(tables.comparison(f"{name}, {kind}, {count} threads", outcome.cases))
                    typer.echo(in_words(outcome.weather))
                for peer, reason in outcome.failures.items():
                    typer.echo(f"{name} {kind}: {peer} was not measured: {reason.splitlines()[0]}", err=True)
    made = document([row for case in cases for row in case.rows(UNITS)], versions, probes=as_json(weather))
    if output is Output.JSON:
        typer.echo(json.dumps(made, indent=2))
    if out is not None:
        typer.echo(write_document(out, made), err=output is Output.JSON)
    if system and failed & set(asked):
        raise typer.Exit(NOT_KNOWN)


def _installed(
    asked: list[str], pythons: dict[str, str], versions: dict[str, str], console: Console
) -> list[tuple[System, str]]:
    """The systems that are there, each with its Python; what is missing is said and noted."""
    found = []
    for name in asked:
        try:
            found.append((SYSTEMS[name], python_of(SYSTEMS[name], pythons)))
        except NotInstalled as missing:
            console.print(str(missing))
            versions[name] = "not installed"
    return found
