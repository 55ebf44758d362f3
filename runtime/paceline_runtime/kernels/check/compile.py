"""Compiling the kernels for GPUs that are not there, with what they take of them.

The launch functions themselves are called, on tensors in host memory, with Triton's driver replaced by one that names a
target and its launch replaced by compilation. So what is compiled is what a GPU would be given: same constants, same
tiles, same assumptions on alignment. For a process of its own: nothing can be launched in it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from paceline_runtime.kernels.check.variants import Variant
from paceline_runtime.kernels.gpu import target

SHARED = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may have (CUDA C++ Programming Guide, table of compute capabilities)."""
_PER_PROCESSOR = {80: 164 * 1024, 90: 228 * 1024}
_REGISTERS, _WARPS = 65536, 64


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel for one compute capability.

    Attributes:
        registers: of each thread.
        stack: bytes of each thread that did not fit its registers.
        shared: bytes of each program.
        seconds: of the compiler, ptxas included; near 0 where its cache had it.
    """

    kernel: str
    variant: str
    arch: int
    warps: int
    registers: int
    stack: int
    shared: int
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether a multiprocessor can hold one program."""
        return self.shared <= SHARED[self.arch]

    @property
    def programs(self) -> int:
        """How many a multiprocessor holds at once, by registers (given out in 256 for a warp), memory and warps."""
        warp_registers = -(-self.registers * 32 // 256) * 256
        # Each program takes 1 KiB of shared memory for itself.
        by_memory = _PER_PROCESSOR[self.arch] // (self.shared + 1024)
        return min(_REGISTERS // (warp_registers * self.warps), by_memory, _WARPS // self.warps)


def compile_all(
    variants: Iterable[Variant], archs: Iterable[int], known: Callable[[int, Variant], bool]
) -> Iterator[list[Compiled]]:
    """Compile every variant for every compute capability (80 for 8.0). Call from a process of its own.

    Args:
        known: leaves one out.

    Returns:
        The kernels of each variant.

    Raises:
        Exception: the compiler's own, for what does not compile.
    """
    made: list[tuple[str, Any, float]] = []
    launch = JITFunction.run

    def compile_only(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        started = time.monotonic()
        compiled = launch(kernel, *args, grid=grid, warmup=True, **options)
        made.append((kernel.fn.__name__, compiled, time.monotonic() - started))
        return compiled

    JITFunction.run = compile_only
    chosen = list(variants)
    try:
        for arch in archs:
            driver.set_active(AbsentGPU(arch))
            target.converts_e4m3.cache_clear()
            for variant in chosen:
                if known(arch, variant):
                    continue
                variant.launch()
                yield [_describe(kernel, variant.name, arch, compiled, seconds) for kernel, compiled, seconds in made]
                made.clear()
    finally:
        JITFunction.run = launch


class AbsentGPU:
    """As much of a driver as choosing and compiling a form asks for."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return self._arch  # the compiled kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def _describe(kernel: str, variant: str, arch: int, compiled: Any, seconds: float) -> Compiled:
    registers, stack = _usage(compiled.asm["cubin"])
    return Compiled(
        kernel, variant, arch, compiled.metadata.num_warps, registers, stack, compiled.metadata.shared, seconds
    )


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack, by NVIDIA's cuobjdump, which comes with Triton."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of registers: {said}")
    return int(found[1]), int(found[2])


HEADER = f"{'kernel':<16}{'sm':>3}{'warps':>6}{'regs':>6}{'stack':>6}{'shared':>8}{'per SM':>7}{'seconds':>8}  variant"


def line(r: Compiled) -> str:
    """For people, below `HEADER`."""
    return (
        f"{r.kernel.removesuffix('_kernel'):<16}{r.arch:>3}{r.warps:>6}{r.registers:>6}{r.stack:>6}{r.shared:>8}"
        f"{r.programs:>7}{r.seconds:>8.1f}  {r.variant}"
    )
