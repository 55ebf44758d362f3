"""`kubectl exec`: a command in a running container, over a WebSocket with one channel per stream."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import pty
import struct
import termios
from typing import Any

from aiohttp import WSMsgType, web

from paceline_local.node.container import Container
from paceline_local.node.hooks import command_in
from paceline_local.node.mounts import shim_command
from paceline_local.node.pod import PodWorker
from paceline_local.node.runtime import kill_group

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK = 32 * 1024


def exit_status(code: int) -> dict[str, Any]:
    """The Status object that ends an exec."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def serve_exec(request: web.Request, worker: PodWorker, container: Container) -> web.StreamResponse:
    """Run the command that the query asks for and carry its streams until it ends or the client goes away."""
    command = request.query.getall("command", [])
    attempt = container.attempt
    if attempt is None or not attempt.running:
        raise web.HTTPBadRequest(text=f"container {container.spec.name} is not running\n")
    if not command:
        raise web.HTTPBadRequest(text="a command is required\n")
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise web.HTTPBadRequest(text="only the WebSocket form of exec is supported; use a newer kubectl\n")
    wanted = {name: request.query.get(name) in ("1", "true") for name in ("input", "output", "error", "tty")}
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=16 * 1024 * 1024, compress=False)
    await socket.prepare(request)
    container.entered = True
    argv = shim_command("enter", str(attempt.directory), *command_in(worker, container, command))
    session = _TtySession if wanted["tty"] else _PipeSession
    running = await session.start(argv, wanted)
    ended = asyncio.create_task(attempt.exited.wait())
    work = asyncio.create_task(_carry(socket, running))
    try:
        await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():  # the container has ended, and with it everything in it
            kill_group(running.process)
        code = await work
    finally:
        ended.cancel()
        work.cancel()
        kill_group(running.process)
        running.close()
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([ERROR]) + json.dumps(exit_status(code)).encode())
        await socket.close()
    return socket


async def _carry(socket: web.WebSocketResponse, running: _PipeSession | _TtySession) -> int:
    reading = asyncio.create_task(_take_input(socket, running))
    try:
        await asyncio.gather(*(_send(socket, channel, reader) for channel, reader in running.outputs.items()))
        code = await running.process.wait()
        return 128 - code if code < 0 else code
    finally:
        reading.cancel()


async def _send(socket: web.WebSocketResponse, channel: int, reader: asyncio.StreamReader) -> None:
    while True:
        try:
            data = await reader.read(CHUNK)
        except OSError as error:
            if error.errno != errno.EIO:  # how a terminal says that its last user has gone
                raise
            return
        if not data:
            return
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(bytes([channel]) + data)


async def _take_input(socket: web.WebSocketResponse, running: _PipeSession | _TtySession) -> None:
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN:
            await running.feed(data)
        elif channel == CLOSE and data[:1] == bytes([STDIN]):
            running.end_input()
        elif channel == RESIZE:
            running.resize(json.loads(data))
    kill_group(running.process)  # the client went away


class _PipeSession:
    """A command with pipes."""

    def __init__(self, process: asyncio.subprocess.Process, outputs: dict[int, asyncio.StreamReader]) -> None:
        self.process, self.outputs = process, outputs

    @classmethod
    async def start(cls, argv: list[str], wanted: dict[str, bool]) -> _PipeSession:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe if wanted["input"] else null,
            stdout=pipe if wanted["output"] else null,
            stderr=pipe if wanted["error"] else null,
            start_new_session=True,
        )
        found = {STDOUT: process.stdout, STDERR: process.stderr}
        return cls(process, {channel: reader for channel, reader in found.items() if reader is not None})

    async def feed(self, data: bytes) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                self.process.stdin.write(data)
                await self.process.stdin.drain()

    def end_input(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def resize(self, size: dict[str, int]) -> None:
        """Pipes have no size."""

    def close(self) -> None:
        self.end_input()


class _TtySession(_PipeSession):
    """A command with a terminal of its own."""

    def __init__(
        self, process: asyncio.subprocess.Process, outputs: dict[int, asyncio.StreamReader], terminal: int
    ) -> None:
        super().__init__(process, outputs)
        self._terminal = terminal

    @classmethod
    async def start(cls, argv: list[str], wanted: dict[str, bool]) -> _TtySession:
        controller, terminal = pty.openpty()

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=own_terminal
            )
        finally:
            os.close(terminal)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(controller), "rb", buffering=0)
        )
        return cls(process, {STDOUT: reader}, controller)

    async def feed(self, data: bytes) -> None:
        await asyncio.to_thread(os.write, self._terminal, data)

    def end_input(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._terminal, b"\x04")

    def resize(self, size: dict[str, int]) -> None:
        packed = struct.pack("HHHH", size.get("Height", 24), size.get("Width", 80), 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, packed)

    def close(self) -> None:
        os.close(self._terminal)
