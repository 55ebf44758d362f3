"""Which real GPUs a container may see. A pod that asks for more than the machine has sees those there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESOURCE = "nvidia.com/gpu"


def real_gpus(devices: Path = Path("/dev")) -> list[int]:
    """Indices of the NVIDIA GPUs of this machine."""
    if not devices.is_dir():
        return []
    return sorted(int(m[1]) for path in devices.iterdir() if (m := re.fullmatch(r"nvidia(\d+)", path.name)))


def gpus_asked(container: Mapping[str, Any]) -> int:
    """Number of GPUs in the container's limits."""
    return int(((container.get("resources") or {}).get("limits") or {}).get(RESOURCE, 0))


class GpuPool:
    """Hands real GPUs to containers, the least used first; a simulated node may share one among several."""

    def __init__(self, indices: Iterable[int]) -> None:
        self._uses = dict.fromkeys(indices, 0)
        self._held: dict[str, tuple[int, ...]] = {}

    def visible(self, owner: str, count: int) -> str:
        """Value of `CUDA_VISIBLE_DEVICES` for the container `owner` that asked for `count` GPUs; empty for none."""
        self.release(owner)
        chosen = tuple(sorted(sorted(self._uses, key=lambda i: (self._uses[i], i))[:count]))
        for index in chosen:
            self._uses[index] += 1
        self._held[owner] = chosen
        return ",".join(map(str, chosen))

    def hold(self, owner: str, visible: str) -> None:
        """Count what a container found again holds already, by its `CUDA_VISIBLE_DEVICES`."""
        self.release(owner)
        held = tuple(index for index in self._uses if str(index) in visible.split(","))
        for index in held:
            self._uses[index] += 1
        self._held[owner] = held

    def release(self, owner: str) -> None:
        """Give back what the container held."""
        for index in self._held.pop(owner, ()):
            self._uses[index] -= 1
