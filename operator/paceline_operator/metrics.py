"""The operator's own figures, read when they are asked for; served by a thread, so that a busy loop still answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from paceline_crds import metrics as catalogue

from .scaling.told import INACTIVE

if TYPE_CHECKING:
    from paceline_crds.status import ScalingStatus
    from paceline_kube import Informer
    from paceline_observability.slo import Promise

    from .drift.compare import Drift
    from .events import Counters
    from .queue import WorkQueue

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters that the workers move, on a registry of their own.

    Attributes:
        reconciles: by `result`: `success`, `conflict` (another writer was first, tried again), `not_leader`, `error`.
        errors: by `reason`: the API server's word, `Unreachable`, `Timeout`, or the exception's type.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.reconciles = self._counter(catalogue.OPERATOR_RECONCILES)
        for result in ("success", "conflict", "not_leader", "error"):
            self.reconciles.labels(result)
        self.errors = self._counter(catalogue.OPERATOR_RECONCILE_ERRORS)
        seconds = catalogue.OPERATOR_RECONCILE_SECONDS
        self.seconds = Histogram(seconds.name, seconds.help, seconds.labels, buckets=SECONDS, registry=self.registry)
        self.front_restarts = self._counter(catalogue.OPERATOR_FRONT_RESTARTS)

    def _counter(self, metric: catalogue.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _shown(self, metric: catalogue.Metric, value: Callable[[], float]) -> None:
        Gauge(metric.name, metric.help, metric.labels, registry=self.registry).set_function(value)

    def observe(
        self,
        *,
        queue: WorkQueue[tuple[str, str]],
        leading: Callable[[], bool],
        informers: Mapping[str, Iterable[Informer]],
        events: Counters,
        drift: Callable[[], Mapping[tuple[str, str], Drift]],
        crd_lacks: Callable[[], Collection[str] | None],
        scaling: Callable[[], Mapping[tuple[str, str], Mapping[str, ScalingStatus]]],
        rollouts: Callable[[], Mapping[tuple[str, str], Mapping[str, Any]]],
        thresholds: Callable[[], Iterable[tuple[tuple[str, str], Promise]]],
        services: Callable[[], Collection[tuple[str, str]]],
    ) -> None:
        """Also show these, as they are at each scrape. `informers` by the name of what they hold."""
        self._shown(catalogue.OPERATOR_QUEUE_DEPTH, queue.depth)
        self._shown(catalogue.OPERATOR_WORKERS_BUSY, queue.processing)
        self._shown(catalogue.OPERATOR_LEADER, lambda: float(leading()))
        self.registry.register(_Observed(informers, events))
        self.registry.register(_Drift(drift))
        self.registry.register(_Schemas(crd_lacks))
        self.registry.register(_Scaling(scaling))
        self.registry.register(_Rollouts(rollouts))
        self.registry.register(Thresholds(thresholds))
        self.registry.register(_Decisions(events, services))

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serve `/metrics` from a thread; call the result to stop.

        Raises:
            OSError: the port is taken.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]
        server, thread = start_http_server(port, addr=host, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


class _Observed(Collector):
    """Informers and events. An age that is not known is absent, not zero."""

    def __init__(self, informers: Mapping[str, Iterable[Informer]], events: Counters) -> None:
        self._informers = {name: tuple(group) for name, group in informers.items()}
        self._events = events

    def collect(self) -> Iterable[Metric]:
        age = _gauge(catalogue.OPERATOR_INFORMER_AGE)
        synced = _gauge(catalogue.OPERATOR_INFORMER_SYNCED)
        objects = _gauge(catalogue.OPERATOR_INFORMER_OBJECTS)
        lists = _counter(catalogue.OPERATOR_INFORMER_LISTS)
        broken = _counter(catalogue.OPERATOR_INFORMER_HANDLER_ERRORS)
        for name, group in self._informers.items():
            ages = [informer.age() for informer in group]
            known = [value for value in ages if value is not None]
            if len(known) == len(ages):
                age.add_metric([name], max(known))
            synced.add_metric([name], float(all(informer.synced.is_set() for informer in group)))
            # Informers of several namespaces share one store.
            objects.add_metric([name], sum({id(i.store): len(i.store) for i in group}.values()))
            lists.add_metric([name], sum(informer.relists for informer in group))
            broken.add_metric([name], sum(informer.handler_errors for informer in group))
        yield from (age, synced, objects, lists, broken)
        told = _counter(catalogue.OPERATOR_EVENTS)
        told.add_metric(["written"], self._events.written)
        told.add_metric(["merged"], self._events.merged)
        told.add_metric(["dropped"], self._events.dropped)
        yield told


class _Drift(Collector):
    """What differs, by service. A service that was not looked at yet has no series."""

    def __init__(self, drift: Callable[[], Mapping[tuple[str, str], Drift]]) -> None:
        self._drift = drift

    def collect(self) -> Iterable[Metric]:
        items, unknown = _gauge(catalogue.OPERATOR_DRIFT), _gauge(catalogue.OPERATOR_DRIFT_UNKNOWN)
        for key, found in self._drift().items():
            items.add_metric(list(key), len(found.items))
            unknown.add_metric(list(key), len(found.unknown))
        yield from (items, unknown)


class _Schemas(Collector):
    """What the cluster's CRDs lack; nothing before they were compared."""

    def __init__(self, lacks: Callable[[], Collection[str] | None]) -> None:
        self._lacks = lacks

    def collect(self) -> Iterable[Metric]:
        if (lacks := self._lacks()) is not None:
            family = _gauge(catalogue.OPERATOR_CRD_MISSING)
            family.add_metric([], len(lacks))
            yield family


