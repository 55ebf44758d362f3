"""What a part of the check writes down, one JSON object on a line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline_bench.results import Row


@dataclass(frozen=True, slots=True)
class Check:
    """Something that is right or not."""

    part: str
    name: str
    good: bool
    words: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a part told before it ended."""

    checks: list[Check]
    rows: list[Row]
    notes: list[str]


class Record:
    """A part's file.

    Args:
        measuring: there is a GPU. Else figures are dropped: what a dry run takes says nothing.
        seconds: that the part should not exceed, from now on.
        clock: seconds, from anywhere.
    """

    def __init__(
        self,
        part: str,
        path: Path,
        *,
        measuring: bool,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.measuring = measuring
        self._part, self._path, self._clock = part, path, clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds until the part should have ended."""
        return self._end - self._clock()

    def check(self, name: str, good: bool, words: str) -> None:
        """Write down whether something is right, and what was seen."""
        self._write("check", asdict(Check(self._part, name, good, words)))

    def figure(self, metric: str, value: float, unit: str, *, system: str = "paceline", **params: Any) -> None:
        """Write down what was measured; nothing in a dry run."""
        if self.measuring:
            self._write("row", asdict(Row(f"gpu-{self._part}", system, metric, value, unit, params)))

    def note(self, words: str) -> None:
        """Write down what else there is to know."""
        self._write("note", f"{self._part}: {words}")

    def _write(self, kind: str, content: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({kind: content}) + "\n")


def read(path: Path) -> Found:
    """What a part wrote; the last line may be cut off."""
    found = Found([], [], [])
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "check" in entry:
            found.checks.append(Check(**entry["check"]))
        elif "row" in entry:
            found.rows.append(Row(**entry["row"]))
        else:
            found.notes.append(entry["note"])
    return found
