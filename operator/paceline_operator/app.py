"""The operator as one process: informers, election, workers, front door, and how they start and stop.

Every replica watches and keeps its caches warm; only the holder of the lease reconciles. A replica that loses the lease
stops writing at once and stands by again in the same process, so that an outage of the API server is no restart.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_autoscaler.prometheus import PrometheusSource
from paceline_kube import CONFIGMAPS, CRDS, AioKubeClient, Key, KubeError, Timing, key_of

from .baseline_keeper import BaselineKeeper
from .caches import Watching, watching
from .canary.asking import Asker
from .canary.keeper import CanaryKeeper
from .canary.recorded import CanaryRecords
from .canary.shown import CanaryCollector
from .canary.told import outputs_agree
from .drift.keeper import DriftKeeper
from .election import Election, LeaseTiming
from .events import EventRecorder
from .findings import Findings
from .front import Door, Front
from .guard import LeaderGuard
from .keys import KeysKeeper
from .metrics import Metrics
from .objectives import ObjectiveKeeper, thresholds
from .queue import WorkQueue
from .reconcile import Reconciler
from .rollout.keeper import RolloutKeeper
from .rollout.kept import EvidenceMaps
from .rollout.told import told_of
from .scaling.keeper import ScalingKeeper
from .schemas import SchemaKeeper
from .settings import Settings
from .splits import SplitKeeper
from .tuning.keeper import TuningKeeper
from .tuning.told import TuningCollector
from .workers import work
from .written import version_of

log = logging.getLogger(__name__)

LEASE_NAME = "paceline-operator"
WRITE_TIMEOUT = 5.0
"""Seconds a write may take; the difference between the lease's duration and its renew deadline covers it."""


RATES_OVER = 120.0
"""Seconds that percentiles from Prometheus are over."""

FRONT_WAIT = 5.0
"""Seconds that Kopf, and with it the probe, waits for the first list of services."""


@dataclass(frozen=True, slots=True)
class Options:
    """How this process runs; `Settings` say what it makes.

    Attributes:
        identity: unique among all processes that ever wanted the lease.
        instance: who reports Events, the pod's name.
        namespaces: of the services; empty: all.
        workers: services reconciled at the same time.
        bind_host: address for the probe and the metrics.
        health_port, metrics_port: their ports; None: not served.
        resync: bounds in seconds of the pause after which every service is looked at again.
        stop_seconds: how long passes under way may take to end.
    """

    identity: str
    instance: str
    namespaces: tuple[str, ...] = ()
    workers: int = 4
    bind_host: str = "0.0.0.0"
    health_port: int | None = 8080
    metrics_port: int | None = 9090
    lease: LeaseTiming = field(default_factory=LeaseTiming)
    informers: Timing = field(default_factory=Timing)
    resync: tuple[float, float] = (300.0, 600.0)
    stop_seconds: float = 30.0


