"""Attempts of containers as processes: start, signal, wait, find again. The shim does the work; see `shim.py`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from paceline_local.node import shim
from paceline_local.node.mounts import shim_command
from paceline_local.node.plan import ContainerPlan, Namespaces

MARK = "PACELINE_CONTAINER"
"""Environment variable that every process of a container inherits: the directory of its attempt."""

START_ERROR = "StartError"
LOST = "ContainerStatusUnknown"
START_SECONDS = 30.0
MESSAGE_BYTES = 4096
FALLBACK_BYTES = 2048
FALLBACK_LINES = 80


@dataclass(frozen=True)
class Termination:
    """How an attempt ended; times in Unix seconds."""

    exit_code: int
    reason: str
    message: str
    signal: int
    started_at: float
    finished_at: float
    container_id: str


class Attempt:
    """One run of a container, in a directory with its `spec.json`, `running.json`, `exit.json` and `log`."""

    def __init__(self, directory: Path, container_id: str) -> None:
        self.directory, self.container_id = directory, container_id
        self.shim_pid, self.child_pid, self.started_at = 0, 0, 0.0
        self.exited = asyncio.Event()
        self._pidfd: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.directory / "log"

    def environment(self) -> dict[str, str]:
        """The environment it was started with."""
        spec = _read(self.directory / "spec.json")
        return {} if spec is None else dict(spec["env"])

    @property
    def running(self) -> bool:
        return self._pidfd is not None

    async def launch(
        self, plan: ContainerPlan, namespace: Namespaces, instance: Mapping[str, str], on_exit: Callable[[], None]
    ) -> None:
        """Start the container. Returns once its command is executed, or has failed to (then `running` is False).

        `instance`: environment of the shim itself. `on_exit` is called from the event loop.

        Raises:
            TimeoutError: The shim says nothing for half a minute.
        """
        ready = self._spawn(plan, namespace, instance)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), ready
        )
        try:
            await asyncio.wait_for(reader.readline(), START_SECONDS)
        except TimeoutError:
            assert self._popen is not None
            self._popen.kill()
            self._popen.wait()
            self.kill_leftovers()
            raise
        finally:
            transport.close()
        self.adopt(on_exit)

    def _spawn(self, plan: ContainerPlan, namespace: Namespaces, instance: Mapping[str, str]) -> BinaryIO:
        """Start the shim; returns a pipe that ends once it has started the container or failed to."""
        root = self.directory / "root"
        root.mkdir(parents=True, exist_ok=True)
        message = self.directory / "termination-log"
        message.touch()
        spec = {
            "argv": list(plan.argv),
            "env": {**plan.env, MARK: str(self.directory)},
            "cwd": plan.cwd,
            "namespace": namespace,
            "root": str(root),
            "mounts": [{"source": str(m.source), "target": m.target, "readOnly": m.read_only} for m in plan.mounts],
        }
        shim.write_json(str(self.directory / "spec.json"), spec)
        os.chmod(self.directory / "spec.json", 0o600)
        read, write = os.pipe()
        with open(self.directory / "shim.log", "ab") as output:
            self._popen = subprocess.Popen(
                shim_command("run", str(self.directory / "spec.json"), str(write)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**instance, MARK: str(self.directory)},
                pass_fds=(write,),
                start_new_session=True,
            )
        os.close(write)
        return os.fdopen(read, "rb")

    def adopt(self, on_exit: Callable[[], None]) -> bool:
        """Watch the attempt if its shim is alive; False when it is not."""
        running = _read(self.directory / "running.json")
        if running is None or _read(self.directory / "exit.json") is not None or running["boot"] != shim.boot_id():
            self.exited.set()
            return False
        try:
            pidfd = os.pidfd_open(running["shim"])
        except ProcessLookupError:
            self.exited.set()
            return False
        if shim.start_ticks(running["shim"]) != running["ticks"]:
            os.close(pidfd)
            self.exited.set()
            return False
        self.shim_pid, self.child_pid = running["shim"], running["child"]
        self.started_at = running["startedAt"]
        self._pidfd = pidfd

        def ended() -> None:
            self.release()
            on_exit()

        asyncio.get_running_loop().add_reader(pidfd, ended)
        return True

    def release(self) -> None:
        """Stop watching; the processes are left as they are."""
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._popen is not None:
            self._popen.poll()
        self.exited.set()

    def starting(self) -> bool:
        """Whether a shim holds the attempt without having said yet what became of it."""
        if (self.directory / "running.json").exists() or (self.directory / "exit.json").exists():
            return False
        with contextlib.suppress(FileNotFoundError), open(self.directory / "lock", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def send(self, number: signal.Signals) -> None:
        """SIGTERM: ask the main process to end. SIGUSR1: kill the container. SIGUSR2: kill it as out of memory."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def termination(self, container: Mapping[str, Any]) -> Termination:
        """How the attempt ended, with its termination message, as far as anybody knows."""
        ended = _read(self.directory / "exit.json")
        if ended is None:
            return self._lost()
        code, oom = int(ended["exitCode"]), bool(ended.get("oomKilled"))
        if "startError" in ended:
            failure = ended["startError"]
            text = f"{failure['stage']}: {failure['error']}"
            return self._made(ended, code, START_ERROR, f"failed to start the container: {text}")
        reason = "OOMKilled" if oom else "Completed" if code == 0 else "Error"
        return self._made(ended, code, reason, self._message(container, code))

    def _made(self, ended: Mapping[str, Any], code: int, reason: str, message: str) -> Termination:
        # Kubernetes has no negative times: a clock set back between start and end must not make one.
        finished = max(float(ended["startedAt"]), float(ended["finishedAt"]))
        return Termination(
            code, reason, message, int(ended.get("signal") or 0), float(ended["startedAt"]), finished, self.container_id
        )

    def _lost(self) -> Termination:
        running = _read(self.directory / "running.json") or {}
        log = self.log_path
        finished = log.stat().st_mtime if log.exists() else float(running.get("startedAt", 0.0))
        started = float(running.get("startedAt", finished))
        words = "the container's processes were gone when the node looked for them; how they ended is not known"
        ended = {"startedAt": started, "finishedAt": finished}
        return self._made(ended, 137, LOST, words)

    def _message(self, container: Mapping[str, Any], code: int) -> str:
        path = self.directory / "termination-log"
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            if text := file.read(MESSAGE_BYTES):
                return text.decode(errors="replace")
        if container.get("terminationMessagePolicy") == "FallbackToLogsOnError" and code != 0:
            return tail_text(self.log_path)
        return ""

    def kill_leftovers(self) -> int:
        """Kill processes that a shim which was itself killed left behind. Returns how many there were."""
        mark = f"{MARK}={self.directory}".encode()
        found = 0
        for process in psutil.process_iter(["pid"]):
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    os.kill(process.pid, signal.SIGKILL)
                    found += 1
        return found


