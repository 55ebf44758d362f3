"""`paceline local`: up, down, status, env, build."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from paceline_local import install, lifecycle, progress
from paceline_local.build import ALERTMANAGER, PROMETHEUS, control_plane_tools, ensure_built
from paceline_local.cluster import Cluster
from paceline_local.errors import LocalError
from paceline_local.state import Instance, Shape
from paceline_local.status import PartStatus, Status

NO, UNREACHABLE = 1, 4

app = typer.Typer(
    name="local",
    help="A real Kubernetes on this machine, with Paceline in it; pods are local processes. No root, no containers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Examples:  paceline local up  |  paceline local status  |  paceline local down",
    pretty_exceptions_enable=False,
)


class Output(StrEnum):
    """How a command answers."""

    text = "text"
    json = "json"


DirectoryOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of the cluster; clusters in different folders live side by side."),
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="text, or json for programs.")]

Result = TypeVar("Result")


def _or_exit(work: Callable[[], Result]) -> Result:
    """The result of `work`; an error of ours becomes its message and exit status."""
    try:
        return work()
    except (LocalError, TimeoutError) as error:
        typer.echo(f"paceline local: {error}", err=True)
        raise typer.Exit(error.exit_code if isinstance(error, LocalError) else NO) from error


def bring_up(
    directory: Path | None,
    change: Callable[[Shape], Shape],
    report: progress.Progress = progress.silent,
) -> Cluster:
    """All of `paceline local up`: control plane, nodes, Service proxy, then Paceline and Prometheus.

    Args:
        directory: The cluster's folder; None for the default one.
        change: Turns the shape that the cluster has (or the default one) into the wanted one.
        report: Told what is done.

    Raises:
        LocalError: Something cannot be built, installed or does not become ready.
    """

    def wanted(before: Shape | None) -> Shape:
        return change(before or Shape())

    instance = Instance(directory)
    before = instance.read()
    shape = wanted(before.shape if before else None)
    lifecycle.check_shape(shape)
    if shape.prometheus and not shape.bare:
        # Before the node starts, so that a wait for the build is not mistaken for a pod that hangs.
        ensure_built(PROMETHEUS, report)
    cluster = lifecycle.start_instance(directory, wanted, report)
    if not shape.bare:
        with instance.lock("which installs Paceline into this local cluster", report, "install"):
            install.install_paceline(cluster, report)
            if shape.prometheus:
                install.install_prometheus(cluster, report)
    return cluster


@app.command(
    epilog="Examples:  paceline local up  |  paceline local up --nodes 2 --gpus-per-node 8  |  "
    "paceline local up --bare --dir /tmp/trial"
)
def up(
    directory: DirectoryOption = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes. [default: 1, or as before]")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="nvidia.com/gpu that each node claims to have. [default: 0, or as before]")
    ] = None,
    cpus_per_node: Annotated[
        str | None, typer.Option(help="Processors of each node, as a quantity. [default: the machine's]")
    ] = None,
    memory_per_node: Annotated[
        str | None, typer.Option(help="Memory of each node, as a quantity (8Gi). [default: the machine's]")
    ] = None,
    bare: Annotated[
        bool | None, typer.Option("--bare/--full", help="Kubernetes only, without Paceline and Prometheus.")
    ] = None,
    prometheus: Annotated[
        bool | None, typer.Option("--prometheus/--no-prometheus", help="Run Prometheus in the cluster.")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Bring up the cluster, or what is missing of it; safe to call again at any time.

    Options that are left out keep what the cluster has. The first time builds Kubernetes, which takes minutes.
    """
    given: dict[str, Any] = {
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "cpus_per_node": cpus_per_node,
        "memory_per_node": memory_per_node,
        "bare": bare,
        "prometheus": prometheus,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    cluster = _or_exit(lambda: bring_up(directory, lambda shape: replace(shape, **chosen), progress.StreamProgress()))
    if output is Output.json:
        typer.echo(json.dumps(_addresses(cluster), indent=2))
        return
    typer.echo(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    if cluster.router_url:
        typer.echo(f"Paceline's router: {cluster.router_url}")


@app.command(epilog="Examples:  paceline local down  |  paceline local down --keep-state")
def down(
    directory: DirectoryOption = None,
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Keep data, certificates and logs for the next `up`.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Stop everything that runs for the cluster, pods included, and delete its state."""
    existed = _or_exit(lambda: lifecycle.down(directory, progress.StreamProgress(), keep_state=keep_state))
    folder = str(Instance(directory).directory)
    if output is Output.json:
        typer.echo(json.dumps({"directory": folder, "existed": existed}, indent=2))
    else:
        typer.echo(f"nothing runs for {folder} any more" if existed else f"there is no local cluster in {folder}")


@app.command(epilog="Examples:  paceline local status  |  paceline local status -o json | jq -r .kubeconfig")
def status(directory: DirectoryOption = None, output: OutputOption = Output.text) -> None:
    """How each part of the cluster is; status 0 if all work, 1 if one does not or there is no cluster."""
    found = _or_exit(lambda: lifecycle.status(directory))
    if found is None:
        if output is Output.json:
            typer.echo(json.dumps({"directory": str(Instance(directory).directory), "exists": False}, indent=2))
        else:
            typer.echo(f"there is no local cluster in {Instance(directory).directory}; `paceline local up` makes one")
        raise typer.Exit(NO)
    if output is Output.json:
        typer.echo(json.dumps(_as_json(found), indent=2))
    else:
        _print_status(found)
    if not found.works:
        raise typer.Exit(NO)


@app.command(epilog='Example:  eval "$(paceline local env)" && kubectl get pods -A')
def env(directory: DirectoryOption = None, output: OutputOption = Output.text) -> None:
    """Shell lines that make kubectl and helm of this shell talk to the cluster."""
    instance = Instance(directory)
    record = _or_exit(instance.read)
    if record is None:
        typer.echo(f"there is no local cluster in {instance.directory}; `paceline local up` makes one", err=True)
        raise typer.Exit(NO)
    cluster = Cluster.of(instance, record)
    if output is Output.json:
        typer.echo(json.dumps(_addresses(cluster), indent=2))
        return
    typer.echo(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    typer.echo(f'export PATH={shlex.quote(str(cluster.tools))}:"$PATH"')
    if cluster.router_url:
        typer.echo(f"export PACELINE_ROUTER_URL={shlex.quote(cluster.router_url)}")


@app.command(epilog="Examples:  paceline local build  |  paceline local build --prometheus")
def build(
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Build Prometheus and promtool as well.")] = False,
    alertmanager: Annotated[bool, typer.Option("--alertmanager", help="Build Alertmanager and amtool.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Build what `up` would build, and no more; does nothing where it is built. For images and CI."""
    report = progress.StreamProgress()
    programs = dict(_or_exit(lambda: control_plane_tools(report)))
    if prometheus:
        folder = _or_exit(lambda: ensure_built(PROMETHEUS, report))
        programs |= {"prometheus": folder / "prometheus", "promtool": folder / "promtool"}
    if alertmanager:
        folder = _or_exit(lambda: ensure_built(ALERTMANAGER, report))
        programs |= {"alertmanager": folder / "alertmanager", "amtool": folder / "amtool"}
    if output is Output.json:
        typer.echo(json.dumps({name: str(path) for name, path in programs.items()}, indent=2))
    else:
        for path in programs.values():
            typer.echo(path)


def _addresses(cluster: Cluster) -> dict[str, Any]:
    return {
        "directory": str(cluster.directory),
        "exists": True,
        "server": cluster.server,
        "kubeconfig": str(cluster.kubeconfig),
        "tools": str(cluster.tools),
        "routerUrl": cluster.router_url,
        "prometheusUrl": cluster.prometheus_url,
    }


def _part_as_json(part: PartStatus) -> dict[str, Any]:
    return {
        "name": part.name,
        "state": part.state,
        "pid": part.pid,
        "startedAt": part.since,
        "log": str(part.log),
        "problem": part.problem,
        "lastLines": list(part.last_lines),
    }


def _as_json(found: Status) -> dict[str, Any]:
    return _addresses(found.cluster) | {
        "works": found.works,
        "parts": [_part_as_json(part) for part in found.parts],
        "pods": [asdict(pod) for pod in found.pods],
        "podsProblem": found.pods_problem,
        "alerts": None if found.alerts is None else [asdict(alert) for alert in found.alerts],
    }


def _print_status(found: Status) -> None:
    width = max(len(part.name) for part in found.parts)
    for part in found.parts:
        where = f"pid {part.pid}" if part.pid else ""
        typer.echo(f"{part.name:<{width}}  {part.state:<13}  {where}".rstrip())
        if part.state != "running":
            typer.echo(f"    {part.problem}; the end of {part.log}:")
            for line in part.last_lines:
                typer.echo(f"    | {line}")
    for pod in found.pods:
        typer.echo(f"pod {pod.namespace}/{pod.name}: {pod.words}")
    if found.pods_problem:
        typer.echo(found.pods_problem)
    for alert in found.alerts or ():
        typer.echo(f"alert {alert.name} ({alert.severity}): {alert.summary}; {alert.runbook}")
    typer.echo(f"API server  {found.cluster.server}")
    typer.echo(f"KUBECONFIG  {found.cluster.kubeconfig}")
    typer.echo(f"router      {found.cluster.router_url or 'not installed'}")
    if found.cluster.prometheus_url:
        known = "not known" if found.alerts is None else f"{len(found.alerts)} firing"
        typer.echo(f"Prometheus  {found.cluster.prometheus_url} (alerts: {known})")
    if not found.works:
        typer.echo("`paceline local up` starts what does not run.", err=True)


def main() -> None:
    """Run the command line of this package alone."""
    app(args=sys.argv[1:], prog_name="paceline local")