class Operator:
    """Wires the parts. `run` returns after an orderly stop and raises where a part broke that never may."""

    def __init__(self, reader: AioKubeClient, writer: AioKubeClient, settings: Settings, options: Options) -> None:
        """`reader` for lists and watches; `writer`, with a timeout of about `WRITE_TIMEOUT`, for everything else.

        Raises:
            ValueError: the writer's timeout does not fit the lease.
        """
        spare = options.lease.duration - options.lease.renew_deadline
        if writer.timeout > spare:
            raise ValueError(f"a write may take {writer.timeout:g} s, but a lease that is lost only leaves {spare:g} s")
        self._options = options
        self._reader = reader
        self.queue: WorkQueue[Key] = WorkQueue(paused=True)
        self.watching: Watching = watching(
            reader,
            namespaces=options.namespaces,
            own_namespace=settings.namespace,
            enqueue=self._changed,
            touched=self._touched,
            timing=options.informers,
        )
        self.election = Election(
            writer,
            namespace=settings.namespace,
            name=LEASE_NAME,
            identity=options.identity,
            timing=options.lease,
        )
        guarded = LeaderGuard(writer, self.election.remaining)
        self.recorder = EventRecorder(guarded, instance=options.instance)
        self.drift = DriftKeeper(
            world=lambda key: self.reconciler.world(key),
            services=lambda: self.watching.caches.services,
            changed=self.queue.add,
            clock=time.monotonic,
            interval=settings.drift_seconds,
            active=self.election.leading.is_set,
            config_map=lambda namespace, name: reader.get(CONFIGMAPS, name, namespace),
            within=lambda key: self.tuning.within(key),
        )
        self.splits = SplitKeeper(
            pages=lambda: self.reconciler.split_pages(),
            changed=self.queue.add,
            active=self.election.leading.is_set,
        )
        self.objectives = ObjectiveKeeper(
            routers=lambda path: self.reconciler.router_pages(path),
            services=lambda: self.watching.caches.services.list(),
            changed=self.queue.add,
            clock=time.time,
            active=self.election.leading.is_set,
        )
        self.keys = KeysKeeper(
            pages=lambda: self.reconciler.route_pages(),
            services=lambda: self.watching.caches.services.list(),
            changed=self.queue.add,
            active=self.election.leading.is_set,
        )
        self._prometheus = None
        if settings.prometheus is not None:
            self._prometheus = PrometheusSource(settings.prometheus, settings.scrape_seconds, RATES_OVER)
        self.scaling = ScalingKeeper(
            services=lambda: self.watching.caches.services.list(),
            seen=lambda key: self.reconciler.seen(key),
            pods=lambda: self.watching.caches.pods,
            client=guarded,
            routers=lambda path: self.reconciler.router_pages(path),
            changed=self.queue.add,
            recorder=self.recorder,
            clock=time.time,
            interval=settings.scaling_seconds,
            prometheus=self._prometheus,
            knobs=lambda key, pool: self.tuning.knobs(key, pool),
            active=self.election.leading.is_set,
        )
        self.tuning = TuningKeeper(
            services=lambda: self.watching.caches.services.list(),
            seen=lambda key: self.reconciler.seen(key),
            tuned=self.drift.tuned,
            retold=self.drift.retold,
            changed=self.queue.add,
            recorder=self.recorder,
            clock=time.time,
            interval=settings.scaling_seconds,
            active=self.election.leading.is_set,
        )
        self.baselines = BaselineKeeper(
            client=guarded,
            services=lambda: self.watching.caches.services.list(),
            observed=lambda key: self.reconciler.current(key),
            written=self.watching.caches.written,
            routers=lambda path: self.reconciler.router_pages(path),
            active=self.election.leading.is_set,
        )
        self.rollouts = RolloutKeeper(
            services=lambda: self.watching.caches.services.list(),
            seen=lambda key: self.reconciler.seen(key),
            answers=lambda path: self.reconciler.router_answers(path),
            recorders=lambda: self.reconciler.recorders(),
            recorded=lambda url: self.reconciler.recorded(url),
            changed=self.queue.add,
            clock=time.time,
            interval=settings.rollout_seconds,
            outputs=lambda key: self.canary.of(key),
            warn=self._warn_of_step,
            evidences=EvidenceMaps(guarded),
            prometheus=self._prometheus.value if self._prometheus is not None else None,
            active=self.election.leading.is_set,
        )
        self.canary = CanaryKeeper(
            world=lambda key: self.reconciler.world(key),
            services=lambda: self.watching.caches.services,
            records=CanaryRecords(guarded, self.watching.caches.written, lambda key: self.reconciler.current(key)),
            ask=Asker(),
            changed=self.queue.add,
            clock=time.monotonic,
            active=self.election.leading.is_set,
        )
        self.schemas = SchemaKeeper(
            crd=lambda name: reader.get(CRDS, name),
            changed=self._enqueue_all,
            active=self.election.leading.is_set,
        )
        self.reconciler = Reconciler(
            guarded,
            self.watching.caches,
            self.recorder,
            time.time,
            settings,
            Findings(
                drift=self.drift.of,
                split=self.splits.of,
                outputs=lambda key: outputs_agree(self.canary.of(key)),
                slo=self.objectives.of,
                crd_lacks=lambda: self.schemas.lacks,
                keys=self.keys.of,
                counts=self.scaling.counts,
                scaling=self.scaling.of,
                tuning=self.tuning.of,
                judgement=self.rollouts.of,
                recorder=self.rollouts.recorder,
            ),
        )
        self.metrics = Metrics()
        self.metrics.registry.register(CanaryCollector(lambda: self.canary.all()))
        self.metrics.registry.register(TuningCollector(lambda: self.tuning.all()))
        self.metrics.observe(
            queue=self.queue,
            leading=self.election.leading.is_set,
            informers=self.watching.informers,
            events=self.recorder.counters,
            drift=self.drift.all,
            crd_lacks=lambda: self.schemas.lacks,
            scaling=lambda: self.scaling.all(),
            rollouts=self._rollouts,
            thresholds=lambda: thresholds(self.watching.caches.services.list()),
            services=lambda: [key_of(service) for service in self.watching.caches.services.list()],
        )
        endpoint = None
        if options.health_port is not None:
            host = f"[{options.bind_host}]" if ":" in options.bind_host else options.bind_host
            endpoint = f"http://{host}:{options.health_port}/healthz"
        self.front = Front(
            Door(self._knock, reader.credentials, self.health),
            namespaces=options.namespaces,
            liveness_endpoint=endpoint,
            on_restart=self.metrics.front_restarts.inc,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set: then passes under way are finished and the lease is given up.

        Raises:
            RuntimeError: a background part ended; the process should be started anew.
            OSError: the metrics port is taken.
        """
        options = self._options
        stop_metrics = None
        if options.metrics_port is not None:
            stop_metrics = self.metrics.serve(options.bind_host, options.metrics_port)
        election = asyncio.create_task(self.election.run(), name="election")
        workers = [
            asyncio.create_task(work(self.queue, self.reconciler.reconcile, self.metrics), name=f"worker {i}")
            for i in range(options.workers)
        ]
        background = [
            *(_spawn(informer.run(), repr(informer)) for informer in self.watching.all()),
            _spawn(self._lead(), "leader"),
            _spawn(self.recorder.run(), "events"),
            _spawn(self._resync(), "resync"),
            _spawn(self.drift.run(), "drift"),
            _spawn(self.canary.run(), "canary"),
            _spawn(self.splits.run(), "splits"),
            _spawn(self.objectives.run(), "objectives"),
            _spawn(self.keys.run(), "keys"),
            _spawn(self.scaling.run(), "scaling"),
            _spawn(self.tuning.run(), "tuning"),
            _spawn(self.rollouts.run(), "rollouts"),
            _spawn(self.baselines.run(), "baselines"),
            _spawn(self.schemas.run(), "schemas"),
            _spawn(self._keep_front(), "front"),
        ]
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            ended, _ = await asyncio.wait([election, *workers, *background, stopping], return_when=FIRST_COMPLETED)
            broken = [task for task in ended if task is not stopping]
        finally:
            await self._stop(workers, election)
            await _cancel([*background, stopping])
            await self.reconciler.close()
            if self._prometheus is not None:
                self._prometheus.close()
            if stop_metrics is not None:
                await asyncio.to_thread(stop_metrics)
        for task in broken:
            raise RuntimeError(f"{task.get_name()} ended by itself") from task.exception()

    async def health(self) -> dict[str, Any]:
        """What the probe shows. That it can be asked at all shows that the loop turns."""
        ages = {name: [i.age() for i in group] for name, group in self.watching.informers.items()}
        return {
            "leading": self.election.leading.is_set(),
            "leader": self.election.holder or None,
            "queue": self.queue.depth(),
            "synced": all(informer.synced.is_set() for informer in self.watching.all()),
            "informerAgeSeconds": {
                name: None if None in group else round(max(age for age in group if age is not None), 1)
                for name, group in ages.items()
            },
        }

    def _rollouts(self) -> Mapping[Key, Mapping[str, Any]]:
        """As the statuses tell them; nothing where another process tells them."""
        return told_of(self.watching.caches.services.list()) if self.election.leading.is_set() else {}

    def _changed(self, key: Key) -> None:
        self.queue.add(key)
        self.tuning.touch(key)

    def _warn_of_step(self, key: Key, words: str) -> None:
        service = self.watching.caches.services.get(*key)
        if service is not None:
            self.recorder.event(service, type="Warning", reason="RolloutStepTooShort", message=words)

    def _touched(self, key: Key) -> None:
        self.drift.touch(key)
        self.canary.touch(key)

    def _knock(self, key: Key, version: str) -> None:
        """Kopf watches services too. What our own informer has shown already is no news."""
        cached = self.watching.caches.services.get(*key)
        if cached is None or not version.isdigit() or int(version) > version_of(cached):
            self.queue.add(key)

    async def _lead(self) -> None:
        """Let the workers work while the lease is ours and the caches are filled."""
        await self.watching.synced()
        log.info("caches are filled: %d services", len(self.watching.caches.services))
        while True:
            await self.election.leading.wait()
            self.scaling.forget()
            self.tuning.forget()
            self.rollouts.forget()
            if await self._prepared():
                self._enqueue_all()
                self.queue.resume()
            await self.election.stopped_leading.wait()
            self.queue.pause()

    async def _prepared(self) -> bool:
        pause = 0.5
        while self.election.leading.is_set():
            try:
                await self.reconciler.prepare()
                return True
            except KubeError as exc:
                log.warning("cannot prepare: %s; again in %.1f s", exc, pause)
            await asyncio.sleep(pause)
            pause = min(30.0, pause * 2)
        return False

    async def _keep_front(self) -> None:
        """Run Kopf. It asks once which kinds there are, so it is started again where it may have asked too early."""
        services = asyncio.create_task(self.watching.services_synced())
        try:
            await asyncio.wait([services], timeout=FRONT_WAIT)
            while True:
                front = asyncio.create_task(self.front.run())
                try:
                    # The probe must answer even while there is no CRD or no API server yet.
                    await asyncio.wait([front] if services.done() else [front, services], return_when=FIRST_COMPLETED)
                    if front.done():
                        await front
                finally:
                    await _cancel([front])
        finally:
            await _cancel([services])

    async def _resync(self) -> None:
        """Look at everything now and then: what no event has told may still have changed."""
        while True:
            await asyncio.sleep(random.uniform(*self._options.resync))
            self._enqueue_all()

    def _enqueue_all(self) -> None:
        for service in self.watching.caches.services:
            self.queue.add(key_of(service))

    async def _stop(self, workers: list[asyncio.Task[None]], election: asyncio.Task[None]) -> None:
        # The lease is kept until the last pass has ended, and given up at once then.
        self.queue.close()
        _, late = await asyncio.wait(workers, timeout=self._options.stop_seconds)
        if late:
            log.warning("%d passes did not end within %g s", len(late), self._options.stop_seconds)
            await _cancel(list(late))
        if self.election.leading.is_set():
            await self.recorder.flush()
        await _cancel([election])
        await self.election.release()


def _spawn(work_: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.create_task(work_, name=name)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
