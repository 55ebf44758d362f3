"""`python -m paceline_local.serviceproxy`: give every Service of a local instance a stable address."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline_kube import connect
from paceline_local.serviceproxy.proxy import ServiceProxy


def run(
    kubeconfig: Annotated[Path, typer.Option(help="Kubeconfig of system:kube-proxy.")],
    dir: Annotated[Path, typer.Option(help="Folder for services.json and the addresses given so far.")],
    range: Annotated[str, typer.Option(help="Loopback range of the Services' addresses.")],
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Follow Services and their ready pods until SIGTERM."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    asyncio.run(_run(kubeconfig, dir.absolute(), range))


async def _run(kubeconfig: Path, directory: Path, network: str) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with connect(kubeconfig) as client:
        proxy = asyncio.create_task(ServiceProxy(client, directory, network).run())
        stop = asyncio.create_task(stopping.wait())
        done, _ = await asyncio.wait({proxy, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if proxy in done:
            await proxy
        proxy.cancel()
        await asyncio.gather(proxy, return_exceptions=True)


if __name__ == "__main__":
    typer.run(run)
