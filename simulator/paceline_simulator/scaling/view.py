"""What a policy sees of the simulated fleet, and what a policy is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pod:
    """One replica. Without metrics (`None`) while it starts: its port is not open."""

    created: float
    ready: bool
    running: int | None
    waiting: int | None


@dataclass(frozen=True, slots=True)
class View:
    """The fleet at a moment.

    Attributes:
        desired: what was asked for last.
        pods: all that were not told to go.
        held: requests that no replica can take.
        arrived, computed, generated: requests, prompt tokens computed and answer tokens since the beginning.
        backlog: prompt tokens not yet computed.
        starts: seconds that starts took, newest last.
        metrics: whether the metrics system answers; what a policy asks pods directly it sees in any case.
        answered, kept: requests answered or lost since the beginning, and those of them within the objectives; of the
            last scrape.
    """

    now: float
    desired: int
    pods: tuple[Pod, ...]
    held: int
    arrived: int
    computed: float
    generated: float
    backlog: float
    starts: tuple[float, ...]
    metrics: bool = True
    answered: int = 0
    kept: int = 0

    @property
    def ready(self) -> int:
        """Replicas that serve."""
        return sum(pod.ready for pod in self.pods)

    @property
    def waiting(self) -> int:
        """Requests queued in engines."""
        return sum(pod.waiting or 0 for pod in self.pods)

    @property
    def in_flight(self) -> int:
        """Requests at replicas and held ones."""
        return self.held + sum((pod.running or 0) + (pod.waiting or 0) for pod in self.pods)


class Scaler(Protocol):
    """A policy with its memory: made anew for every run."""

    period: float
    """Seconds between decisions; a whole number."""

    def decide(self, view: View) -> int:
        """How many replicas there should be."""
