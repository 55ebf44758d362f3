"""`paceline simulate tuning`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline_bench.results import write
from paceline_bench.tables import show
from paceline_simulator.options import finite, out_folder

from .load import LOADS
from .study import METRICS, rows, study


def tuning(
    load: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(LOADS)}: some, by commas. Default: all.")
    ] = None,
    tpot: Annotated[
        float, typer.Option(min=0.001, help="Seconds per token, promised to nine of ten.", callback=finite)
    ] = 0.05,
    ttft: Annotated[float, typer.Option(min=0.01, help="Seconds to the first token, likewise.", callback=finite)] = 5.0,
    hours: Annotated[float, typer.Option(min=0.1, help="Of load; documents come in every other third of an hour.")] = 2,
    seeds: Annotated[int, typer.Option(min=1, max=10, help="Runs, each with arrivals of its own.")] = 3,
    moves: Annotated[bool, typer.Option("--moves", help="List what was moved in the first run, and why.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.", callback=out_folder)] = None,
) -> None:
    """What knobs that follow load (`autoRanges`) are worth, beside knobs that stay where they are.

    The decision and the engine's scheduler are the real ones; a step's time is computed, for an 8B model on one card.

    Examples:

      paceline simulate tuning --out results

      paceline simulate tuning --load documents --tpot 0.04 --moves

      paceline simulate tuning --load "many documents" --ttft 20
    """
    names = list(dict.fromkeys(name.strip() for given in load or LOADS for name in given.split(",")))
    unknown = [name for name in names if name not in LOADS]
    if unknown:
        raise typer.BadParameter(f"there is no {unknown[0]!r}; write one of {', '.join(LOADS)}", param_hint="--load")
    made = []
    for name in names:
        found = study(name, 3600.0 * hours, range(seeds), tpot, ttft)
        runs = f"{seeds} runs (means, and the lowest to the highest)"
        title = f"{name}: {hours:g} h, TPOT {1000 * tpot:g} ms, TTFT {ttft:g} s; {runs}"
        table = Table("knobs", *(f"{metric} ({unit})" for metric, unit in METRICS.items()), title=title)
        for one in found:
            table.add_row(one.system, *(_cell(one.figures[metric], unit) for metric, unit in METRICS.items()))
        show(table)
        for words in found[-1].moves if moves else ():
            typer.echo(words)
        made += rows(name, found, 3600.0 * hours, tpot, ttft)
    if out is not None:
        typer.echo(f"written: {write(out, made)}")


def _cell(values: list[float], unit: str) -> str:
    digits = 3 if unit == "share" else 0
    text = f"{statistics.fmean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ({min(values):.{digits}f}-{max(values):.{digits}f})"
