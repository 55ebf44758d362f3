"""The engine core as a child process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

KILLED_BY_SIGNAL: Final = 128
"""Shells and container runtimes report death by signal N as exit code 128 + N."""


class CoreProcess:
    """Started by the main thread, because the kernel ties a child's life to the thread that made it.

    Attributes:
        exited: resolves with the exit code; 128 + N after death by signal N.
    """

    def __init__(self, socket: Path, config: Path, trace: Path | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        command = [sys.executable, "-m", "paceline_runtime.core", "--socket", str(socket), "--config", str(config)]
        if trace is not None:
            command += ["--trace", str(trace)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

        def wait() -> None:
            code = self._process.wait()
            loop.call_soon_threadsafe(self._set, code if code >= 0 else KILLED_BY_SIGNAL - code)

        threading.Thread(target=wait, name="core-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def stop(self, patience: float) -> int:
        """Wait for it to end by itself, then kill it; its exit code."""
        try:
            return await asyncio.wait_for(asyncio.shield(self.exited), patience)
        except TimeoutError:
            self._process.send_signal(signal.SIGKILL)
            return await self.exited

    def kill(self) -> None:
        """End it at once."""
        if not self.exited.done():
            self._process.send_signal(signal.SIGKILL)

    def _set(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)
