"""Progress lines: whatever takes longer than two seconds says what it is doing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

Progress = Callable[[str], None]
"""Takes one line of text, without a line end."""

INTERVAL_SECONDS = 2.0


def silent(line: str) -> None:
    """A `Progress` that says nothing."""


class StreamProgress:
    """A `Progress` that writes `[ 12.3 s] text` lines; repeated lines are written once."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._begin = clock()
        self._last = ""

    def __call__(self, line: str) -> None:
        if line == self._last:
            return
        self._last = line
        # Looked up at each call: pytest and click replace sys.stderr.
        stream = self._stream or sys.stderr
        stream.write(f"[{self._clock() - self._begin:6.1f} s] {line}\n")
        stream.flush()


def ticks(timeout: float, interval: float = 0.1) -> Iterator[float]:
    """Yield the seconds waited so far, every `interval` seconds, until `timeout` has passed."""
    begin = time.monotonic()
    while True:
        waited = time.monotonic() - begin
        yield waited
        if waited >= timeout:
            return
        time.sleep(interval)


class Waiting:
    """Says what is being waited for: at once when that changes, else from the second second on and ever less often."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._next = INTERVAL_SECONDS
        self._said = ""

    def __call__(self, waited: float, what: str) -> None:
        if waited >= self._next or (self._said and what != self._said and waited >= INTERVAL_SECONDS):
            self._progress(f"{what} ({waited:.0f} s)")
            self._next = waited + max(INTERVAL_SECONDS, waited / 3)
            self._said = what
