"""What the kernels are compiled for."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
import triton

INTERPRETED: Final[bool] = triton.knobs.runtime.interpret
"""The kernels run in Triton's interpreter, on tensors in host memory."""


@cache
def converts_e4m3() -> bool:
    """Whether the device itself converts from e4m3: compute capability 8.9 or later."""
    return bool(triton.runtime.driver.active.get_current_target().arch >= 89)


def kv_format(dtype: torch.dtype) -> str:
    """`FORMAT` of the attention kernels for a cache of this type."""
    if dtype == torch.int8:
        return "int8"
    if dtype != torch.float8_e4m3fn:
        return "plain"
    return "e4m3" if not INTERPRETED and converts_e4m3() else "e4m3_bits"
