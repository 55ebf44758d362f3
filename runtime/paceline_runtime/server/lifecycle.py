"""One replica from start to exit code: bind, start the core, serve, drain, or fail with the core."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn

from paceline_crds.names import ENV_POOL_HASH
from paceline_crds.runtime_config import RuntimeConfig
from paceline_runtime import garbage
from paceline_runtime.config import ConfigError, StartupError
from paceline_runtime.messages import Ready
from paceline_runtime.model.hub import fetch
from paceline_runtime.model.source import locate

from .app import create_app, wait_for_requests
from .core_process import CoreProcess
from .engine_client import EngineClient
from .errors import unavailable
from .http_protocol import BoundedHttpProtocol
from .metrics import Metrics
from .replica import Phase, Replica, ServerOptions
from .submission import EngineGone
from .tokenizer import load_tokenizer

log = logging.getLogger(__name__)

DEATH_SECONDS: Final = 1.0
"""How long a replica whose core died goes on answering: open streams get their error, probes see it."""
CORE_STOP_SECONDS: Final = 10.0
KEEP_ALIVE_SECONDS: Final = 300
UNREAD_MILLISECONDS: Final = 120_000
"""How long a client may leave what was sent to it unread, or unacknowledged, before its connection is ended."""
_SOCKET_PATH_LIMIT: Final = 100
"""The kernel takes 108 bytes."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: when the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Connections inherit it. Without, a client that stops reading and stays would keep its answer for ever.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --host and --port"
        ) from error
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    """Uvicorn without its signal handling: it would stop listening at once, where a draining replica answers 503."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class CoreFailed(StartupError):
    """The engine core failed, at its start or later."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


