"""All cases."""

from __future__ import annotations

from collections.abc import Iterator

from paceline_runtime.kernels import gpu
from paceline_runtime.kernels.check.attention_cases import attention_cases
from paceline_runtime.kernels.check.layer_cases import layer_cases
from paceline_runtime.kernels.check.parity import Case
from paceline_runtime.kernels.check.sampling_cases import sampling_cases


def parity_cases(*, full: bool) -> Iterator[Case]:
    """Every kernel beside its reference; `full` is some ten times as many, for a GPU or a long run."""
    yield from attention_cases(gpu, full=full)
    yield from layer_cases(gpu, full=full)
    yield from sampling_cases(gpu, full=full)
