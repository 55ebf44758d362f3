"""The books of one service."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from paceline_crds import metrics as catalogue
from paceline_router.report import histogram
from paceline_router.report.cells import OUTCOMES, Cell, Key
from paceline_router.report.histogram import FineHistogram, Histogram
from paceline_router.report.labels import NONE, OTHER, BoundedCounters
from paceline_router.report.objectives import RESULTS, SLOS, Objectives
from paceline_router.report.text import Exemplar, Labels, Place, Sample, sample
from paceline_router.report.windows import Windows
from paceline_router.table.policy import SHAPES, SLOW_SECONDS, Policy

RETRY_REASONS: Final = ("connect", "reset", "unavailable", "stale_connection")
"""`connect`: no connection within the time-out; `reset`: broken before the first byte; `unavailable`: 503 with
Retry-After; `stale_connection`: a kept connection had been closed by the replica.
"""

REFUSALS: Final = (
    "identity",
    "tenant_requests",
    "tenant_tokens",
    "tenant_queue",
    "over_long",
    "none_ready",
    "overloaded",
    "hold_full",
    "hold_expired",
    "deadline",
    OTHER,
)
"""Why the router itself refused a request of a service."""

SHAPE_LABELS: Final[tuple[str, ...]] = (*(shape.value for shape in SHAPES), NONE)
"""By a request's `shape`; the last one, which -1 reaches, is for requests without any."""

MAX_KEYS: Final = 64
"""Pools and revisions that are told apart."""

MAX_TENANTS: Final = 256
"""Their labels are bounded where they are given; this is for tenants that a spec names today and not tomorrow."""


