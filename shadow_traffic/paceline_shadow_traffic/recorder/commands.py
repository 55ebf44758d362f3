"""`python -m paceline_shadow_traffic`: run a recorder."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from paceline_crds import logs, names

PORT = 8082
FILE = "comparisons.sqlite"
MIB = 1024 * 1024


def record(
    data: Annotated[Path, typer.Option(help="Folder for the file of comparisons.")] = Path("/var/lib/paceline"),
    host: Annotated[
        str | None, typer.Option(help=f"Address to listen on. Default: ${names.ENV_BIND_HOST}, else 0.0.0.0.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the bearer token, as of the routers' admin API. Default: $PACELINE_ADMIN_TOKEN."),
    ] = None,
    replay_percent: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=100.0,
            help="Share of recorded requests that are asked again, greedy: of the base twice, of the candidate once. "
            "Of each rollout the first 400 are, one at a time; 0: none at all.",
        ),
    ] = 5.0,
    max_megabytes: Annotated[int, typer.Option(min=1, help="Size of the file (MiB); the oldest goes first.")] = 512,
    max_days: Annotated[float, typer.Option(min=0.01, help="Age of what is kept.")] = 7.0,
    keep_texts_hours: Annotated[
        float, typer.Option(min=0.0, help="Keep prompts and answers for so long; 0: only hashes and statistics.")
    ] = 0.0,
    plugin_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for one score of an installed comparison.")
    ] = 5.0,
    log_level: Annotated[
        str, typer.Option(envvar="PACELINE_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Take pairs of answers from routers, compare them, and tell the operator what came out.

    Example:

      PACELINE_ADMIN_TOKEN=secret python -m paceline_shadow_traffic --data /tmp/pairs
    """
    import socket

    import uvicorn

    from .app import make_app, token_of
    from .plugins import Plugin, installed
    from .recorder import Recorder
    from .store import Limits, open_store

    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter("write debug, info, warning or error", param_hint="--log-level")
    try:
        logs.set_up(level, component="recorder", quote=False)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None
    if not data.is_dir():
        raise typer.BadParameter(f"there is no folder {data}; make it, or name another one", param_hint="--data")
    limits = Limits(max_megabytes * MIB, max_days * 86400.0, keep_texts_hours * 3600.0)
    recorder = Recorder(
        open_store(data / FILE, limits), [Plugin(name, plugin_timeout) for name in installed()], replay_percent
    )
    address = host or os.environ.get(names.ENV_BIND_HOST) or "0.0.0.0"
    try:
        listening = socket.create_server((address, port))
    except OSError as exc:
        typer.echo(f"error: cannot listen on {address} port {port}: {exc.strerror}; see --host and --port", err=True)
        raise typer.Exit(2) from None
    recorder.start()
    print(f"paceline recorder ready on http://{address}:{listening.getsockname()[1]}", flush=True)
    try:
        config = uvicorn.Config(make_app(recorder, token_of(token_file)), log_config=None, access_log=False)
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        recorder.stop()


app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
app.command()(record)
