"""What the machine gave while systems were compared: bandwidth, matrix rate, load."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Weather:
    """One reading, taken between two rounds.

    Attributes:
        work: what was being measured.
        dtype: in which matrices were multiplied.
        memory_gb_s: bytes read per second, in 1e9.
        gemm_gflop_s: operations per second of a matrix product, in 1e9.
        load1: the system's load average over a minute; it counts the benchmark itself.
    """

    work: str
    dtype: str
    memory_gb_s: float
    gemm_gflop_s: float
    load1: float


def load_average() -> float:
    """Processes that ran or wanted to, averaged over the last minute."""
    return os.getloadavg()[0]


def best(readings: Sequence[Weather]) -> tuple[float, float]:
    """The highest bandwidth in GB/s and matrix rate in GFLOP/s: what the machine can do; others only take from it."""
    return max(r.memory_gb_s for r in readings), max(r.gemm_gflop_s for r in readings)


def in_words(readings: Sequence[Weather]) -> str:
    """One line about all readings, with their range."""

    def span(values: list[float], digits: int) -> str:
        low, middle, high = min(values), statistics.median(values), max(values)
        return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"

    return (
        f"memory {span([r.memory_gb_s for r in readings], 0)} GB/s, "
        f"{readings[0].dtype} matrices {span([r.gemm_gflop_s for r in readings], 0)} GFLOP/s, "
        f"load {span([r.load1 for r in readings], 1)}"
    )


def as_json(readings: Sequence[Weather]) -> list[dict[str, Any]]:
    """For `results.json`."""
    return [asdict(reading) for reading in readings]
