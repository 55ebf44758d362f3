"""The last sentence of a process that fails, where people and Kubernetes look for it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

ENV_TERMINATION_LOG: Final = "PACELINE_TERMINATION_LOG"
DEFAULT_PATH: Final = Path("/dev/termination-log")
_LIMIT: Final = 4096
"""Kubernetes keeps this many bytes."""


def say_last_words(message: str) -> None:
    """Write `message` as the last line of stderr and as the container's termination message."""
    line = " ".join(message.split())
    print(f"paceline: {line}", file=sys.stderr, flush=True)
    named = os.environ.get(ENV_TERMINATION_LOG)
    path = Path(named) if named else DEFAULT_PATH
    if not named and not (path.is_file() and os.access(path, os.W_OK)):
        return
    # The sentence is on stderr already; a file that cannot be written must not hide it behind a traceback.
    with contextlib.suppress(OSError):
        path.write_bytes(line.encode()[:_LIMIT])
