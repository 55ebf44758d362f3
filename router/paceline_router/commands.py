"""`paceline route`: run a router; `paceline route explain`: ask one what it would do."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline_crds import names
from paceline_router import build
from paceline_router.explain_command import explain
from paceline_router.settings import Settings

if TYPE_CHECKING:
    from paceline_router.report.tokens import AdminToken
    from paceline_router.server import Listen

MAX_PROCESSES = 256

EXIT_WRONG_USE = 2
EXIT_UNREACHABLE = 4

DEFAULTS = Settings()


def show_version(wanted: bool) -> None:
    """Print which router this is, and end."""
    if wanted:
        typer.echo(build.words())
        raise typer.Exit


def route(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="Routes file (YAML or JSON). Without it the table comes from Kubernetes.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help=f"Address to listen on. Default: ${names.ENV_BIND_HOST}, else 0.0.0.0.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port for traffic; 0 takes a free one.")] = names.ROUTER_PORT,
    admin_port: Annotated[
        int, typer.Option(help="Port for health, metrics and the admin API.")
    ] = names.ROUTER_ADMIN_PORT,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(help="File with the admin API's bearer token, re-read on change. Default: $PACELINE_ADMIN_TOKEN."),
    ] = None,
    recorder_token_file: Annotated[
        Path | None,
        typer.Option(help="File with the recorder's bearer token, re-read on change. Default: the admin API's."),
    ] = None,
    connect_timeout: Annotated[
        float, typer.Option(help="Seconds for a connection to a replica.")
    ] = DEFAULTS.connect_timeout,
    first_byte_timeout: Annotated[
        float, typer.Option(help="Seconds until a replica's first byte; bounds answers that are not streamed.")
    ] = DEFAULTS.first_byte_timeout,
    idle_timeout: Annotated[float, typer.Option(help="Seconds of silence inside a stream.")] = DEFAULTS.idle_timeout,
    max_body_bytes: Annotated[int, typer.Option(help="Largest request body.")] = DEFAULTS.max_body_bytes,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open connections of clients; more are refused with 503.")
    ] = DEFAULTS.max_client_connections,
    choice_policy: Annotated[
        str,
        typer.Option(
            help="How replicas are chosen; for comparisons: cost, round-robin, least-requests, power-of-two, "
            "consistent-hash."
        ),
    ] = DEFAULTS.choice_policy,
    processes: Annotated[
        int, typer.Option(min=1, max=MAX_PROCESSES, help="Processes that share the port; limits are divided by it.")
    ] = 1,
    endpoint_picker_port: Annotated[
        int | None,
        typer.Option(help="Port on which gateways ask for endpoints (ext_proc); needs the extra epp. Default: none."),
    ] = None,
    endpoint_picker_certificate: Annotated[
        Path | None, typer.Option(help="PEM file for TLS there, re-read on change. Default: plain HTTP/2.")
    ] = None,
    endpoint_picker_key: Annotated[Path | None, typer.Option(help="PEM file with its key.")] = None,
    endpoint_picker_fallbacks: Annotated[
        int, typer.Option(min=0, max=8, help="Endpoints named after the chosen one, for gateways that take a list.")
    ] = 0,
    shutdown_delay: Annotated[
        float, typer.Option(help="Seconds to keep accepting after SIGTERM, so that clients hear of it first.")
    ] = DEFAULTS.shutdown_delay,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that running requests may take to finish after that.")
    ] = DEFAULTS.drain_timeout,
    log_level: Annotated[
        str, typer.Option(envvar="PACELINE_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Say which version and build this is."),
    ] = False,
) -> None:
    """Send requests to the replicas of the services they name.

    Examples:

      paceline route                                   in a cluster, or with a kubeconfig

      paceline route --config routes.yaml --port 8080  without Kubernetes

      paceline route explain request.json              what it would make of a request
    """
    if context.invoked_subcommand is not None:
        return
    # Here, so that --help does not wait for web framework and Kubernetes client.
    from paceline_router.choice.policies import POLICIES
    from paceline_router.epp.start import PickerOptions
    from paceline_router.report.tokens import AdminToken
    from paceline_router.server import Listen

    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter("write debug, info, warning or error", param_hint="--log-level")
    set_up_logging(level)
    if choice_policy not in POLICIES:
        raise typer.BadParameter(f"write one of {', '.join(POLICIES)}", param_hint="--choice-policy")
    settings = replace(
        DEFAULTS,
        connect_timeout=connect_timeout,
        first_byte_timeout=first_byte_timeout,
        idle_timeout=idle_timeout,
        max_body_bytes=max_body_bytes,
        max_client_connections=max_connections,
        choice_policy=choice_policy,
        shutdown_delay=shutdown_delay,
        drain_timeout=drain_timeout,
        recorder_token_file=None if admin_token_file is None else str(admin_token_file),
    )
    if recorder_token_file is not None:
        settings = replace(settings, recorder_token_file=str(recorder_token_file))
    picker = None
    if endpoint_picker_port is not None:
        picker = PickerOptions(
            endpoint_picker_port,
            None if endpoint_picker_certificate is None else str(endpoint_picker_certificate),
            None if endpoint_picker_key is None else str(endpoint_picker_key),
            endpoint_picker_fallbacks,
        )
    listen = Listen(host or os.environ.get(names.ENV_BIND_HOST) or "0.0.0.0", port, admin_port, picker=picker)
    token = AdminToken.from_environment(admin_token_file)
    if processes == 1:
        code = run_here(listen, settings, token, config)
    else:
        code = run_several(listen, settings, token, config, processes, level)
    if code:
        raise typer.Exit(code)


def set_up_logging(level: int) -> None:
    """Log to standard error; a slow request is a line of JSON in any case."""
    from paceline_crds import logs
    from paceline_router.report import slowlog

    try:
        logs.set_up(level, component="router", quote=False)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None
    slowlog.to_stderr()


def run_here(
    listen: Listen, settings: Settings, token: AdminToken, config: Path | None, heartbeat: int | None = None
) -> int:
    """Run a router in this process until it is told to stop; the exit code. See `server.serve`."""
    import uvloop

    from paceline_router.epp.start import PickerError
    from paceline_router.server import serve
    from paceline_router.table.file import RoutesFileError

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(listen, settings, token, config, heartbeat=heartbeat))
    except (RoutesFileError, PickerError) as exc:
        typer.echo(f"error: {exc}", err=True)
        return EXIT_WRONG_USE
    except FileNotFoundError as exc:
        typer.echo(f"error: {exc}; outside a cluster, --config names a routes file", err=True)
        return EXIT_UNREACHABLE
    except OSError as exc:
        return _explain(exc, listen)
    return 0


def run_several(
    listen: Listen, settings: Settings, token: AdminToken, config: Path | None, processes: int, log_level: int
) -> int:
    """Run router processes that share the port until told to stop; the exit code."""
    from paceline_router.processes.supervisor import Supervisor

    async def run() -> int:
        return await Supervisor(listen, settings, token, config, processes, log_level).run()

    try:
        return asyncio.run(run())
    except OSError as exc:
        return _explain(exc, listen)


def _explain(exc: OSError, listen: Listen) -> int:
    if exc.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
        picker = "" if listen.picker is None else f", {listen.picker.port}"
        wanted = f"{listen.host} ports {listen.port}{picker} and {listen.admin_port}"
        typer.echo(f"error: cannot listen on {wanted}: {exc.strerror}; see --host, --port, --admin-port", err=True)
        return EXIT_WRONG_USE
    typer.echo(f"error: {exc.strerror or exc}", err=True)
    return EXIT_UNREACHABLE


app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.callback(invoke_without_command=True)(route)
app.command()(explain)
