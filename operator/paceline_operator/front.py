"""Kopf as the front door: its handlers tell which service has changed and answer the probe, and do nothing else.

No handler here makes Kopf write to an object: no finalizer, no annotation, no status. Kopf lives in a thread and event
loop of its own, since it cancels every task of its loop when it ends, and it ends on some watch errors. Then it is
started again; meanwhile nothing is missed, since our own informers see the same services.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import kopf

from paceline_kube import INFERENCESERVICES, Credentials, Key

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_SECONDS = 4.0
RESTART_FIRST, RESTART_MOST = 1.0, 60.0
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Door:
    """What the front knows of the rest. All three run in the loop that called `Front.run`, never in Kopf's.

    Attributes:
        knock: a service, and the resourceVersion that Kopf was told of.
        credentials: how to reach the API server, asked again when Kopf's have expired.
        health: what the probe answers with; raises when this process should be restarted.
    """

    knock: Callable[[Key, str], None]
    credentials: Callable[[], Awaitable[Credentials]]
    health: Callable[[], Awaitable[dict[str, Any]]]


class Front:
    """Runs Kopf until cancelled, again and again where it ends."""

    def __init__(
        self,
        door: Door,
        *,
        namespaces: Sequence[str] = (),
        liveness_endpoint: str | None = None,
        on_restart: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            namespaces: only these; empty: all.
            liveness_endpoint: URL to serve the probe at, such as `http://0.0.0.0:8080/healthz`.
        """
        self._door = door
        self._namespaces = list(namespaces)
        self._endpoint = liveness_endpoint
        self._on_restart = on_restart
        self._rng = rng or random.Random()
        self.running = False

    async def run(self) -> None:
        """Keep Kopf running until cancelled; returns only by `CancelledError`, after Kopf has ended."""
        pause = RESTART_FIRST
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                await self._run_once()
                log.error("Kopf ended without being asked to")
            except Exception as exc:
                log.error("Kopf ended: %s: %s", type(exc).__name__, exc)
            self._on_restart()
            if loop.time() - started > RESTART_MOST:
                pause = RESTART_FIRST
            await asyncio.sleep(self._rng.uniform(pause / 2, pause))
            pause = min(RESTART_MOST, pause * 2)

    async def _run_once(self) -> None:
        thread = _KopfThread(self._serve)
        self.running = True
        try:
            await thread.run()
        finally:
            self.running = False

    async def _serve(self, main: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        await kopf.operator(
            registry=registry_for(self._door, main),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            liveness_endpoint=self._endpoint,
            stop_flag=stop,
        )


def registry_for(door: Door, main: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
    """The handlers, which reach the rest of the operator only through `main`."""
    registry = kopf.OperatorRegistry()

    async def ask(what: Callable[[], Awaitable[T]]) -> T:
        async def call() -> T:
            return await what()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), main))

    @kopf.on.startup(registry=registry)
    async def startup(**_: Any) -> None:
        log.info("Kopf is up: events of %s only wake the queue", INFERENCESERVICES.plural)

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        log.info("Kopf is going down")

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(await ask(door.credentials))

    # One attempt: the default would answer the probe only after retries a minute apart.
    @kopf.on.probe(registry=registry, id="operator", errors=kopf.ErrorsMode.PERMANENT, retries=1)
    async def probe(**_: Any) -> dict[str, Any]:
        async with asyncio.timeout(PROBE_SECONDS):
            return await ask(door.health)

    @kopf.on.event(INFERENCESERVICES.group, INFERENCESERVICES.version, INFERENCESERVICES.plural, registry=registry)
    async def service_event(namespace: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        if namespace and name:
            version = str(body.metadata.get("resourceVersion") or "")
            main.call_soon_threadsafe(door.knock, (namespace, name), version)

    return registry


def kopf_settings() -> kopf.OperatorSettings:
    """Settings for a front that only listens."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # no list and watch of CRDs and namespaces: the CRD comes with the chart
    settings.peering.standalone = True  # a Lease decides who acts
    settings.posting.enabled = False  # `events` does that, with limits
    settings.watching.server_timeout = 300  # an int: the API server refuses 300.0, and Kopf would end
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70.0
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.enforce_retry_after = True
    settings.execution.max_workers = 1  # no synchronous handlers
    settings.process.ultimate_exiting_timeout = None  # it would kill this whole process
    return settings


def connection(credentials: Credentials) -> kopf.ConnectionInfo:
    """The same way to the API server for Kopf."""
    scheme, _, token = (credentials.authorization or "").partition(" ")
    return kopf.ConnectionInfo(
        server=credentials.server,
        ca_path=credentials.ca_file,
        ca_data=credentials.ca_data,
        insecure=not credentials.verify_tls,
        scheme=scheme if token else None,
        token=token or None,
        certificate_path=credentials.cert_file,
        private_key_path=credentials.key_file,
    )


class _KopfThread:
    """One life of Kopf: a thread with its own event loop, joined before `run` returns."""

    def __init__(self, serve: Callable[[asyncio.AbstractEventLoop, asyncio.Event], Awaitable[None]]) -> None:
        self._serve = serve
        self._inside: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._entered = threading.Event()
        self._ended = asyncio.Event()
        self._outcome: BaseException | None = None

    async def run(self) -> None:
        """Until Kopf ends, raising what it ended with; a cancellation ends it first."""
        main = asyncio.get_running_loop()
        # A daemon: should Kopf not end in time, it must not keep the process.
        thread = threading.Thread(target=self._main, args=(main,), name="kopf", daemon=True)
        thread.start()
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._shut_down(thread))
            raise
        thread.join()
        if self._outcome is not None:
            raise self._outcome

    async def _shut_down(self, thread: threading.Thread) -> None:
        await asyncio.to_thread(self._entered.wait)
        if self._inside is not None:
            loop, stop = self._inside
            with contextlib.suppress(RuntimeError):  # closed: Kopf has just ended by itself
                loop.call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join, GRACE_SECONDS)
        if thread.is_alive():
            log.warning("Kopf did not end within %g s", GRACE_SECONDS)

    def _main(self, main: asyncio.AbstractEventLoop) -> None:
        async def body() -> None:
            stop = asyncio.Event()
            self._inside = (asyncio.get_running_loop(), stop)
            self._entered.set()
            await self._serve(main, stop)

        try:
            asyncio.run(body())
        except BaseException as exc:
            self._outcome = exc
        finally:
            self._entered.set()
            with contextlib.suppress(RuntimeError):  # closed: nobody waits any more
                main.call_soon_threadsafe(self._ended.set)
