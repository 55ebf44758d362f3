"""`paceline simulate`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from paceline_bench.results import write
from paceline_bench.tables import show
from paceline_router.choice.policies import POLICIES
from paceline_simulator.options import out_folder

from .engine import Request
from .rollouts.command import rollout
from .routing import METRICS, Case, rows, simulate
from .scaling.command import scaling
from .trace import TraceError, read_mooncake, shared_prompt
from .tuning.command import tuning
from .validation.command import validate

EXIT_WRONG_USE = 2


class _TraceFirst(TyperGroup):
    """A group whose first word may be a trace: `paceline simulate TRACE` is `paceline simulate scaling TRACE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `scaling` in front of what is neither a command nor a call for help."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["scaling", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_TraceFirst, no_args_is_help=True, rich_markup_mode=None)
app.command()(scaling)
app.command()(rollout)
app.command()(tuning)
app.command()(validate)

HEADINGS = {
    "ttft_ms_p50": "TTFT p50 ms",
    "ttft_ms_p99": "TTFT p99 ms",
    "tpot_ms_p50": "TPOT p50 ms",
    "tpot_ms_p99": "TPOT p99 ms",
    "hit_rate": "hit rate",
    "imbalance": "imbalance",
    "sent_imbalance": "of requests sent",
}


@app.callback()
def _root() -> None:
    """What a decision does to a fleet, without the fleet. `simulate TRACE` is `simulate scaling TRACE`.

    Examples:

      paceline simulate scaling conversation_trace.jsonl --out results

      paceline simulate routing conversation_trace.jsonl --replicas 8 --speed 1.6

      paceline simulate rollout --runs 400
    """


@app.command()
def routing(
    trace: Annotated[
        Path | None,
        typer.Argument(
            help="A file of Mooncake's form (JSON lines). Left out: 200 sessions that share a system prompt."
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=256)] = 8,
    routers: Annotated[int, typer.Option(min=1, max=64, help="Requests come to one of them at random.")] = 1,
    speed: Annotated[
        list[float] | None, typer.Option(help="Times the trace's own rate; may be given several times. Default 1.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Requests per second, without a trace.")] = 8.0,
    jitter: Annotated[float, typer.Option(help="Seconds by which arrivals are shifted at random.")] = 3.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, each with arrivals of its own.")] = 3,
    limit: Annotated[int | None, typer.Option(help="Only so many of the trace's first requests.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(POLICIES)}; may be given several times. Default: all.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.", callback=out_folder)] = None,
) -> None:
    """Compare ways to choose a replica.

    The choice is the router's own code; the replicas' time is computed for an 8B model on one card each.

    Examples:

      paceline simulate routing conversation_trace.jsonl --replicas 8 --speed 1 --speed 1.6 --out results

      paceline simulate routing --replicas 4
    """
    policies = policy or list(POLICIES)
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise typer.BadParameter(
            f"there is no {unknown[0]!r}; write one of {', '.join(POLICIES)}", param_hint="--policy"
        )
    numbers = list(range(seeds))
    made = []
    try:
        for case in _cases(trace, replicas, routers, speed or [1.0], rate, jitter, limit):
            found = simulate(case, policies, numbers)
            made += rows(case, found, numbers)
            show(_table(case, found))
    except TraceError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None
    if out is not None:
        typer.echo(f"written: {write(out, made)}")


def _cases(
    trace: Path | None,
    replicas: int,
    routers: int,
    speeds: list[float],
    rate: float,
    jitter: float,
    limit: int | None,
) -> list[Case]:
    if trace is None:
        return [Case("shared-prompt", replicas, routers, lambda seed: shared_prompt(seed, rate=rate), {"rate": rate})]

    def case(path: Path, speed: float) -> Case:
        def requests(seed: int) -> list[Request]:
            return read_mooncake(path, jitter, seed, speed, limit)

        return Case(path.stem, replicas, routers, requests, {"speed": speed, "jitter_s": jitter})

    return [case(trace, speed) for speed in speeds]


def _table(case: Case, found: dict[str, dict[str, list[float]]]) -> Table:
    """Medians over seeds, with their range where they differ."""
    what = ", ".join(f"{name} {value:g}" for name, value in case.params.items())
    title = f"{case.work}: {case.replicas} replicas, {case.routers} router{'s' * (case.routers > 1)}, {what}"
    table = Table("policy", *HEADINGS.values(), title=title)
    for policy, metrics in found.items():
        cells = []
        for metric in METRICS:
            values = metrics.get(metric)
            if not values:
                cells.append("not known")
                continue
            digits = 0 if metric.endswith(("p50", "p99")) else 2 if metric.endswith("imbalance") else 3
            spread = f" ({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else ""
            cells.append(f"{statistics.median(values):.{digits}f}{spread}")
        table.add_row(policy, *cells)
    return table
