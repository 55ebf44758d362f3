"""Whether a replica came through a soak: pure, from its checkpoints."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .observation import Checkpoint

FEWEST_CHECKPOINTS = 5
ALLOWED_MIB = 4.0
"""What an allocator's own ways may add to a process between the two windows that are compared."""
ALLOWED_FILES = 4


def faults(checkpoints: Sequence[Checkpoint], wrong: Sequence[str]) -> list[str]:
    """What is wrong, in words; empty if nothing is.

    Memory is compared between two windows of checkpoints, a third of them each: the middle one, by when everything has
    been touched once, and the last one. An allocator grows in steps and then stands; a leak goes on within the last
    window too, so both are asked for.

    Args:
        checkpoints: all, in order; the first one from before the load.
        wrong: unexpected answers, in words.
    """
    last = checkpoints[-1]
    found = [f"unexpected: {words}" for words in wrong]
    for at in checkpoints:
        if at.open_requests:
            found.append(f"{at.open_requests} requests were open though none was there, after {at.requests}")
        if at.blocks_in_use:
            found.append(f"{at.blocks_in_use} blocks were in use though no request was there, after {at.requests}")
        if at.received != at.accounted:
            found.append(f"{at.received} requests were received but {at.accounted} ended, after {at.requests}")
        if not at.live:
            found.append(f"/health/live was red after {at.requests} requests")
    if last.open_files > checkpoints[0].open_files + ALLOWED_FILES:
        found.append(f"the front end has {last.open_files} files open; it began with {checkpoints[0].open_files}")
    for name in ("front_mib", "core_mib"):
        grown = growth(checkpoints, name)
        last_third = [getattr(at, name) for at in checkpoints[-(len(checkpoints) // 3) :]]
        goes_on = last_third[-1] - last_third[0] > ALLOWED_MIB / 4 if last_third else False
        if grown is not None and grown > ALLOWED_MIB and goes_on:
            process = name.removesuffix("_mib")
            found.append(f"memory of the {process} grew by {grown:.1f} MiB in the last third and still grows")
    return found


def growth(checkpoints: Sequence[Checkpoint], name: str) -> float | None:
    """MiB between the medians of the middle and the last third; `None` where there are too few checkpoints to say."""
    if len(checkpoints) < FEWEST_CHECKPOINTS:
        return None
    third = len(checkpoints) // 3
    middle, end = checkpoints[-2 * third : -third], checkpoints[-third:]
    medians = [float(statistics.median(getattr(c, name) for c in window)) for window in (middle, end)]
    return medians[1] - medians[0]
