"""`python -m paceline_operator`: run the operator until SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import uuid
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from paceline_autoscaler.prometheus import Access
from paceline_crds import logs
from paceline_crds.names import ENV_BIND_HOST, OPERATOR_HEALTH_PORT, OPERATOR_METRICS_PORT
from paceline_kube import connect, own_namespace

from .app import WRITE_TIMEOUT, Operator, Options
from .room import NO_ROOM_SECONDS
from .settings import Settings

app = typer.Typer(add_completion=False)

EXIT_BROKEN, EXIT_WRONG_USE = 1, 2

COLLECT_AFTER = (20_000, 50, 50)
"""`gc.set_threshold`: containers, and collections of the generation before. The caches are a million dictionaries and
lists at the size of a fleet, and none is in a cycle. With Python's own thresholds every few decoded events have the
young ones looked through, and ever so often all: a quarter of the CPU while 300 services come up, and more for more.
"""


@app.command()
def main(
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Serve only this namespace; may be given again. Default: all."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Services reconciled at the same time.")] = 4,
    runtime_image: Annotated[
        str, typer.Option(envvar="PACELINE_RUNTIME_IMAGE", help="Runtime image of services that name none.")
    ] = "",
    own: Annotated[
        str,
        typer.Option(
            "--own-namespace",
            envvar="POD_NAMESPACE",
            help="Where the operator, the routers and the lease live. Default: the pod's.",
        ),
    ] = "",
    public_url: Annotated[
        str, typer.Option(envvar="PACELINE_PUBLIC_URL", help="Base URL of the router, for status.address.url.")
    ] = "",
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Use this file. Default: the pod's service account, else $KUBECONFIG.")
    ] = None,
    bind_host: Annotated[
        str, typer.Option(envvar=ENV_BIND_HOST, help="Address of the health and metrics ports.")
    ] = "0.0.0.0",
    health_port: Annotated[int, typer.Option(help="Port of /healthz.")] = OPERATOR_HEALTH_PORT,
    metrics_port: Annotated[int, typer.Option(help="Port of /metrics.")] = OPERATOR_METRICS_PORT,
    no_room_seconds: Annotated[
        float,
        typer.Option(
            envvar="PACELINE_NO_ROOM_SECONDS",
            min=0.0,
            help="How long a new revision may find no place, before replicas of the old one go one by one.",
        ),
    ] = NO_ROOM_SECONDS,
    prometheus_url: Annotated[
        str,
        typer.Option(
            envvar="PACELINE_PROMETHEUS_URL",
            help="A Prometheus to ask for the percentiles of pools that follow load. Empty: none.",
        ),
    ] = "",
    prometheus_token_file: Annotated[
        Path | None, typer.Option(envvar="PACELINE_PROMETHEUS_TOKEN_FILE", help="File with a bearer token for it.")
    ] = None,
    prometheus_ca_file: Annotated[
        Path | None, typer.Option(envvar="PACELINE_PROMETHEUS_CA_FILE", help="File with the CA of its certificate.")
    ] = None,
    prometheus_tenant: Annotated[
        str, typer.Option(envvar="PACELINE_PROMETHEUS_TENANT", help="Sent as X-Scope-OrgID.")
    ] = "",
    scrape_seconds: Annotated[
        float,
        typer.Option(envvar="PACELINE_SCRAPE_SECONDS", min=1.0, help="Seconds between two of its scrapes."),
    ] = 15.0,
    log_level: Annotated[
        str, typer.Option(envvar="PACELINE_LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR.")
    ] = "INFO",
) -> None:
    """Run the Paceline operator.

    Examples:

      python -m paceline_operator --runtime-image paceline.io/runtime:0.1.0

      python -m paceline_operator -n team-a -n team-b --workers 8
    """
    _set_up_logging(log_level)
    home = own or own_namespace() or ""
    if not home:
        _refuse("which namespace is the operator's own? Set POD_NAMESPACE or --own-namespace")
    if not runtime_image:
        _refuse("which image runs services that name none? Set PACELINE_RUNTIME_IMAGE or --runtime-image")
    instance = os.environ.get("POD_NAME") or socket.gethostname()
    options = Options(
        # A restarted container keeps its pod's name; its predecessor's last write may still be under way.
        identity=f"{instance}_{uuid.uuid4().hex[:8]}",
        instance=instance,
        namespaces=tuple(namespace or ()),
        workers=workers,
        bind_host=bind_host,
        health_port=health_port,
        metrics_port=metrics_port,
    )
    access = None
    if prometheus_url:
        tenant = {"X-Scope-OrgID": prometheus_tenant} if prometheus_tenant else {}
        try:
            access = Access(
                prometheus_url, token_file=prometheus_token_file, ca_file=prometheus_ca_file, headers=tenant
            )
        except ValueError as exc:
            _refuse(str(exc))
    settings = Settings(
        runtime_image=runtime_image,
        namespace=home,
        router_url=public_url,
        no_room_seconds=no_room_seconds,
        prometheus=access,
        scrape_seconds=scrape_seconds,
    )
    gc.set_threshold(*COLLECT_AFTER)
    try:
        uvloop.run(_run(kubeconfig, settings, options))
    except FileNotFoundError as exc:
        _refuse(str(exc))
    except ModuleNotFoundError as exc:
        _refuse(f"{exc}; a Prometheus is asked with the extra paceline[autoscaler]: install it, or leave the URL out")
    except (RuntimeError, OSError) as exc:
        logging.getLogger("paceline_operator").critical("%s", exc, exc_info=exc)
        sys.exit(EXIT_BROKEN)


async def _run(kubeconfig: Path | None, settings: Settings, options: Options) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with connect(kubeconfig) as reader, connect(kubeconfig, timeout=WRITE_TIMEOUT) as writer:
        await Operator(reader, writer, settings, options).run(stop)


def _set_up_logging(level: str) -> None:
    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        _refuse(f"log level {level!r}: use DEBUG, INFO, WARNING or ERROR")
    try:
        logs.set_up(logging.getLevelNamesMapping()[level.upper()], component="operator")
    except ValueError as exc:
        _refuse(str(exc))
    # Kopf tells every event it hands on, and that it leaves signals to us; neither is news.
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # one line per probe
    logging.getLogger("kopf._core.reactor.running").addFilter(lambda record: "OS signals" not in record.getMessage())


def _refuse(words: str) -> None:
    print(f"paceline-operator: {words}", file=sys.stderr)
    sys.exit(EXIT_WRONG_USE)


if __name__ == "__main__":
    app()
