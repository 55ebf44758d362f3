"""Policies of replica choice side by side: the same requests, several seeds, and what came of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_bench.results import Row

from .engine import Request
from .fleet import Fleet, Outcome

METRICS: dict[str, str] = {
    "ttft_ms_p50": "ms",
    "ttft_ms_p99": "ms",
    "tpot_ms_p50": "ms",
    "tpot_ms_p99": "ms",
    "hit_rate": "share",
    "imbalance": "max/mean",
    "sent_imbalance": "max/mean",
}
"""Figures of a run, with their units. `imbalance` is that of requests at the replicas, averaged over seconds;
`sent_imbalance` that of requests sent over the whole run."""

OURS = "cost"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def figures(outcome: Outcome) -> dict[str, float | None]:
    """The figures of one run by the names in `METRICS`; None where there is nothing to measure."""
    ttft, tpot = outcome.ttft, outcome.tpot
    sent = outcome.sent
    return {
        "ttft_ms_p50": quantile(ttft, 0.5) * 1000.0,
        "ttft_ms_p99": quantile(ttft, 0.99) * 1000.0,
        "tpot_ms_p50": quantile(tpot, 0.5) * 1000.0 if tpot else None,
        "tpot_ms_p99": quantile(tpot, 0.99) * 1000.0 if tpot else None,
        "hit_rate": outcome.hit_rate,
        "imbalance": outcome.imbalance,
        "sent_imbalance": max(sent) * len(sent) / sum(sent),
    }


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Attributes:
        work: its name in results.
        requests: makes the requests for a seed.
        params: what else identifies it in results.
    """

    work: str
    replicas: int
    routers: int
    requests: Callable[[int], list[Request]]
    params: dict[str, Any]


def simulate(case: Case, policies: Iterable[str], seeds: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """By policy and metric, one figure for each seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for policy in policies:
        runs = [
            figures(Fleet(policy, case.replicas, case.routers, seed=seed).run(case.requests(seed))) for seed in seeds
        ]
        found[policy] = {
            metric: [value for run in runs if (value := run[metric]) is not None]
            for metric in METRICS
            if all(run[metric] is not None for run in runs)
        }
    return found


def rows(case: Case, found: dict[str, dict[str, list[float]]], seeds: Sequence[int]) -> list[Row]:
    """The medians over seeds, with the range beside them."""
    made = []
    for policy, metrics in found.items():
        for metric, values in metrics.items():
            params = {
                **case.params,
                "replicas": case.replicas,
                "routers": case.routers,
                "seeds": list(seeds),
                "min": round(min(values), 4),
                "max": round(max(values), 4),
            }
            system = "paceline" if policy == OURS else policy
            made.append(Row(case.work, system, metric, round(statistics.median(values), 4), METRICS[metric], params))
    return made
