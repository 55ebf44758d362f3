"""Starts router processes that share one port, keeps their number, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from paceline_router.processes.admin import CombinedAdmin, Up
from paceline_router.processes.heartbeat import BEAT_SECONDS, Pulse
from paceline_router.processes.worker import Orders
from paceline_router.report.admin import RESTARTS
from paceline_router.report.tokens import AdminToken
from paceline_router.server import Listen
from paceline_router.settings import Settings

log = logging.getLogger(__name__)

START_SECONDS = 60.0
LONGEST_START = 600.0
"""Until a worker is ready: without a sign of life, and with them, when it reads a table that is very large."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
"""Seconds before a worker that ended is started again; doubled each time, until one has run for `LONGEST_PAUSE`."""

PIPE_BYTES = 64 * 1024

KILL_AFTER = 15.0
"""Seconds beyond a drain that workers get to end."""

SILENT_SECONDS = 10.0
"""Without a sign of life, after which a worker is killed and another one started: the same time after which a single
process's liveness turns red.
"""

_READY = re.compile(rb"\(admin port ([0-9]+)\)")


class StartFailed(Exception):
    """A worker ended before it was ready."""

    def __init__(self, code: int) -> None:
        super().__init__(f"it ended with code {code} before it was ready")
        self.code = code


@dataclass(slots=True)
class Worker:
    """A running process.

    Attributes:
        admin_port: None until its ports are open.
        hung: it was killed because it gave no sign of life.
    """

    process: asyncio.subprocess.Process
    pulse: Pulse
    admin_port: int | None = None
    hung: bool = False

    def signal(self, number: int) -> None:
        """Send it a signal if it is still there.

        Not by `Process.send_signal`: that looks first whether the process has ended, and if so takes the exit code from
        whoever waits for it, who then hears of 255.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


def share_of(settings: Settings, processes: int) -> Settings:
    """The settings of one of so many processes: what bounds the whole is divided, rounded up."""
    return dataclasses.replace(
        settings,
        processes=processes,
        max_client_connections=-(-settings.max_client_connections // processes),
        max_in_flight=-(-settings.max_in_flight // processes),
    )


class Supervisor:
    """The parent of all workers. It has no part in requests: the kernel spreads connections over the workers' sockets,
    and if this process is gone they end in order.
    """

    def __init__(
        self, listen: Listen, settings: Settings, token: AdminToken, config: Path | None, processes: int, log_level: int
    ) -> None:
        self._listen = listen
        self._settings = settings
        self._config = config
        self._processes = processes
        self._log_level = log_level
        self._workers: dict[int, Worker] = {}
        self._inner_token = secrets.token_hex(16)
        self._stopping = asyncio.Event()
        self._failed: int | None = None
        self._ready: set[int] = set()
        self._all_ready = asyncio.Event()
        self._restarts = dict.fromkeys(RESTARTS, 0)
        self.admin = CombinedAdmin(
            self._up, self._restarts, processes, token, self._inner_token, listen.host, listen.admin_port
        )

    def _up(self) -> dict[int, Up]:
        return {
            worker.process.pid: Up(worker.admin_port, worker.pulse.ready, worker.pulse.silence)
            for worker in self._workers.values()
            if worker.admin_port is not None
        }

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, or until a worker cannot start at all. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        with reserve(self._listen.host, self._listen.port) as reserved:
            port = reserved.getsockname()[1]
            keepers = [asyncio.create_task(self._keep(slot, port)) for slot in range(self._processes)]
            async with self.admin:
                ready = asyncio.create_task(self._announce(port))
                watch = asyncio.create_task(self._watch())
                try:
                    await self._stopping.wait()
                    await self._end(keepers)
                finally:
                    ready.cancel()
                    watch.cancel()
                    for worker in self._workers.values():
                        worker.signal(signal.SIGKILL)
                    for keeper in keepers:
                        keeper.cancel()
                    await asyncio.gather(ready, watch, *keepers, return_exceptions=True)
        return self._failed or 0

    async def _announce(self, port: int) -> None:
        await self._all_ready.wait()
        host = self._listen.host
        log.info("%d router processes on http://%s:%d, admin on port %d", self._processes, host, port, self.admin.port)
        print(f"paceline router ready on http://{host}:{port} (admin port {self.admin.port})", flush=True)

    def _stop(self) -> None:
        """Pass a signal on. The second one makes them hurry, as it does a single process."""
        self._stopping.set()
        self.admin.stopping = True
        for worker in self._workers.values():
            worker.signal(signal.SIGTERM)

    async def _watch(self) -> None:
        """Look after the workers' signs of life, for ever."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for slot, worker in self._workers.items():
                worker.pulse.look()
                if worker.pulse.silence >= SILENT_SECONDS and not worker.hung:
                    log.error(
                        "router process %d of %d (pid %d) has given no sign of life for %g s and is killed; what it was"
                        " answering is lost",
                        slot + 1,
                        self._processes,
                        worker.process.pid,
                        worker.pulse.silence,
                    )
                    worker.hung = True
                    worker.signal(signal.SIGKILL)

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        patience = self._settings.shutdown_delay + self._settings.drain_timeout + KILL_AFTER
        _, late = await asyncio.wait(keepers, timeout=patience)
        if late:
            log.error("%d processes did not end in %g s and are killed", len(late), patience)

    async def _keep(self, slot: int, port: int) -> None:
        """Have one worker run, for ever."""
        pause = 0.0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                reason, code = await self._run_one(slot, port)
            except StartFailed as failed:
                if slot not in self._ready and not self._stopping.is_set():
                    # It cannot work at all: a wrong file, no cluster. It has said so itself.
                    self._failed = failed.code or 1
                    self._stop()
                    return
                reason, code = "start", failed.code
            if self._stopping.is_set():
                return
            self._restarts[reason] += 1
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(LONGEST_PAUSE, 2 * pause)
            log.error("router process %d of %d ended with code %d; starting another", slot + 1, self._processes, code)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = pause or FIRST_PAUSE

    async def _run_one(self, slot: int, port: int) -> tuple[str, int]:
        """Start a worker and wait for its end: why that came, by `RESTARTS`, and its exit code."""
        pulse = Pulse()
        orders = Orders(
            self._listen.host,
            port,
            self._inner_token,
            share_of(self._settings, self._processes),
            None if self._config is None else str(self._config),
            self._log_level,
            self._listen.picker,
            pulse.worker_end,
        )
        try:
            # In a session of its own, so that an interrupt from the terminal reaches it once, through here.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "paceline_router.processes.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=(pulse.worker_end,),
            )
        finally:
            os.close(pulse.worker_end)
        worker = self._workers[slot] = Worker(process, pulse)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            if self._stopping.is_set():
                worker.signal(signal.SIGTERM)
            process.stdin.write(orders.encode())
            with contextlib.suppress(TimeoutError):
                line = await _first_line(process.stdout, pulse)
                match = _READY.search(line)
                if match is not None:
                    worker.admin_port = int(match[1])
                    self._ready.add(slot)
                    if len(self._ready) == self._processes:
                        self._all_ready.set()
                    # Whatever else it prints must not fill the pipe.
                    while data := await process.stdout.read(PIPE_BYTES):
                        sys.stdout.buffer.write(data)
                        sys.stdout.flush()
                    code = await process.wait()
                    return "silent" if worker.hung else "ended", code
            worker.signal(signal.SIGTERM)
            raise StartFailed(await process.wait())
        finally:
            del self._workers[slot]
            pulse.close()
            self.admin.ended(process.pid)


async def _first_line(output: asyncio.StreamReader, pulse: Pulse) -> bytes:
    """What a worker says when it is ready; empty where it ended.

    Raises:
        TimeoutError: it took too long.
    """
    reading = asyncio.ensure_future(output.readline())
    try:
        done, _ = await asyncio.wait([reading], timeout=START_SECONDS)
        if not done and pulse.heard:
            done, _ = await asyncio.wait([reading], timeout=LONGEST_START - START_SECONDS)
        if not done:
            raise TimeoutError
    finally:
        reading.cancel()
    return reading.result()


def reserve(host: str, port: int) -> socket.socket:
    """A socket that holds the port for sockets of processes to come, without taking connections itself.

    Raises:
        OSError: somebody else has the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # A port that others share as well could be bound with the option below.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        port = probe.getsockname()[1]
    reserved = socket.socket(family)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    return reserved
