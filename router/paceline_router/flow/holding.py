"""What waits at the router for a replica: bounds, and the account of it for whoever starts replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Of bodies that wait, for one service. How many may wait is bounded by the gate (see `tenancy.gate`)."""

BATCH_DEFAULT: Final = 16
"""Requests in a replica's batch where that is not known."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What waits for a service.

    Attributes:
        held: requests that wait now.
        oldest_wait_ms: how long the first of them has waited; 0 when none does.
        arrivals: requests let in since the router started: not those without a valid key, or over their limits.
    """

    service: str
    held: int
    oldest_wait_ms: int
    arrivals: int
