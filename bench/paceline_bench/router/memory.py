"""Memory of our router over very many requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline_bench.results import Row

from . import timed
from .native import Programs
from .rounds import Figures
from .systems import Running
from .works import Work, write_requests

PARTS = 10
RATE_AT_LEAST = 500.0
"""Requests a second below which a part is given up."""
WORK = Work("json", 32, 4096)
METRIC = "rss_mib"


def watch(running: Running, requests: int, programs: Programs, folder: Path, figures: Figures) -> Iterator[Row]:
    """Send so many requests, most with a text never seen before, and look at resident memory after each tenth."""
    file = folder / "memory.requests"
    write_requests(file, WORK)
    sent = 0
    yield _row(running, sent, timed.memory_mib(running.group))
    for part in range(PARTS):
        most = requests * (part + 1) // PARTS - sent
        if most == 0:
            continue
        made = timed.run(
            programs,
            file,
            [running.port],
            running.group,
            connections=WORK.connections,
            warm=0.0,
            seconds=max(10.0, most / RATE_AT_LEAST),
            most=most,
        )
        figures.count(running.system.key, made.counted)
        sent += made.counted.sent
        yield _row(running, sent, timed.memory_mib(running.group))


def _row(running: Running, sent: int, mib: float) -> Row:
    params = {"features": running.system.features, "requests": sent, "body_bytes": WORK.body_bytes}
    return Row("memory", running.system.name, METRIC, mib, "MiB", params)


def words(rows: Sequence[Row]) -> list[str]:
    """One line per router: memory by the number of requests."""
    said: dict[str, list[str]] = {}
    for row in rows:
        if row.metric == METRIC:
            said.setdefault(row.params["features"], []).append(f"{row.value:.1f} MiB after {row.params['requests']:,}")
    return [f"memory of paceline ({features}): " + ", ".join(line) for features, line in said.items()]
