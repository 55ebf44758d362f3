"""How many threads the engine's arithmetic uses, and how they wait. To be settled before torch is imported."""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

SPIN_COUNT = 10_000
"""About a tenth of a millisecond. OpenMP's threads otherwise spin for ever between two loops when there are no more of
them than processors; with anything else running on these, one step then takes ten times as long."""


def settle(environ: MutableMapping[str, str], root: Path = Path("/")) -> None:
    """Set OpenMP's variables where the user has not."""
    if "GOMP_SPINCOUNT" not in environ and "OMP_WAIT_POLICY" not in environ:
        environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    quota = cpu_quota(root)
    if quota is not None and "OMP_NUM_THREADS" not in environ:
        environ["OMP_NUM_THREADS"] = str(max(min(math.ceil(quota), len(os.sched_getaffinity(0))), 1))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors that the control group (v2) grants; `None` if it sets no bound or is not known."""
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)
