"""What is counted by tenant. Counts belong to a label, not to a tenant, so that they only ever grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline_crds import metrics as catalogue
from paceline_router.report.histogram import LONG, Histogram
from paceline_router.report.text import Labels, Sample, sample

REJECTION_REASONS = ("requests", "tokens", "too_large", "queue", "wait")
"""`requests`, `tokens`: limits per minute; `too_large`: more tokens than a whole minute's; `queue`: as many wait as
may; `wait`: waited for as long as it may.
"""

IDENTITY_REASONS = ("missing_key", "unknown_key", "keys_unavailable", "malformed_name", "too_many_tenants")


class Counts:
    """The counters of one label."""

    __slots__ = ("admitted", "output_tokens", "prompt_tokens", "rejected", "wait")

    def __init__(self) -> None:
        self.admitted = 0
        self.rejected = dict.fromkeys(REJECTION_REASONS, 0)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.wait: Histogram | None = None
        """Only where somebody waited: a histogram has many series."""

    def waited(self, seconds: float) -> None:
        """Count one wait that ended well."""
        if self.wait is None:
            self.wait = Histogram(LONG)
        self.wait.observe(seconds)

    def samples(self, service: Labels, label: str, queued: int, running: int) -> Iterator[Sample]:
        """All series of the label."""
        labels = (*service, ("tenant", label))
        yield sample(catalogue.ROUTER_TENANT_ADMITTED, labels, value=self.admitted)
        for reason, count in self.rejected.items():
            yield sample(catalogue.ROUTER_TENANT_REJECTED, labels, reason, value=count)
        yield sample(catalogue.ROUTER_TENANT_QUEUED, labels, value=queued)
        yield sample(catalogue.ROUTER_TENANT_RUNNING, labels, value=running)
        yield sample(catalogue.ROUTER_TENANT_TOKENS, labels, "prompt", value=self.prompt_tokens)
        yield sample(catalogue.ROUTER_TENANT_TOKENS, labels, "generation", value=self.output_tokens)
        if self.wait is not None:
            yield from self.wait.samples(catalogue.ROUTER_TENANT_WAIT.name, labels)


def identity_samples(service: Labels, rejected: Sequence[int]) -> Iterator[Sample]:
    """The series that belong to no tenant."""
    for reason, count in zip(IDENTITY_REASONS, tuple(rejected), strict=True):
        yield sample(catalogue.ROUTER_IDENTITY_REJECTED, service, reason, value=count)
