"""What a replica shows of itself while it is idle: memory, blocks, open requests, its own counts."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from paceline_bench.http_client import get
from paceline_bench.processes import ProcessGroup, command_line, open_files, rss_bytes
from paceline_crds import metrics
from paceline_crds.metrics import Metric

IDLE_SECONDS = 60.0
POLL_SECONDS = 0.2
SETTLE_SECONDS = 1.2
"""An idle engine reports once a second; only then do gauges show the last request's end."""
MIB = 1024 * 1024


@dataclass(frozen=True)
class Checkpoint:
    """The replica between two stretches of load, with nothing to do.

    Attributes:
        seconds: since the load began.
        requests: sent so far.
        unexpected: of them, those with an answer that they must not get.
        front_mib: resident memory of the front end.
        core_mib: resident memory of the engine core.
        open_files: descriptors of the front end.
        open_requests: running and waiting, by the replica's own gauges.
        blocks_in_use: held by requests.
        received: generation requests, by the replica's own count.
        accounted: those of them that ended or were refused.
        preemptions: requests that lost their blocks.
        live: `/health/live` says so.
    """

    seconds: float
    requests: int
    unexpected: int
    front_mib: float
    core_mib: float
    open_files: int
    open_requests: int
    blocks_in_use: int
    received: int
    accounted: int
    preemptions: int
    live: bool


def parse_metrics(text: str) -> dict[str, float]:
    """Metric name to the sum over its series, of Prometheus' text format (a replica serves one model)."""
    sums: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            sums[series.partition("{")[0]] += float(value)
    return dict(sums)


def value_of(values: Mapping[str, float], metric: Metric) -> float:
    """A metric's sum.

    Raises:
        LookupError: the replica does not show it.
    """
    if metric.name not in values:
        raise LookupError(f"the replica shows no {metric.name}")
    return values[metric.name]


def core_pid(server: ProcessGroup) -> int:
    """Process id of the engine core that a replica has started.

    Raises:
        LookupError: there is none.
    """
    for pid in server.members():
        if "paceline_runtime.core" in command_line(pid):
            return pid
    raise LookupError("the replica has no engine core")


async def checkpoint(server: ProcessGroup, port: int, began: float, requests: int, unexpected: int) -> Checkpoint:
    """Wait until nothing is open, then look.

    If something stays open, that is what the checkpoint shows.

    Args:
        server: the replica.
        port: it listens on.
        began: `time.monotonic()` when the load began.
        requests: sent so far.
        unexpected: of them, those that went wrong.

    Raises:
        OSError: the replica does not answer.
        LookupError: it does not show what it should, or has lost its core.
    """
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        values = parse_metrics((await get(port, "/metrics"))[1].decode())
        opened = value_of(values, metrics.RUNTIME_REQUESTS_RUNNING) + value_of(values, metrics.RUNTIME_REQUESTS_WAITING)
        blocks = value_of(values, metrics.RUNTIME_KV_CACHE_USAGE) * value_of(values, metrics.RUNTIME_KV_BLOCKS)
        received = value_of(values, metrics.RUNTIME_REQUESTS_RECEIVED)
        accounted = value_of(values, metrics.RUNTIME_REQUESTS_FINISHED) + values.get(
            metrics.RUNTIME_REQUESTS_REFUSED.name, 0.0
        )
        settled = not opened and not round(blocks) and received == accounted
        if settled or time.monotonic() > deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    front, core = rss_bytes(server.pid), rss_bytes(core_pid(server))
    if front is None or core is None:
        raise LookupError("a process of the replica is gone")
    return Checkpoint(
        seconds=time.monotonic() - began,
        requests=requests,
        unexpected=unexpected,
        front_mib=front / MIB,
        core_mib=core / MIB,
        open_files=open_files(server.pid),
        open_requests=round(opened),
        blocks_in_use=round(blocks),
        received=round(received),
        accounted=round(accounted),
        preemptions=round(value_of(values, metrics.RUNTIME_PREEMPTIONS)),
        live=(await get(port, "/health/live"))[0] == 200,
    )
