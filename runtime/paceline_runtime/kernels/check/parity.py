"""Running kernels beside their references."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a kernel is from its reference.

    Attributes:
        error: the largest difference; NaN where one side is no number and the other is.
        allowed: the most it may be, from the type's rounding. 0: bit for bit.
    """

    error: float
    allowed: float

    @property
    def good(self) -> bool:
        """Within what is allowed."""
        return self.error <= self.allowed

    @classmethod
    def of(cls, got: torch.Tensor, wanted: torch.Tensor, allowed: float) -> Outcome:
        """Compare all numbers of two tensors."""
        a, b = got.double(), wanted.double()
        difference = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
        return cls(float(difference.max()) if difference.numel() else 0.0, allowed)

    def worse(self, other: Outcome) -> Outcome:
        """The one of two that is further from being good."""
        return other if not other.strain <= self.strain else self

    @property
    def strain(self) -> float:
        """Error as a share of what is allowed; above 1 is a fault."""
        if self.allowed:
            return self.error / self.allowed
        return 0.0 if self.error == 0 else math.inf


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a kernel on a device.

    Attributes:
        name: all that is special about it.
    """

    kernel: str
    dtype: torch.dtype
    name: str
    run: Callable[[torch.device], Outcome]


@dataclass(frozen=True, slots=True)
class Result:
    """A case that was run; `seconds` is of kernel and reference together."""

    case: Case
    outcome: Outcome
    seconds: float


def run(cases: Iterable[Case], device: torch.device) -> Iterator[Result]:
    """Run cases one by one."""
    for case in cases:
        started = time.monotonic()
        outcome = case.run(device)
        yield Result(case, outcome, time.monotonic() - started)


def short(dtype: torch.dtype) -> str:
    """The type's name without the module."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Count:
    """Results of one kernel and type."""

    kernel: str
    dtype: str
    cases: int
    equal: int
    worst: Outcome
    seconds: float


def count(results: Iterable[Result]) -> list[Count]:
    """Sum up by kernel and type, in the order they came."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.case.kernel, short(result.case.dtype)), []).append(result)
    return [
        Count(
            kernel,
            dtype,
            len(group),
            sum(result.outcome.good for result in group),
            max((result.outcome for result in group), key=lambda o: math.inf if o.strain != o.strain else o.strain),
            sum(result.seconds for result in group),
        )
        for (kernel, dtype), group in groups.items()
    ]


def table(counts: Iterable[Count]) -> str:
    """For people."""
    lines = [f"{'kernel':<18}{'type':<10}{'cases':>6}{'equal':>6}{'worst error':>13}{'allowed':>10}{'seconds':>9}"]
    for c in counts:
        lines.append(
            f"{c.kernel:<18}{c.dtype:<10}{c.cases:>6}{c.equal:>6}{c.worst.error:>13.2e}{c.worst.allowed:>10.1e}{c.seconds:>9.1f}"
        )
    return "\n".join(lines)
