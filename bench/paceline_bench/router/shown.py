"""The comparison of routers for people."""

from __future__ import annotations

import statistics

from rich.table import Table

from paceline_bench.comparison import OURS, Case

from . import goals
from .goals import ADDED, CHUNK, CPU, RATE
from .rounds import Figures
from .systems import SYSTEMS
from .works import Work


def costs(figures: Figures) -> Table:
    """CPU by load and system: median, range, rate, and the ratios of ours with their goals."""
    table = Table(
        "load", "system", "CPU µs (range)", "per s", "p99 ms", "of vllm-router", "of its cache-aware", "of c-relay"
    )
    table.title = (
        "CPU of the router per request, or per chunk where streamed; goals for ours with all features in brackets"
    )
    for work, case in figures.cases.items():
        metric, rate = (CHUNK, "chunks_per_s") if work.streamed else (CPU, RATE)
        for position, key in enumerate(case.samples):
            values = [sample.values[metric] for sample in case.samples[key]]
            table.add_row(
                "" if position else work.label,
                key,
                f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})",
                f"{case.median(key, rate):,.0f}",
                f"{case.median(key, 'latency_ms_p99'):.1f}",
                *(_ratio(case, work, key, peer, metric) for peer in goals.PEERS_WITH_A_RATIO),
                style="bold" if SYSTEMS[key].ours else None,
            )
        table.add_section()
    return table


def _ratio(case: Case, work: Work, key: str, peer: str, metric: str) -> str:
    values = goals.ratios(case, key, peer, metric) if SYSTEMS[key].ours else []
    if not values:
        return ""
    ratio = f"{statistics.median(values):.2f}"
    goal = goals.goal_of(work, metric, peer) if key == goals.EVERYTHING else None
    return ratio if goal is None else f"{ratio} [≤ {goal:g}: {'yes' if statistics.median(values) <= goal else 'NO'}]"


def half_load(figures: Figures) -> Table:
    """What a router adds to the 99th percentile of the first byte at half of its own rate."""
    table = Table("half load", "system", "TTFT p99 ms", "added p99 ms (range)", title="First byte, open loop")
    for work, case in figures.half.items():
        for position, key in enumerate(case.samples):
            added = [sample.values[ADDED] for sample in case.samples[key]]
            goal = f" [< {goals.ADDED_MS:g}: {'yes' if statistics.median(added) < goals.ADDED_MS else 'NO'}]"
            table.add_row(
                "" if position else work.label,
                key,
                f"{case.median(key, 'ttft_ms_p99'):.2f}",
                f"{statistics.median(added):.2f} ({min(added):.2f}-{max(added):.2f})"
                + (goal if key == goals.EVERYTHING else ""),
            )
        table.add_section()
    return table


def flatness(figures: Figures) -> list[str]:
    """How much of the rate at 32 connections is left at the most, for ours."""
    said = []
    for key, system in SYSTEMS.items():
        found = {
            w.connections: c.median(key, RATE)
            for w, c in figures.cases.items()
            if w.body_bytes == 64 and not w.streamed and key in c.samples
        }
        if system.name == OURS and len(found) > 1 and 32 in found:
            kept = found[max(found)] / found[32]
            verdict = "yes" if kept >= goals.FLAT else "NO"
            said.append(
                f"{key}: {kept:.2f} of the rate at 32 connections is left at {max(found)} [≥ {goals.FLAT:g}: {verdict}]"
            )
    return said
