"""Joins configuration, logging and the replica's life."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from paceline_crds import logs
from paceline_crds.conditions import EXIT_CONFIG
from paceline_crds.names import ENV_POOL_HASH
from paceline_runtime.config import ConfigError, StartupError, load_file, resolve

from .lifecycle import bind, run
from .replica import ServerOptions
from .termination import say_last_words


def main(
    *,
    source: str | None,
    config_file: Path | None,
    served_name: str | None,
    flags: Mapping[str, Any],
    host: str,
    port: int,
    drain_seconds: float,
    liveness_seconds: float,
    max_body_bytes: int,
    trace: Path | None,
    log_level: str,
) -> int:
    """Serve until a signal comes or the engine fails; the exit code.

    Args:
        flags: engine parameters from the command line; `None` where they were not given.
        trace: where the engine shall write what each step did.
    """
    revision = os.environ.get(ENV_POOL_HASH, "")
    level = logging.getLevelNamesMapping()[log_level.upper()]
    try:
        logs.set_up(level, component="server", identity={"revision": revision}, quote=False)
    except ValueError as error:
        say_last_words(str(error))
        return EXIT_CONFIG
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
    _allow_many_connections()
    options = ServerOptions(
        max_body_bytes=max_body_bytes,
        liveness_seconds=liveness_seconds,
        drain_seconds=drain_seconds,
        trace=trace,
    )
    try:
        file = load_file(config_file) if config_file is not None else None
        config = resolve(file=file, source=source, served_name=served_name, flags=flags)
        _check_name(config.model.served_name)
        with bind(host, port) as listener:
            uvloop.run(run(config, options, listener))
    except StartupError as error:
        say_last_words(str(error))
        return error.exit_code
    return 0


def _check_name(served_name: str) -> None:
    """Clients send it, metrics and logs carry it."""
    if not served_name.isprintable():
        raise ConfigError(
            f"the served name {served_name!r} has a character that cannot be printed; write the name that clients "
            "shall send as 'model', with --served-name or model.servedName"
        )


def _allow_many_connections() -> None:
    """Each connection is a file, and the usual soft limit is 1024 of them; the hard one is ours to use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
