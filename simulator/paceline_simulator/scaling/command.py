"""`paceline simulate TRACE`."""

from __future__ import annotations

import math
import os
import statistics
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from paceline_bench.results import write
from paceline_bench.tables import show
from paceline_simulator.options import finite, out_folder
from paceline_simulator.trace import TraceError

from .arrivals import Trace, read
from .constructed import RULES, construct
from .fleet import Conditions
from .plot import steps
from .search import POLICIES
from .setup import MODELS, MOST_REQUESTS, Setup, set_up
from .study import OURS, Found, interval, rows, study, unreached, verdict

EXIT_WRONG_USE = 2


def scaling(
    trace: Annotated[
        str,
        typer.Argument(
            help="A file: Azure's CSV, Mooncake's JSON lines, or lines of `arrival seconds,input tokens,output "
            f"tokens`. Or one of {', '.join(RULES)}, made here."
        ),
    ],
    policy: Annotated[str, typer.Option(help="Of these, by commas.")] = ",".join(POLICIES),
    goal: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Share of requests within the objectives.")] = 0.99,
    start_up: Annotated[
        float, typer.Option(min=1.0, max=86_400.0, help="Seconds until a new replica serves.", callback=finite)
    ] = 90.0,
    seeds: Annotated[int, typer.Option(min=1, max=10, help="Runs, each with arrivals of its own.")] = 3,
    model: Annotated[str | None, typer.Option(help=f"Of {', '.join(MODELS)}. Default: one that needs a fleet.")] = None,
    copies: Annotated[
        int | None,
        typer.Option(
            min=1, help="Each request arrives so many times. Default: until the peak needs some eight replicas."
        ),
    ] = None,
    ttft: Annotated[
        float | None,
        typer.Option(min=0.001, help="Objective, seconds. Default: 3 x what a long prompt takes.", callback=finite),
    ] = None,
    tpot: Annotated[
        float | None,
        typer.Option(min=0.001, help="Objective, seconds. Default: 1.5 full steps.", callback=finite),
    ] = None,
    outage: Annotated[
        list[str] | None, typer.Option(help="FROM-TO in seconds without metrics; may be given several times.")
    ] = None,
    failure: Annotated[
        list[float] | None, typer.Option(help="Second at which the busiest replica dies; several times.")
    ] = None,
    stretch: Annotated[
        float,
        typer.Option(min=0.1, help="Of a trace made here everything lasts so many times as long.", callback=finite),
    ] = 1.0,
    hours: Annotated[
        float,
        typer.Option(min=0.01, max=744.0, help="Only so much of a file's beginning; a trace made here lasts so long."),
    ] = 2.0,
    limit: Annotated[
        int | None,
        typer.Option(
            min=10,
            help=f"And of that so many of the first requests. Default: {MOST_REQUESTS:,} of a file, else all.",
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Score with the router's own choice of a replica and the engine's own scheduler; takes minutes.",
        ),
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Seeds that are run at a time.", show_default="one for each core")
    ] = len(os.sched_getaffinity(0)),
    out: Annotated[Path | None, typer.Option(help="Folder for results.json and plot.svg.", callback=out_folder)] = None,
) -> None:
    """Compare autoscalers on a trace: attainment of the objectives, GPU-hours, violations and flaps.

    Settings of each policy are searched on the trace's first half; the figures are of its second.

    Examples:

      paceline simulate conversation_trace.jsonl --policy paceline,hpa,keda,kpa,static --out results

      paceline simulate steps --start-up 300 --outage 2000-2600

      paceline simulate cycle --start-up 600 --stretch 2 --hours 4

      paceline simulate day --hours 72 --seeds 2
    """
    chosen = list(dict.fromkeys(name.strip() for name in policy.split(",") if name.strip()))
    unknown = [name for name in chosen if name not in POLICIES]
    if unknown or not chosen:
        raise typer.BadParameter(f"write some of {','.join(POLICIES)}, not {policy!r}", param_hint="--policy")
    if model is not None and model not in MODELS:
        raise typer.BadParameter(f"write one of {', '.join(MODELS)}, not {model!r}", param_hint="--model")
    for second in failure or ():
        if not 0.0 <= second < math.inf:
            raise typer.BadParameter(f"write a second of the trace, 0 or later, not {second:g}", param_hint="--failure")
    conditions = Conditions(start_up, tuple(_span(text) for text in outage or ()), tuple(failure or ()))
    try:
        whole, most = _trace(trace, stretch, hours)
        part = whole.first(3600.0 * hours, limit or most)
        if len(part.arrivals) < len(whole.arrivals):
            told = f"the first {len(part.arrivals):,} of {len(whole.arrivals):,} requests, {part.length / 3600:.2f} h"
            typer.echo(f"{told}; see --hours and --limit", err=True)
        if len(part.arrivals) < 2 or part.length <= 0.0:
            raise TraceError(
                f"too little of {trace} is left ({len(part.arrivals)} of {len(whole.arrivals)} requests, over "
                f"{part.length:g} s): are arrivals in seconds? See also --hours and --limit"
            )
        setup = set_up(part, conditions, model, copies, ttft, tpot)
    except TraceError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None
    late = [at for at in (*(start for start, _ in conditions.outages), *conditions.failures) if at > setup.trace.length]
    if late:
        typer.echo(f"the trace ends after {setup.trace.length:.0f} s, and nothing happens at {late[0]:g} s", err=True)
    numbers = list(range(seeds))
    errors = Console(stderr=True, highlight=False)
    say = partial(errors.print, soft_wrap=True)
    try:
        with errors.status("") as status:
            found = study(setup, chosen, goal, numbers, exact, say, status.update, jobs)
    except TraceError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None
    except BrokenProcessPool:
        typer.echo("error: a process was ended by somebody, perhaps for memory: try --jobs 1", err=True)
        raise typer.Exit(1) from None
    show(_table(setup, found, goal, exact))
    for words in unreached(setup, found, goal):
        typer.echo(words)
    if out is not None:
        title = f"{setup.trace.name}: replicas asked for"
        length = setup.trace.length
        svg = steps(title, [(one.policy, one.changes) for one in found], length, length / 2.0)
        typer.echo(f"written: {write(out, rows(setup, found, goal, numbers, exact))}")
        (out / "plot.svg").write_text(svg, encoding="utf-8")
        typer.echo(f"written: {out / 'plot.svg'}")


