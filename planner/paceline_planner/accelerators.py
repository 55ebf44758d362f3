"""Accelerators by name, with the figures of their makers' data sheets.

Rates are of dense arithmetic; data sheets often print the double, for matrices with every second pair of values zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

GB = 10**9
GIB = 2**30
TERA = 10**12


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device.

    Attributes:
        memory: bytes.
        bandwidth: bytes per second between memory and cores; None where it is not known.
        flops: operations per second by type of the values (`bf16`, `fp8`, `int8`, `fp32`); absent: not known.
        source: where the figures are from.
    """

    name: str
    memory: int
    bandwidth: float | None
    flops: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


def _nvidia(name: str, gigabytes: int, gb_per_second: float, source: str, **teraflops: float) -> Accelerator:
    # Data sheets count memory in units of 2^30 and call them GB, bandwidth in units of 10^9.
    rates = MappingProxyType({kind: rate * TERA for kind, rate in teraflops.items()})
    return Accelerator(name, gigabytes * GIB, gb_per_second * GB, rates, source)


CATALOGUE: Mapping[str, Accelerator] = MappingProxyType(
    {
        accelerator.name: accelerator
        for accelerator in (
            _nvidia("A10", 24, 600, "NVIDIA A10 data sheet, 2021", bf16=125, int8=250, fp32=31.2),
            _nvidia("L4", 24, 300, "NVIDIA L4 data sheet, 2023", bf16=121, fp8=242, int8=242, fp32=30.3),
            _nvidia("L40S", 48, 864, "NVIDIA L40S data sheet, 2023", bf16=362, fp8=733, int8=733, fp32=91.6),
            _nvidia("A100-40GB", 40, 1555, "NVIDIA A100 data sheet, 2021", bf16=312, int8=624, fp32=19.5),
            _nvidia("A100-80GB", 80, 2039, "NVIDIA A100 data sheet (SXM), 2021", bf16=312, int8=624, fp32=19.5),
            _nvidia("H100", 80, 3350, "NVIDIA H100 data sheet (SXM), 2023", bf16=989, fp8=1979, int8=1979, fp32=67),
            _nvidia(
                "H100-PCIe", 80, 2000, "NVIDIA H100 data sheet (PCIe), 2023", bf16=756, fp8=1513, int8=1513, fp32=51
            ),
            _nvidia("H200", 141, 4800, "NVIDIA H200 data sheet (SXM), 2024", bf16=989, fp8=1979, int8=1979, fp32=67),
            _nvidia("B200", 180, 8000, "NVIDIA DGX B200 data sheet, an eighth, 2024", bf16=2250, fp8=4500, fp32=75),
            _nvidia(
                "MI300X", 192, 5300, "AMD Instinct MI300X data sheet, 2023", bf16=1307, fp8=2615, int8=2615, fp32=163
            ),
        )
    }
)
"""The B200's and the MI300X's memory is what one device of a board offers. A CPU has no entry: see `cpu`."""


CPU = "CPU"
"""Name of a CPU, whose memory is a number that somebody writes."""


def cpu(memory: int, bandwidth: float | None = None, flops: float | None = None) -> Accelerator:
    """A CPU: memory is what the pod may use; bandwidth and rate are known only where somebody has measured them."""
    rates = {} if flops is None else {"fp32": flops}
    return Accelerator(CPU, memory, bandwidth, MappingProxyType(rates), "given")


def find(name: str) -> Accelerator:
    """An accelerator by its name, in any case and with or without its maker.

    Raises:
        KeyError: none of that name; the message lists all.
    """
    wanted = name.lower().removeprefix("nvidia-").removeprefix("amd-").removeprefix("nvidia ").removeprefix("amd ")
    aliases = {"a100": "a100-80gb", "h100-sxm": "h100", "h100-80gb": "h100", "h200-sxm": "h200", "h200-141gb": "h200"}
    wanted = aliases.get(wanted, wanted)
    for known, accelerator in CATALOGUE.items():
        if known.lower() == wanted:
            return accelerator
    raise KeyError(f"no accelerator is called {name!r}; there are {', '.join(CATALOGUE)} and CPU")
