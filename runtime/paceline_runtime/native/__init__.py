"""The CPU kernels: one C++ call runs a whole step of the network.

`PACELINE_NATIVE=0` leaves them out and `PACELINE_NATIVE_ISA` chooses among `avx512bf16`, `avx512` and `avx2`. Without a
compiler, or on another processor, the PyTorch reference in `model/` serves.
"""

from __future__ import annotations

import functools
import os

from .build import NativeUnavailable, cache_root, library_path, pick_isa
from .library import Library, open_library

__all__ = ["Library", "NativeUnavailable", "cache_root", "load"]


def load() -> Library:
    """The kernels for this processor; compiled at the first call on a machine.

    Raises:
        NativeUnavailable: with the reason, if they are switched off or cannot be had.
    """
    if os.environ.get("PACELINE_NATIVE", "1") == "0":
        raise NativeUnavailable("switched off by PACELINE_NATIVE=0")
    return _load(pick_isa())


@functools.cache
def _load(isa: str) -> Library:
    path = library_path(isa)
    try:
        return open_library(path, isa)
    except (OSError, AttributeError) as error:
        raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error
