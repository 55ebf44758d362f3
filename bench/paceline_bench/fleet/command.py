"""`paceline bench fleet`: the operator at the size of a fleet, beside the same job done with Kopf alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline_bench.output import Output
from paceline_bench.processes import raise_file_limit
from paceline_bench.results import Row, document, versions, write_document
from paceline_bench.tables import show
from paceline_local.errors import LocalError

from .measure import Figures, Late, measure
from .systems import KOPF_ONLY, OURS

UNREACHABLE = 4
WORK = "fleet"
SYSTEMS = (OURS, KOPF_ONLY)


def fleet(
    services: Annotated[int, typer.Option(min=1, help="InferenceServices.")] = 50,
    replicas: Annotated[int, typer.Option(min=0, help="Of each.")] = 4,
    system: Annotated[
        list[str] | None, typer.Option(help="paceline or kopf-only; may be given again. Default: both.")
    ] = None,
    window: Annotated[float, typer.Option(min=5, help="Seconds of rest in which API calls are counted.")] = 120.0,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that the fleet may take to come up.")] = 900.0,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also write cProfile files of our operator into --out; it gets slower.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json and the logs.")] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="text, or json for programs.")] = Output.TEXT,
) -> None:
    """Bring a fleet up, let it rest and restart its operator, on a real API server.

    Each system gets a control plane of its own (etcd, API server, controller manager; no node and no scheduler). A
    process that plays the kubelets makes every pod Ready as fast as the API server takes it, and answers as each
    replica when it is asked for its configuration, so that looks for drift are part of what is measured. `kopf-only` is
    the smallest operator in Kopf's own style: a ConfigMap, a Deployment and a status per service, and nothing of what
    Paceline adds.

    CPU is user and system time of the whole operator process; events are those a second watcher with the same selectors
    is sent from the first create until nothing changes any more. API calls come from the API server's audit log. The
    restart is counted from the start of the new process, after the old one ended in good order.

    Exit codes: 0 measured; 2 wrong use; 4 a part did not come up, or not in time.

    Examples:

        paceline bench fleet --services 50 --replicas 4

        paceline bench fleet --services 1000 --replicas 4 --system paceline --out results/fleet
    """
    wanted = system or list(SYSTEMS)
    for name in wanted:
        if name not in SYSTEMS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(SYSTEMS)}", param_hint="--system")
    if profile and out is None:
        raise typer.BadParameter("the profile needs a folder: give --out", param_hint="--profile")
    raise_file_limit()
    say = Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print
    with tempfile.TemporaryDirectory(prefix="paceline-fleet-") as temporary:
        logs = out or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        found: dict[str, Figures] = {}
        for name in wanted:
            try:
                found[name] = measure(
                    name,
                    services,
                    replicas,
                    window=window,
                    limit=limit,
                    logs=logs,
                    say=say,
                    profile=logs / "profile" if profile else None,
                )
            except (Late, LocalError) as error:
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(UNREACHABLE) from None
    params = {"services": services, "replicas": replicas}
    made = document(
        [row for name, figures in found.items() for row in rows_of(name, figures, params)], versions("kopf")
    )
    if output is Output.JSON:
        typer.echo(json.dumps(made, indent=2))
    else:
        show(table_of(found, f"{services} services with {replicas} replicas each"))
    if out is not None:
        typer.echo(write_document(out, made), err=output is Output.JSON)


def rows_of(system: str, figures: Figures, params: dict[str, int]) -> Iterator[Row]:
    """The figures of one system as rows of `results.json`."""
    values = {
        "converge_s": (figures.converge_s, "s"),
        "cpu_ms_per_event": (figures.cpu_ms_per_event, "ms"),
        "converge_cpu_s": (figures.converge_cpu_s, "s"),
        "watch_events": (figures.events, "events"),
        "steady_api_calls_per_hour": (figures.calls_per_hour(lease=False), "calls/h"),
        "steady_lease_calls_per_hour": (figures.calls_per_hour(lease=True), "calls/h"),
        "steady_cpu_percent": (100 * figures.steady_cpu, "%"),
        "restart_to_steady_s": (figures.restart_s, "s"),
        "restart_cpu_s": (figures.restart_cpu_s, "s"),
        "rss_mb": (figures.rss_mb, "MiB"),
    }
    for metric, (value, unit) in values.items():
        window: dict[str, Any] = {"window_s": figures.steady_seconds} if metric.startswith("steady") else {}
        yield Row(WORK, system, metric, round(value, 3), unit, {**params, **window})
    for what, count in sorted(figures.steady_calls.items()):
        counted = {"window_s": figures.steady_seconds, "call": what}
        yield Row(WORK, system, "steady_api_calls", count, "calls", {**params, **counted})


def table_of(found: dict[str, Figures], title: str) -> Table:
    """One line per figure, one column per system."""
    table = Table("", *found, title=title)
    rows = {name: {row.metric: row for row in rows_of(name, figures, {})} for name, figures in found.items()}
    for metric in next(iter(rows.values())):
        if metric == "steady_api_calls":
            continue
        cells = (f"{rows[name][metric].value:,.2f} {rows[name][metric].unit}" for name in found)
        table.add_row(metric, *cells)
    return table
