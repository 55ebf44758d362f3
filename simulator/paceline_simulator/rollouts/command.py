"""`paceline simulate rollout`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline_bench.results import write
from paceline_bench.tables import show
from paceline_shadow_traffic.verdict import ALPHA, Verdict
from paceline_simulator.options import out_folder

from .study import SCENARIOS, STEPS, Found, rows, run


def rollout(
    scenario: Annotated[
        list[str] | None, typer.Option(help="One that the table names; may be given several times. Default: all.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=100_000, help="Rollouts of each scenario.")] = 100,
    every: Annotated[int, typer.Option(min=1, max=60, help="Minutes between looks.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.", callback=out_folder)] = None,
) -> None:
    """How often the verdict on a canary is wrong, over whole rollouts whose truth is known.

    A candidate that is no worse than allowed should never fail; one that is worse should fail, and must not pass.

    Examples:

      paceline simulate rollout --runs 400 --out results

      paceline simulate rollout --scenario "no change" --every 1
    """
    names = scenario or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise typer.BadParameter(
            f"there is no {unknown[0]!r}; write one of: {'; '.join(SCENARIOS)}", param_hint="--scenario"
        )
    steps = ", ".join(f"{100 * weight:g} % for {minutes} min" for weight, minutes in STEPS)
    title = (
        f"{runs} rollouts each, steps of {steps}, a look every {every} min, false alarms bounded at {100 * ALPHA:g} %"
    )
    table = Table(
        "truth", "passed %", "failed %", "not known %", "min until failed", "gates (failed or not known)", title=title
    )
    made = []
    for name in names:
        found = Found(name, tuple(run(SCENARIOS[name], every, seed) for seed in range(runs)))
        minutes = found.minutes_to_fail
        table.add_row(
            name,
            *(f"{100 * found.share(verdict):.1f}" for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.NOT_KNOWN)),
            "" if minutes is None else f"{minutes:.0f}",
            found.gates,
        )
        made += rows(found, every)
    show(table)
    if out is not None:
        typer.echo(f"written: {write(out, made)}")
