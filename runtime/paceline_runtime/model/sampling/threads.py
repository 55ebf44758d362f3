"""How many threads the sampler uses: one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use the calling thread only.

    The sampler is a chain of short loops. Sharing one of them out saves less than waiting for the other thread costs,
    and many times less when something else runs on the processors. Switching costs nothing: torch then starts none.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