def tail_text(log: Path, lines: int = FALLBACK_LINES, size: int = FALLBACK_BYTES) -> str:
    """The last lines of a log file without its time stamps."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
            records = file.read().splitlines()
    except FileNotFoundError:
        return ""
    text = b"\n".join(record.split(b" ", 3)[3] for record in records[-lines:] if record.count(b" ") >= 3)
    return text[-size:].decode(errors="replace")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    assert isinstance(found, dict)
    return found


def attempts_of(directory: Path) -> list[Path]:
    """The attempts kept of one container, oldest first."""
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))


async def execute(
    attempt: Attempt, argv: Sequence[str], timeout: float | None, output_limit: int = 10 * 1024
) -> tuple[int | None, str]:
    """Run a command in the container; (exit code, output). The code is None when it did not end in time."""
    process = await asyncio.create_subprocess_exec(
        *shim_command("enter", str(attempt.directory), *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    output = b""
    try:
        async with asyncio.timeout(timeout):
            while chunk := await process.stdout.read(4096):
                output = (output + chunk)[-output_limit:]
            return await process.wait(), output.decode(errors="replace").strip()
    except TimeoutError:
        return None, output.decode(errors="replace").strip()
    finally:
        kill_group(process)
        await process.wait()


def kill_group(process: asyncio.subprocess.Process) -> None:
    """SIGKILL a command started in a session of its own, with all it started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
