"""Routers and replicas as real processes that may be killed, drained, added, removed and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paceline_bench.processes import ProcessGroup, free_port

from . import features
from .native import Programs, cores, pinned
from .systems import answers, paceline_command

READY_SECONDS = 30.0
ENDED_SECONDS = 30.0
SHUTDOWN_DELAY = 1.0
"""Seconds that a router goes on accepting after SIGTERM."""
FORGOTTEN_AFTER = 0.5
"""Seconds until no new connection goes to a router that was told to end, as Kubernetes takes its time."""


@dataclass
class Replica:
    """One replica process."""

    port: int
    process: ProcessGroup
    draining: bool = False
    listed: bool = True

    @property
    def entry(self) -> dict[str, Any]:
        """In the routes file."""
        return {"url": f"http://127.0.0.1:{self.port}", "draining": self.draining}


@dataclass
class Fleet:
    """Replicas, routers in front of them, and the routes file between.

    Attributes:
        programs: what was built.
        folder: for files and logs.
        slots: requests that a replica runs at a time; 0: no bound.
        more: further fields of the service entry.
        ports: of routers that new connections may go to.
    """

    programs: Programs
    folder: Path
    slots: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    _routers: dict[int, ProcessGroup] = field(default_factory=dict)
    _started: int = 0

    @property
    def routes(self) -> Path:
        """The routes file."""
        return self.folder / "routes.json"

    def _log(self, name: str) -> Path:
        self._started += 1
        return self.folder / f"{name}-{self._started}.log"

    async def add_replica(self, port: int | None = None) -> Replica:
        """Start one, at a port of its own or at that of one that is gone. It is in the file after `write`."""
        port = port or free_port()
        command = pinned([str(self.programs.mock), "-s", str(self.slots), "-p", str(port)], cores()[1])
        made = Replica(port, ProcessGroup(command, environment={}, log=self._log("replica")))
        self.replicas.append(made)
        await _until(lambda: answers(port), made.process, "a replica")
        return made

    def kill(self, replica: Replica) -> None:
        """kill -9; its place in the file stays."""
        os.kill(replica.process.pid, signal.SIGKILL)

    async def revive(self, replica: Replica) -> None:
        """Wait for the end of one that was killed or told to end, and start another at its port."""
        await _ended(replica.process)
        self.replicas.remove(replica)
        await self.add_replica(replica.port)

    def terminate(self, replica: Replica) -> None:
        """SIGTERM: it answers 503 from now on and ends when what runs has ended."""
        os.kill(replica.process.pid, signal.SIGTERM)

    def write(self) -> None:
        """Say in the file what there is."""
        entry = features.service([], features.ALL, self.more)
        features.write_routes(self.routes, entry | {"replicas": [r.entry for r in self.replicas if r.listed]})

    async def add_router(self) -> int:
        """Start one; its port is among `ports` once it answers."""
        port = free_port()
        options = ["--shutdown-delay", str(SHUTDOWN_DELAY), "--drain-timeout", str(ENDED_SECONDS)]
        command = pinned([*paceline_command(self.routes, port), *options], cores()[0])
        self._routers[port] = ProcessGroup(command, environment={}, log=self._log("router"))
        await _until(lambda: answers(port), self._routers[port], "a router")
        self.ports.append(port)
        return port

    async def retire_router(self, port: int) -> None:
        """SIGTERM; new connections stop going there a little later. Returns when it has ended.

        Raises:
            RuntimeError: it did not end well.
        """
        process = self._routers[port]
        os.kill(process.pid, signal.SIGTERM)
        await asyncio.sleep(FORGOTTEN_AFTER)
        self.ports.remove(port)
        code = await _ended(process)
        if code != 0:
            raise RuntimeError(process.words(f"a router that was told to end ended with {code}"))
        del self._routers[port]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [*self._routers.values(), *(r.process for r in self.replicas)]:
            with contextlib.suppress(ProcessLookupError):
                process.close()


async def _until(ask: Any, process: ProcessGroup, name: str) -> None:
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if process.ended() is not None:
            raise RuntimeError(process.words(f"{name} ended with {process.ended()}"))
        if await asyncio.to_thread(ask):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(process.words(f"{name} did not answer in {READY_SECONDS:g} s"))


async def _ended(process: ProcessGroup) -> int | None:
    return await asyncio.to_thread(process.wait, ENDED_SECONDS)
