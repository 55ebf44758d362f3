"""`--trace FILE`: what each step did, for chrome://tracing and Perfetto (JSON array form of the trace event format).

The array is closed at the end. The format does not ask for that: a trace of a process that was killed can be read all
the same.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from paceline_runtime.config import ConfigError
from paceline_runtime.messages import EngineStats, StepPhases

from .scheduler import Batch

MAX_BYTES: Final = 1024 * 1024 * 1024
MAX_SEQS: Final = 256
"""Sequences that are listed one by one in a step; of the rest there is the count."""

_ORDER: Final = ("prepare", "sync", "forward", "sample", "update")

log = logging.getLogger(__name__)


def open_trace(path: Path) -> StepTrace:
    """Begin a trace.

    Raises:
        ConfigError: if the file cannot be made.
    """
    try:
        return StepTrace(path)
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be written: {error.strerror or error}") from error


class StepTrace:
    """Writes one file, and stops (saying so once) when it has become too large or the disk is full.

    Raises (from the constructor):
        OSError: if the file cannot be made.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._left = max_bytes
        self._file = path.open("wb", buffering=0)
        self._write(b"[\n")
        self._event({"ph": "M", "name": "process_name", "args": {"name": "paceline engine core"}})
        for lane, name in enumerate(("steps", "phases"), 1):
            self._event({"ph": "M", "name": "thread_name", "tid": lane, "args": {"name": name}})

    def step(
        self, number: int, started: float, batch: Batch, starts: Sequence[int], phases: StepPhases, stats: EngineStats
    ) -> None:
        """Enter one step.

        Args:
            number: of the step.
            started: monotonic seconds.
            starts: for each sequence of the batch, how many of its tokens were in the cache before the step.
        """
        decodes = sum(1 for seq in batch.seqs if seq.count == 1 and seq.samples)
        listed = [
            {"id": seq.request.request_id, "new": seq.count, "context": start}
            for seq, start in zip(batch.seqs[:MAX_SEQS], starts, strict=False)
        ]
        total = phases.prepare + phases.sync + phases.forward + phases.sample + phases.update
        self._event(
            {
                "ph": "X",
                "name": f"step {number}",
                "tid": 1,
                "ts": _micros(started),
                "dur": _micros(total),
                "args": {
                    "tokens": batch.num_tokens,
                    "sequences": len(batch.seqs),
                    "decodes": decodes,
                    "prefills": len(batch.seqs) - decodes,
                    "batch": listed,
                    "deliver of the step before (s)": phases.deliver,
                },
            }
        )
        at = started
        for name in _ORDER:
            seconds = getattr(phases, name)
            if seconds > 0:
                self._event({"ph": "X", "name": name, "tid": 2, "ts": _micros(at), "dur": _micros(seconds)})
            at += seconds
        self._event(
            {
                "ph": "C",
                "name": "requests",
                "ts": _micros(started),
                "args": {"running": stats.running, "waiting": stats.waiting},
            }
        )
        self._event({"ph": "C", "name": "kv blocks", "ts": _micros(started), "args": {"used": stats.kv_blocks_used}})

    def close(self) -> None:
        """End the file."""
        self._write(msgspec.json.encode({"pid": os.getpid(), "ph": "M", "name": "trace_end"}) + b"\n]\n")
        self._left = 0
        self._file.close()

    def _event(self, event: dict[str, Any]) -> None:
        self._write(msgspec.json.encode({"pid": os.getpid(), **event}) + b",\n")

    def _write(self, data: bytes) -> None:
        if self._left <= 0:
            return
        self._left -= len(data)
        try:
            self._file.write(data)
        except OSError as error:
            log.error("the trace %s ends here: %s", self._path, error.strerror or error)
            self._left = 0
            return
        if self._left <= 0:
            log.warning("the trace %s ends here: it has its largest size", self._path)


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
