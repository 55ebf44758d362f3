"""Where signals come from, as a protocol: what a pool is, and what a source gives for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from .observed import Signals


@dataclass(frozen=True, slots=True)
class Pool:
    """What is asked about.

    Attributes:
        pods: names of the replicas that are ready; None where nobody knows, so that nothing can be missed.
        max_running: requests that one replica runs at most: what a missing one can add.
    """

    namespace: str
    service: str
    pool: str
    pods: Collection[str] | None = None
    max_running: int | None = None


class MetricsSource(Protocol):
    """Gives a pool's signals. A source that cannot be asked gives `Absent` with the reason; it raises nothing."""

    async def signals(self, pool: Pool) -> Signals:
        """The signals of one pool now."""