class ServiceMetrics:
    """Counters of one service. Those with a fixed set of labels exist from the start, so that a rate can be taken of
    the first failure. Written by the data path's thread, read by any.
    """

    __slots__ = (
        "_idle",
        "cells",
        "ejections",
        "engine",
        "fallback",
        "goodput",
        "in_flight",
        "net",
        "objectives",
        "outcomes",
        "pool_objectives",
        "prompt_versions",
        "refusals",
        "retries",
        "router",
        "slow_after",
        "spills",
        "tenant_ttft",
        "usage_unknown",
        "waits",
        "windows",
    )

    def __init__(self, wall: float = 0.0) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.retries = dict.fromkeys(RETRY_REASONS, 0)
        self.refusals = dict.fromkeys(REFUSALS, 0)
        self.spills: dict[tuple[str, str], int] = {}
        self.in_flight = 0
        self.fallback = 0
        self.ejections = 0
        self.usage_unknown = 0
        self.cells: dict[Key, tuple[Cell, ...]] = {}
        self.prompt_versions = BoundedCounters(2)
        self.tenant_ttft: dict[str, Histogram] = {}
        self.waits = Histogram(histogram.LONG)
        self.router = Histogram(histogram.SHORT)
        self.engine = tuple(Histogram(histogram.LONG) for _ in SHAPE_LABELS)
        self.net = Histogram(histogram.SHORT)
        self.objectives: Objectives | None = None
        self.pool_objectives: dict[str, Objectives] = {}
        self.goodput = [0] * (len(SLOS) * len(RESULTS))
        self.slow_after = SLOW_SECONDS
        self.windows = Windows(wall)
        self._idle: dict[Key, int] = {}

    def use(self, policy: Policy) -> None:
        """Count by what the spec says from now on."""
        self.slow_after = policy.slow
        self.objectives = Objectives(policy.slo) if policy.slo is not None else None
        self.pool_objectives = {pool: Objectives(spec) for pool, spec in policy.pool_slo.items()}

    def cells_of(self, pool: str, revision: str) -> tuple[Cell, ...]:
        """The cells of a pool and revision by shape, made on first use."""
        found = self.cells.get((pool, revision))
        if found is None:
            key = (pool, revision) if len(self.cells) < MAX_KEYS else (OTHER, OTHER)
            found = self.cells.setdefault(key, tuple(Cell() for _ in SHAPE_LABELS))
        return found

    def ttft_of(self, tenant: str) -> Histogram:
        """Times to the first token of a tenant by its label, made on first use."""
        found = self.tenant_ttft.get(tenant)
        if found is None:
            label = tenant if len(self.tenant_ttft) < MAX_TENANTS else OTHER
            found = self.tenant_ttft.setdefault(label, Histogram(histogram.TTFT))
        return found

    def spilled(self, pool: str, reason: str) -> None:
        """Count a request that another pool than the one of its shape took. Both words are the router's own."""
        key = (pool, reason)
        self.spills[key] = self.spills.get(key, 0) + 1

    def refused(self, reason: str) -> None:
        """Count a refusal by the router."""
        self.refusals[reason if reason in self.refusals else OTHER] += 1

    def forget_unused(self, live: Collection[Key]) -> None:
        """Give up what is in the table no more and had no request since the last call, and idle prompt versions."""
        counts = {key: sum(sum(cell.outcomes) for cell in cells) for key, cells in self.cells.items()}
        for key, count in counts.items():
            if key not in live and self._idle.get(key) == count:
                del self.cells[key]
        self._idle = counts
        self.prompt_versions.forget_unused()

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """All series of the service."""
        for outcome, count in self.outcomes.items():
            yield sample(catalogue.ROUTER_REQUESTS, labels, outcome, value=count)
        for reason, count in self.retries.items():
            yield sample(catalogue.ROUTER_RETRIES, labels, reason, value=count)
        for reason, count in self.refusals.items():
            yield sample(catalogue.ROUTER_REFUSED, labels, reason, value=count)
        for (to, reason), count in list(self.spills.items()):
            yield sample(catalogue.ROUTER_SPILLS, labels, to, reason, value=count)
        yield sample(catalogue.ROUTER_IN_FLIGHT, labels, value=self.in_flight)
        yield sample(catalogue.ROUTER_FALLBACK, labels, value=self.fallback)
        yield sample(catalogue.ROUTER_EJECTIONS, labels, value=self.ejections)
        yield sample(catalogue.ROUTER_USAGE_UNKNOWN, labels, value=self.usage_unknown)
        for version, row in list(self.prompt_versions.rows.items()):
            for kind, count in zip(("prompt", "generation"), row, strict=True):
                yield sample(catalogue.ROUTER_TOKENS, labels, version, kind, value=count)
        yield from self._objectives(labels)
        for tenant, times in list(self.tenant_ttft.items()):
            yield from times.samples(catalogue.ROUTER_TENANT_TTFT.name, (*labels, ("tenant", tenant)))
        # Requests that did not wait are not counted one by one.
        straight = max(0, sum(self.outcomes.values()) - sum(self.waits.counts))
        yield from self.waits.samples(catalogue.ROUTER_WAIT.name, labels, zeros=straight)
        yield from self.router.samples(catalogue.ROUTER_TIME.name, labels)
        yield from self.net.samples(catalogue.ROUTER_NET.name, labels)
        for shape, engine in zip(SHAPE_LABELS, self.engine, strict=True):
            if any(engine.counts):
                yield from engine.samples(catalogue.ROUTER_ENGINE.name, (*labels, ("shape", shape)))
        for key, cells in list(self.cells.items()):
            for shape, cell in zip(SHAPE_LABELS, cells, strict=True):
                if any(cell.outcomes):
                    yield from _cell_samples(cell, (*labels, *_place(key, shape)))

    def exemplars(self, labels: Labels) -> Iterator[tuple[Place, Exemplar]]:
        """Requests to look at, by the series of `samples` that they fell into."""
        for key, cells in list(self.cells.items()):
            for shape, cell in zip(SHAPE_LABELS, cells, strict=True):
                for metric, times in _times(cell):
                    yield from times.pointed(metric.name, (*labels, *_place(key, shape)))

    def _objectives(self, labels: Labels) -> Iterator[Sample]:
        several = (self.objectives, *self.pool_objectives.values())
        promised = {index for each in several if each is not None for index in each.promised}
        for index in sorted(promised):
            for result, word in enumerate(RESULTS):
                count = self.goodput[2 * index + result]
                yield sample(catalogue.ROUTER_SLO_REQUESTS, labels, SLOS[index], word, value=count)


def _cell_samples(cell: Cell, labels: Labels) -> Iterator[Sample]:
    for outcome, count in zip(OUTCOMES, tuple(cell.outcomes), strict=True):
        if count:
            yield sample(catalogue.ROUTER_PLACED_REQUESTS, labels, outcome, value=count)
    for metric, times in _times(cell):
        if any(times.counts):
            yield from times.samples(metric.name, labels)


def _times(cell: Cell) -> tuple[tuple[catalogue.Metric, FineHistogram], ...]:
    return (
        (catalogue.ROUTER_TTFT, cell.ttft),
        (catalogue.ROUTER_TPOT, cell.tpot),
        (catalogue.ROUTER_DURATION, cell.duration),
    )


def _place(key: Key, shape: str) -> Labels:
    pool, revision = key
    return (("pool", pool or NONE), ("revision", revision or NONE), ("shape", shape))
