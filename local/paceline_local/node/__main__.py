"""`python -m paceline_local.node`: run a node, or stop what a node has left running."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, cast

import aiohttp
import typer
from aiohttp import web

from paceline_kube import KubeError, connect
from paceline_local.node.agent import NodeAgent, settle
from paceline_local.node.config import INSTANCE_VARIABLE, NodeConfig, NodeContext, api_server_of
from paceline_local.node.events import EventRecorder
from paceline_local.node.gpus import GpuPool, real_gpus
from paceline_local.node.heartbeat import Heartbeat
from paceline_local.node.kubelet_api import KubeletApi, TlsFiles, server_tls
from paceline_local.node.mounts import probe_namespaces
from paceline_local.node.objects import ObjectSource, TokenSource
from paceline_local.node.plan import Namespaces
from paceline_local.node.restart import MOST_BACKOFF
from paceline_local.node.stop import stop_pods
from paceline_local.paths import cache_root

log = logging.getLogger("paceline_local.node")
app = typer.Typer(add_completion=False, help=__doc__)

REGISTER_SECONDS = 1.0


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="Name of the Node object.")] = "",
    dir: Annotated[Path | None, typer.Option(help="Folder for the node's and its pods' state.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig of system:node:NAME.")] = None,
    address: Annotated[str, typer.Option(help="The node's own loopback address.")] = "127.0.0.1",
    pod_range: Annotated[str, typer.Option(help="Loopback range of the pods' addresses.")] = "127.0.1.0/24",
    cpus: Annotated[str, typer.Option(help="CPUs that pods may ask for.")] = "2",
    memory: Annotated[str, typer.Option(help="Memory that pods may ask for.")] = "8Gi",
    gpus: Annotated[int, typer.Option(help="nvidia.com/gpu that pods may ask for, real or not.")] = 0,
    pods: Annotated[int, typer.Option(help="Number of pods that may run here.")] = 250,
    tls_cert: Annotated[Path | None, typer.Option(help="Serving certificate of the kubelet API.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Authority of the API server's client certificate.")] = None,
    max_backoff: Annotated[float, typer.Option(help="Longest wait before a restart, in seconds.")] = MOST_BACKOFF,
    volume_refresh: Annotated[float, typer.Option(help="Seconds between updates of volumes.")] = 10.0,
    mounts: Annotated[str, typer.Option(help="How volumes are shown: auto, root, user (namespaces) or none.")] = "auto",
    stop_pods_on_exit: Annotated[bool, typer.Option(help="On SIGTERM stop the pods' processes too.")] = False,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run a node until SIGTERM. Its pods' processes stay and are found again by the next run."""
    if context.invoked_subcommand is not None:
        return
    needed = {"--name": name, "--dir": dir, "--kubeconfig": kubeconfig}
    needed |= {"--tls-cert": tls_cert, "--tls-key": tls_key, "--client-ca": client_ca}
    if missing := [option for option, value in needed.items() if not value]:
        raise typer.BadParameter(f"give {', '.join(missing)} too")
    assert dir is not None
    assert kubeconfig is not None
    tls = TlsFiles(*(path for path in (tls_cert, tls_key, client_ca) if path is not None))
    if mounts not in ("auto", "root", "user", "none"):
        raise typer.BadParameter(f"{mounts!r} is none of auto, root, user, none", param_hint="--mounts")
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    directory = dir.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    config = NodeConfig(
        name=name,
        directory=directory,
        address=address,
        pod_range=pod_range,
        cpu=cpus,
        memory=memory,
        gpus=gpus,
        pods=pods,
        max_backoff=max_backoff,
        volume_refresh=volume_refresh,
    )
    with open(directory / "node.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise typer.BadParameter(f"a node runs on {directory} already", param_hint="--dir") from None
        lock.truncate(0)  # only now: until it is ours, the other node's pid stands in it
        lock.write(str(os.getpid()))
        lock.flush()
        if sys.version_info < (3, 12):  # later versions do this by themselves
            asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
        namespace = probe_namespaces() if mounts == "auto" else cast(Namespaces, mounts)
        asyncio.run(_run(config, kubeconfig, tls, namespace))
        if stop_pods_on_exit:
            stop_pods(directory, grace=10.0)


@app.command()
def stop(
    dir: Annotated[Path, typer.Option(help="Folder of the node.")],
    grace: Annotated[float, typer.Option(help="Seconds between SIGTERM and SIGKILL.")] = 10.0,
) -> None:
    """Stop all pods' processes of a node, and the node itself where it runs."""
    count = stop_pods(dir.absolute(), grace)
    typer.echo(f"stopped {count} containers")


async def _run(config: NodeConfig, kubeconfig: Path, tls: TlsFiles, namespace: Namespaces) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    # An image has its compiled parts in it. Here they are in the user's cache, which a pod's own home would hide.
    instance = {"PACELINE_CACHE": str(cache_root())}
    if INSTANCE_VARIABLE in os.environ:
        instance[INSTANCE_VARIABLE] = os.environ[INSTANCE_VARIABLE]
    async with (
        connect(kubeconfig) as client,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0)) as session,
    ):
        events = EventRecorder(client, config.name)
        context = NodeContext(
            config=config,
            client=client,
            events=events,
            objects=ObjectSource(client),
            tokens=TokenSource(client),
            session=session,
            gpus=GpuPool(real_gpus()),
            namespace=namespace,
            api_server=api_server_of(kubeconfig),
            instance=instance,
        )
        agent = NodeAgent(context)
        runner = web.AppRunner(KubeletApi(agent.find).application(), shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, config.address, 0, ssl_context=server_tls(tls))
        await site.start()
        port = runner.addresses[0][1]
        heartbeat = Heartbeat(client, config, port)
        tasks: list[asyncio.Task[None]] = []
        try:
            if not await _register(heartbeat, stopping):
                return
            log.info("node %s is registered; kubelet API on %s:%d", config.name, config.address, port)
            tasks = [asyncio.create_task(work) for work in (heartbeat.run(), events.run(), agent.run())]
            stop = asyncio.create_task(stopping.wait())
            done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            for task in done & set(tasks):
                task.result()
        finally:
            for task in reversed(tasks):
                with contextlib.suppress(Exception):
                    await settle(task)
            await runner.cleanup()


async def _register(heartbeat: Heartbeat, stopping: asyncio.Event) -> bool:
    while not stopping.is_set():
        try:
            await heartbeat.register()
            return True
        except KubeError as error:
            log.warning("node not registered, trying again: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), REGISTER_SECONDS)
    return False


if __name__ == "__main__":
    app()
