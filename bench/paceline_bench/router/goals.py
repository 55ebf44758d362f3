"""What our router is to reach beside its peers, as ratios of one run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from paceline_bench.comparison import OURS, Case

from .features import ALL
from .works import Work

CPU, CHUNK, RATE, ADDED = "cpu_us_per_request", "cpu_us_per_chunk", "requests_per_s", "added_ttft_ms_p99"
ADDED_MS = 2.0
FLAT = 0.9
"""Of the rate at 32 connections is still there at 1,024."""


@dataclass(frozen=True)
class Goal:
    """Our CPU with everything on, over a peer's."""

    work: str
    connections: int
    body_bytes: int
    metric: str
    peer: str
    at_most: float

    def fits(self, work: Work, metric: str, peer: str) -> bool:
        """Whether it speaks of this."""
        mine = (self.work, self.connections, self.body_bytes, self.metric, self.peer)
        return mine == (work.name, work.connections, work.body_bytes, metric, peer)


GOALS = (
    Goal("json", 32, 64, CPU, "vllm-router", 0.65),
    Goal("json", 32, 4096, CPU, "vllm-router", 0.75),
    Goal("json", 32, 64, CPU, "vllm-router-cache-aware", 0.2),
    Goal("json", 32, 4096, CPU, "vllm-router-cache-aware", 0.2),
    Goal("json", 32, 64, CPU, "c-relay", 1.9),
    Goal("sse", 256, 64, CHUNK, "vllm-router", 1.0),
    Goal("sse", 256, 64, CHUNK, "c-relay", 1.6),
)
PEERS_WITH_A_RATIO = ("vllm-router", "vllm-router-cache-aware", "c-relay")
EVERYTHING = f"{OURS} ({ALL})"


def goal_of(work: Work, metric: str, peer: str) -> float | None:
    """The goal for a ratio, where there is one."""
    return next((goal.at_most for goal in GOALS if goal.fits(work, metric, peer)), None)


def ratios(case: Case, ours: str, peer: str, metric: str) -> list[float]:
    """Ours over theirs, round by round: what the machine did meanwhile is in both."""
    pairs = zip(case.samples.get(ours, ()), case.samples.get(peer, ()), strict=False)
    return [a.values[metric] / b.values[metric] for a, b in pairs if b.values[metric] > 0]


def middle(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)
