"""A router process: the data path, the source of its table, the admin API, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from paceline_router.build import words
from paceline_router.choice import native
from paceline_router.epp.start import PickerOptions, start_picker
from paceline_router.flow.dataplane import DataPlane
from paceline_router.flow.polling import poll
from paceline_router.processes.heartbeat import beat
from paceline_router.report import otlp
from paceline_router.report.admin import AdminServer
from paceline_router.report.tokens import AdminToken
from paceline_router.settings import Settings
from paceline_router.shadow.sending import Sender
from paceline_router.sources import sources
from paceline_router.wire.client import ClientConnection

log = logging.getLogger(__name__)

BACKLOG = 4096

SPARE_FILES = 256
"""For everything but clients and the connection to a replica that each of them may need."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Addresses. Port 0 takes a free one.

    Attributes:
        admin_host: for the admin API; None: the same host.
        shared: other processes listen on the port as well, and the kernel spreads connections over them.
        picker: the endpoint picker for gateways; None: there is none.
    """

    host: str = "0.0.0.0"
    port: int = 8080
    admin_port: int = 8081
    admin_host: str | None = None
    shared: bool = False
    picker: PickerOptions | None = None


async def serve(
    listen: Listen,
    settings: Settings,
    token: AdminToken,
    config: Path | None = None,
    ready: asyncio.Event | None = None,
    heartbeat: int | None = None,
) -> None:
    """Run a router until SIGTERM or SIGINT, then drain.

    Args:
        config: a routes file; without it the table comes from the Kubernetes API at hand.
        ready: set once both ports are open.
        heartbeat: a pipe for signs of life, to the supervisor of several processes.

    Raises:
        RoutesFileError: the file cannot be used at the start.
        FileNotFoundError: neither a file nor a cluster.
        OSError: a port is taken.
    """
    files, asked = raise_file_limit(), settings.max_client_connections
    settings = within_files(settings, files)
    loop = asyncio.get_running_loop()
    tracer, exporter = otlp.from_environment(os.environ)
    token_file = settings.recorder_token_file
    sender = Sender(AdminToken.from_environment(None if token_file is None else Path(token_file)).current)
    plane = DataPlane(settings, tracer=tracer, sender=sender)
    stop: asyncio.Event = asyncio.Event()
    hurry: asyncio.Event = asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    # The prefix index is compiled once on a machine: before the ports are open, not while somebody waits.
    await loop.run_in_executor(None, native.load)
    # From before a table is read, which may take its time, to the very end: neither is a reason to be taken for dead.
    beating = None if heartbeat is None else loop.create_task(beat(lambda: plane.ready, heartbeat))
    async with sources(plane, config) as followed:
        server = await loop.create_server(
            lambda: ClientConnection(plane), listen.host, listen.port, backlog=BACKLOG, reuse_port=listen.shared or None
        )
        picker = None
        if listen.picker is not None:
            picker = await start_picker(plane, listen.host, listen.picker, shared=listen.shared)
        admin = AdminServer(plane, followed.table, token, listen.admin_host or listen.host, listen.admin_port)
        admin.start()
        if exporter is not None:
            exporter.start()
        tasks = [
            loop.create_task(work)
            for work in (plane.sweep(), poll(plane), *(follow() for follow in followed.followers))
        ]
        for task in tasks:
            task.add_done_callback(lambda task: _ended(task, stop))
        port = server.sockets[0].getsockname()[1]
        # Not before: of a router that cannot start the reason is said, and nothing beside it.
        if settings.max_client_connections < asked:
            log.warning(
                "only %d client connections are taken, since this process may have %d open files; raise its limit "
                "(ulimit -n)",
                settings.max_client_connections,
                files,
            )
        log.info("%s on http://%s:%d, admin on port %d", words(), listen.host, port, admin.port)
        print(f"paceline router ready on http://{listen.host}:{port} (admin port {admin.port})", flush=True)
        if ready is not None:
            ready.set()
        gc.collect()
        gc.freeze()
        try:
            await stop.wait()
            plane.stopping = True
            log.info("stopping: readiness is red, new requests are taken for %g s more", settings.shutdown_delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), settings.shutdown_delay)
            server.close()
            cut = await plane.drain(0.0 if hurry.is_set() else settings.drain_timeout)
            if cut:
                log.warning("%d requests did not finish in %g s and were ended", cut, settings.drain_timeout)
        finally:
            if picker is not None:
                await picker.stop(0)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await loop.run_in_executor(None, admin.stop)
            await loop.run_in_executor(None, sender.stop)
            if exporter is not None:
                await loop.run_in_executor(None, exporter.stop)
            if beating is not None:
                beating.cancel()
    for result in results:
        if isinstance(result, Exception):
            raise result


def raise_file_limit() -> int:
    """Allow as many connections as the system lets this process have, and say how many open files that are; the usual
    soft limit is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def within_files(settings: Settings, files: int) -> Settings:
    """The settings with no more clients than there are files for: without one left, no replica could be reached."""
    if files == resource.RLIM_INFINITY:
        return settings
    clients = max(1, (files - SPARE_FILES) // 2)
    if clients >= settings.max_client_connections:
        return settings
    return dataclasses.replace(settings, max_client_connections=clients)


def _ended(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    """A part that should run for ever has ended: so does the process, in order."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("a part of the router failed", exc_info=task.exception())
        stop.set()
