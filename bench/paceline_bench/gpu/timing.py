"""Timing work on a device by its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch


def seconds_of(work: Callable[[], object], device: torch.device, *, repeats: int = 10) -> float:
    """Median time of `work` on the device, after three runs that do not count; on a CPU by the wall clock."""
    for _ in range(3 if device.type == "cuda" else 1):
        work()
    if device.type != "cuda":
        started = time.monotonic()
        work()
        return time.monotonic() - started
    pairs = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize(device)
    milliseconds: list[float] = [start.elapsed_time(end) for start, end in pairs]
    return median(milliseconds) / 1e3


def copy_bandwidth(device: torch.device, nbytes: int) -> float:
    """Bytes read and written per second by a copy within the device's memory."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=device).zero_()
    target = torch.empty_like(source)
    return 2 * nbytes / seconds_of(lambda: target.copy_(source), device)
