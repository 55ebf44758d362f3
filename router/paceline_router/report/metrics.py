"""The counters of one router process. Labels are bounded: services come from the table, never from what a client
wrote, and outcomes and reasons are listed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from paceline_crds import metrics as catalogue
from paceline_router.report.cells import Key
from paceline_router.report.imbalance import Imbalance
from paceline_router.report.service import ServiceMetrics
from paceline_router.report.text import Exemplar, Place, Sample, sample, service_labels
from paceline_router.report.windows import SLOT_SECONDS
from paceline_router.table.routes import revision_of

if TYPE_CHECKING:
    from paceline_router.flow.backend import Backend
    from paceline_router.shadow.counts import Counts
    from paceline_router.table.records import Table

__all__ = ["REJECTIONS", "Metrics", "ServiceMetrics"]

REJECTIONS = (400, 401, 404, 405, 408, 413, 415, 417, 429, 431, 500, 503)
"""Statuses with which the router answers a request before any work for a service begins."""


FORGET_SECONDS = 3600.0
"""How long the series of a revision that is gone, and of a prompt version that nobody sends, are still shown."""


class Metrics:
    """All counters of one router process."""

    def __init__(self) -> None:
        self.imbalance = Imbalance()
        """Of requests."""
        self.work_imbalance = Imbalance()
        """Of the work ahead, in tokens."""
        self._ticked_at = self._slot_at = self._forgot_at = 0.0
        self._late = (0.0, 0.0)
        self.services: dict[str, ServiceMetrics] = {}
        self.shadows: dict[str, Counts] = {}
        """Of services that have had copies of requests made; the taps' own."""
        self.rejected: dict[int, int] = dict.fromkeys(REJECTIONS, 0)
        self.retries_refused = 0
        self.connect_failures = 0
        self.unusual_reports = 0

    def service(self, key: str) -> ServiceMetrics:
        """The series of one service, made on first use."""
        found = self.services.get(key)
        if found is None:
            found = self.services[key] = ServiceMetrics(time.time())
        return found

    def reject(self, status: int) -> None:
        """Count an answer that belongs to no service."""
        self.rejected[status] = self.rejected.get(status, 0) + 1

    def keep_only(self, keys: Iterable[str]) -> None:
        """Drop the series of services that are gone, once nothing of theirs runs."""
        kept = set(keys)
        for key in [key for key, metrics in self.services.items() if key not in kept and metrics.in_flight == 0]:
            del self.services[key]

    def tick(self, now: float, wall: float, expected: float, table: Table, backends: Collection[Backend]) -> None:
        """Called by the data path now and then, at best every `expected` seconds.

        Args:
            wall: Unix seconds.
            backends: living counterparts of the replicas in the table.
        """
        if not self._ticked_at:
            self._ticked_at = self._slot_at = self._forgot_at = now
        late = now - self._ticked_at - expected
        self._ticked_at = now
        if late > self._late[1]:
            self._late = (self._late[0], late)
        if self.imbalance.due(now):
            ready = [(backend, backend.replica) for backend in backends if backend.replica.ready]
            places = [((replica.service, replica.pool), replica.uid) for _, replica in ready]
            requests = [float(backend.in_flight) for backend, _ in ready]
            work = [max(0.0, backend.work) for backend, _ in ready]
            for imbalance, amounts in ((self.imbalance, requests), (self.work_imbalance, work)):
                imbalance.look(((*place, amount) for place, amount in zip(places, amounts, strict=True)), now)
        if now - self._slot_at >= SLOT_SECONDS:
            self._slot_at = now
            self._late = (self._late[1], 0.0)
            for metrics in self.services.values():
                metrics.windows.close(metrics.cells, wall)
        if now - self._forgot_at >= FORGET_SECONDS:
            self._forgot_at = now
            live: dict[str, set[Key]] = {}
            for replica in table.replicas.values():
                live.setdefault(replica.service, set()).add((replica.pool, revision_of(table, replica) or ""))
            for key, metrics in self.services.items():
                metrics.forget_unused(live.get(key, ()))

    @property
    def lag(self) -> float:
        """The most that a tick came late in the last seconds: what any request may have waited for the data path."""
        return max(self._late)

    def exemplars(self) -> dict[Place, Exemplar]:
        """Requests to look at, by the series that they fell into."""
        services = list(self.services.items())
        return {place: who for key, one in services for place, who in one.exemplars(service_labels(key))}

    def samples(self) -> Iterator[Sample]:
        """All series this class keeps."""
        for key, metrics in list(self.services.items()):
            yield from metrics.samples(service_labels(key))
        for key, counts in list(self.shadows.items()):
            yield from counts.samples(service_labels(key))
        for status, count in sorted(self.rejected.items()):
            yield sample(catalogue.ROUTER_REJECTED, (), str(status), value=count)
        yield sample(catalogue.ROUTER_RETRIES_REFUSED, (), value=self.retries_refused)
        yield sample(catalogue.ROUTER_CONNECT_FAILURES, (), value=self.connect_failures)
        yield sample(catalogue.ROUTER_UNUSUAL_REPORTS, (), value=self.unusual_reports)
        yield sample(catalogue.ROUTER_LAG, (), value=self.lag)
        for metric, imbalance in (
            (catalogue.ROUTER_IMBALANCE, self.imbalance),
            (catalogue.ROUTER_WORK_IMBALANCE, self.work_imbalance),
        ):
            for (key, pool), ratio in imbalance.ratios.items():
                if key in self.services:
                    yield sample(metric, service_labels(key), pool, value=ratio)