def _trace(name: str, stretch: float, hours: float) -> tuple[Trace, int]:
    """The trace, and how many of its requests are taken where nothing is said."""
    if name in RULES and not Path(name).exists():
        made = construct(name, stretch=stretch, seconds=3600.0 * hours)
        return made, len(made.arrivals)
    if stretch != 1.0:
        raise typer.BadParameter(f"write one of {', '.join(RULES)} beside it, not {name!r}", param_hint="--stretch")
    if not Path(name).exists():
        raise TraceError(f"there is no file {name}, and no trace of that name made here: {', '.join(RULES)}")
    return read(Path(name)), MOST_REQUESTS


def _span(text: str) -> tuple[float, float]:
    start, _, end = text.partition("-")
    try:
        span = float(start), float(end)
    except ValueError:
        span = math.nan, math.nan
    if not 0.0 <= span[0] < span[1] < math.inf:
        raise typer.BadParameter(f"write FROM-TO in seconds, as 600-900, not {text!r}", param_hint="--outage")
    return span


def _table(setup: Setup, found: list[Found], goal: float, exact: bool) -> Table:
    objectives, conditions = setup.objectives, setup.conditions
    runs = len(found[0].figures["gpu_hours"])
    told = [
        f"{runs} runs, 95 % intervals" if runs > 1 else "one run",
        *([f"{len(conditions.outages)} times no metrics"] if conditions.outages else ()),
        *([f"{len(conditions.failures)} replicas die"] if conditions.failures else ()),
        *(["exact"] if exact else ()),
    ]
    copies = "" if setup.copies == 1 else f", each request {setup.copies} times (--copies)"
    title = (
        f"{setup.trace.name}{copies}: {setup.name} on {setup.gpus} GPU a replica, "
        f"start-up {setup.conditions.start_up:g} s, TTFT {objectives.ttft:g} s, TPOT {objectives.tpot:g} s, "
        f"goal {100 * goal:g} % ({'; '.join(told)})"
    )
    heads = ("policy", "attainment %", "GPU-hours", "violations", "flaps", "settings", "paceline against it")
    table = Table(*heads, title=title)
    ours = next((one for one in found if one.policy == OURS), None)
    for one in found:
        got = one.figures
        table.add_row(
            one.policy,
            _cell([100 * value for value in got["slo_attainment"]], 2)
            + ("" if statistics.mean(got["slo_attainment"]) >= goal else ", under the goal"),
            _cell(got["gpu_hours"], 2),
            _cell(got["violations"], 0),
            _cell(got["flaps"], 1),
            ", ".join(f"{name} {value:g}" for name, value in one.knobs.items())
            + ("" if one.on_first_half.attainment >= goal else " (goal not reached)"),
            "" if ours is None or one is ours else verdict(ours, one, goal),
        )
    return table


def _cell(values: list[float], digits: int) -> str:
    width = interval(values)
    spread = f" ± {width:.{digits}f}" if math.isfinite(width) else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"