async def run(config: RuntimeConfig, options: ServerOptions, listener: socket.socket) -> None:
    """Serve until a signal comes.

    Raises:
        StartupError: when the model or its tokenizer is not there, or the engine failed (with the core's exit code).
    """
    await asyncio.to_thread(fetch, config.model.source)
    files = locate(config.model.source)
    folder = _private_folder()
    try:
        await _Lifecycle(config, options, listener, files.path, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Lifecycle:
    def __init__(
        self, config: RuntimeConfig, options: ServerOptions, listener: socket.socket, model: Path, folder: Path
    ) -> None:
        self._config = config
        self._options = options
        self._listener = listener
        self._model = model
        self._folder = folder
        self._signals = 0
        self._asked = asyncio.Event()
        self._at_once = asyncio.Event()
        self._linger = 0.0
        metrics = Metrics(config.model.served_name)
        self._replica = Replica(
            config=config,
            options=options,
            engine=EngineClient(metrics.engine_stats),
            metrics=metrics,
            pool_hash=os.environ.get(ENV_POOL_HASH, ""),
        )

    async def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        engine = self._replica.engine
        await engine.listen(self._folder / "core.sock")
        config_file = self._folder / "config.json"
        config_file.write_text(self._config.model_dump_json(by_alias=True))
        core = CoreProcess(self._folder / "core.sock", config_file, self._options.trace)
        log.info("listening on %s:%d, engine core is process %d", *self._listener.getsockname()[:2], core.pid)
        server = self._http_server()
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            await self._until_the_end(core)
        finally:
            server.should_exit = True
            server.force_exit = self._at_once.is_set()
            await serving
            engine.shutdown()
            # A core that still loads hears nothing, and has nothing to lose.
            waits = self._replica.engine.connected and not self._at_once.is_set()
            await core.stop(CORE_STOP_SECONDS if waits else 0.0)
            engine.close()

    def _http_server(self) -> _Server:
        config = uvicorn.Config(
            create_app(self._replica),
            http=BoundedHttpProtocol,
            loop="uvloop",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Longer than routers keep an idle connection: the side that sends must be the one that closes.
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
        return _Server(config)

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            log.info("second signal: stopping at once")
            self._at_once.set()
        else:
            # After SIGTERM routers still send requests until they have noticed; at a terminal nobody waits for that.
            self._linger = self._options.linger_seconds if number == signal.SIGTERM else 0.0
            log.info("%s: draining, %d requests are open", number.name, len(self._replica.requests))
        self._asked.set()

    async def _until_the_end(self, core: CoreProcess) -> None:
        asked = asyncio.create_task(self._asked.wait())
        starting = asyncio.create_task(self._start())
        try:
            gone = self._replica.engine.gone
            await _first_of(asked, starting, core.exited, gone)
            if starting.done() and (failure := starting.exception()) is not None:
                core.kill()
                raise failure
            await _first_of(asked, core.exited, gone)
            if asked.done():
                await self._drain(core)
            if core.exited.done() or gone.done():
                raise await self._die(core)
        finally:
            await _cancelled(asked, starting)

    async def _start(self) -> None:
        """Load the tokenizer while the core loads the weights, then serve."""
        loading = asyncio.create_task(asyncio.to_thread(load_tokenizer, self._model))
        try:
            tokenizer, ready = await asyncio.gather(loading, self._replica.engine.ready)
        except EngineGone:
            return  # its exit code says why
        if tokenizer.vocab_size > ready.model.vocab_size:
            log.warning(
                "the tokenizer has %d tokens and the model %d: text with the tokens beyond is refused",
                tokenizer.vocab_size,
                ready.model.vocab_size,
            )
        self._replica.serve(tokenizer, ready)
        garbage.settle()
        self._say_ready(ready)

    def _say_ready(self, ready: Ready) -> None:
        replica = self._replica
        log.info(
            "effective configuration: pool_hash=%s config_hash=%s %s",
            replica.pool_hash or "-",
            replica.config_hash,
            msgspec.json.encode(replica.effective).decode(),
        )
        host, port = self._listener.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        print(
            f"ready: {replica.model_name} at http://{shown}:{port}/v1 ({ready.dtype} on {ready.device}, "
            f"loaded in {ready.load_seconds:.1f} s, warmed up in {ready.warmup_seconds:.1f} s)",
            flush=True,
        )

    async def _drain(self, core: CoreProcess) -> None:
        """Readiness is red from now on, new requests get 503, running ones finish."""
        replica = self._replica
        replica.phase = Phase.DRAINING
        deadline = asyncio.get_running_loop().time() + self._options.drain_seconds
        finishing = asyncio.create_task(self._finish(deadline))
        at_once = asyncio.create_task(self._at_once.wait())
        await _first_of(finishing, at_once, core.exited, replica.engine.gone)
        await _cancelled(finishing, at_once)
        if len(replica.requests) and not core.exited.done():
            log.warning("%d requests are cut off by the end of the drain", len(replica.requests))
            replica.engine.fail_open(unavailable("The replica was stopped before this answer was complete."))
            await wait_for_requests(replica, asyncio.get_running_loop().time() + DEATH_SECONDS)

    async def _finish(self, deadline: float) -> None:
        await asyncio.gather(asyncio.sleep(self._linger), wait_for_requests(self._replica, deadline))

    async def _die(self, core: CoreProcess) -> CoreFailed:
        """The core is dead, or of no use any more: say so for a moment; the error to end with."""
        replica = self._replica
        served = replica.phase is not Phase.STARTING
        replica.phase, replica.dead_reason = Phase.DEAD, "the engine core is dead"
        replica.engine.lost("The engine stopped before this answer was complete.")
        code = await core.stop(CORE_STOP_SECONDS)
        message = f"the engine core ended unexpectedly (exit code {code})"
        if replica.engine.fatal is not None:
            message, code = replica.engine.fatal.message, replica.engine.fatal.exit_code
        replica.dead_reason = message
        if served:
            log.error("%s", message)
            await asyncio.sleep(DEATH_SECONDS)
            await wait_for_requests(replica, asyncio.get_running_loop().time() + DEATH_SECONDS)
        return CoreFailed(message, code or 1)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done, whatever its result."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel those that still run, and take the results of all."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _private_folder() -> Path:
    """A folder for the socket that only this user can enter, with a path short enough for a socket."""
    folder = tempfile.mkdtemp(prefix="paceline-")
    if len(folder) > _SOCKET_PATH_LIMIT - len("/core.sock"):
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="paceline-", dir="/tmp")
    return Path(folder)
