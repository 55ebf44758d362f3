"""Results on their way from the device to the host: copied in the order of its work, waited for only when needed."""

from __future__ import annotations

from collections.abc import Callable

import torch

Awaited = Callable[[], torch.Tensor]
"""Waits for the device, then gives a tensor in host memory."""


def read_back(result: torch.Tensor) -> Awaited:
    """Begin to copy a result into page-locked memory (PyTorch keeps it and hands it out again)."""
    if not result.is_cuda:
        return lambda: result
    host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
    host.copy_(result, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def wait() -> torch.Tensor:
        event.synchronize()
        return host

    return wait