class _Scaling(Collector):
    """What was decided, by pool; nothing for pools whose count follows no load, and before the first decision."""

    def __init__(self, decided: Callable[[], Mapping[tuple[str, str], Mapping[str, ScalingStatus]]]) -> None:
        self._decided = decided

    def collect(self) -> Iterable[Metric]:
        desired, active = _gauge(catalogue.OPERATOR_SCALING_DESIRED), _gauge(catalogue.OPERATOR_SCALING_ACTIVE)
        for key, pools in self._decided().items():
            for name, one in list(pools.items()):
                desired.add_metric([*key, name], one.desired)
                active.add_metric([*key, name], float(one.reason not in INACTIVE))
        yield from (desired, active)


class _Decisions(Collector):
    """What was told of the services that there are."""

    def __init__(self, events: Counters, services: Callable[[], Collection[tuple[str, str]]]) -> None:
        self._events = events
        self._services = services

    def collect(self) -> Iterable[Metric]:
        family, living = _counter(catalogue.OPERATOR_DECISIONS), set(self._services())
        for (namespace, name, reason), count in list(self._events.told.items()):
            if (namespace, name) in living:
                family.add_metric([namespace, name, reason], count)
        yield family


class Thresholds(Collector):
    """What services promise."""

    def __init__(self, promised: Callable[[], Iterable[tuple[tuple[str, str], Promise]]]) -> None:
        self._promised = promised

    def collect(self) -> Iterable[Metric]:
        family = _gauge(catalogue.OPERATOR_SLO_THRESHOLD)
        for key, promise in self._promised():
            family.add_metric([*key, promise.signal, promise.level], promise.limit)
        yield family


class _Rollouts(Collector):
    """Rollouts by steps, as the statuses tell them; nothing for services without one."""

    def __init__(self, told: Callable[[], Mapping[tuple[str, str], Mapping[str, Any]]]) -> None:
        self._told = told

    def collect(self) -> Iterable[Metric]:
        weight, phase = _gauge(catalogue.OPERATOR_ROLLOUT_WEIGHT), _gauge(catalogue.OPERATOR_ROLLOUT_PHASE)
        verdict = _gauge(catalogue.OPERATOR_ROLLOUT_VERDICT)
        for key, told in self._told().items():
            phase.add_metric([*key, str(told.get("phase"))], 1.0)
            if told.get("step") is not None:
                weight.add_metric(list(key), float(told.get("weight") or 0))
            if told.get("verdict"):
                verdict.add_metric([*key, str(told["verdict"])], 1.0)
        yield from (weight, phase, verdict)


def _gauge(metric: catalogue.Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _counter(metric: catalogue.Metric) -> CounterMetricFamily:
    return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
