"""The parts, one after the other, each in a process of its own: none takes another's time, or breaks it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .record import Check, Found, read

GRACE_SECONDS = 5.0
"""Between the time that a part is told and the time at which it is ended."""
SHORTEST_SECONDS = 15.0
"""A part with less than this is not begun: it would not come to say anything."""
TOTAL_SECONDS = 345.0
"""For all parts, from the beginning of the script on: it is over within six minutes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part and the seconds it may take."""

    name: str
    seconds: float


PARTS = (
    Part("kernels", 80),
    Part("engine", 70),
    Part("logits", 40),
    Part("attention", 35),
    Part("decode", 110),
)
"""What a part leaves over is nobody's; the last ones get less if there is less left of `TOTAL_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended.

    Attributes:
        ended: by itself and without an error; else `why` says what happened.
    """

    part: Part
    seconds: float
    ended: bool
    why: str
    found: Found

    @property
    def wrong(self) -> list[Check]:
        """Checks that are not as they should be."""
        return [check for check in self.found.checks if not check.good]


def run_part(part: Part, folder: Path, command: Sequence[str], grace: float = GRACE_SECONDS) -> Outcome:
    """Run one part.

    Args:
        folder: where its lines and its output go.
        command: what is run; it is given the name, the file for its lines and its seconds.
    """
    lines, log = folder / f"{part.name}.jsonl", folder / f"{part.name}.log"
    lines.unlink(missing_ok=True)
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, part.name, "--lines", str(lines), "--seconds", str(part.seconds)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(part.seconds + grace)
            why = "" if code == 0 else f"it ended with {code}: {_last_line(log)}"
        except subprocess.TimeoutExpired:
            why = f"it was ended after {part.seconds + grace:.0f} s"
        finally:
            if process.poll() is None:
                # With whatever it started; also where this process is being ended itself.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Outcome(part, time.monotonic() - started, not why, why, read(lines))


def run_parts(
    parts: Sequence[Part],
    folder: Path,
    tell: Callable[[Outcome], None],
    command: Sequence[str] | None = None,
    *,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:
    """Run parts in order; each outcome is told as soon as it is there.

    Args:
        seconds: for all of them together; those for which too little is left are not begun.
        clock: seconds, from anywhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = clock() + seconds
    outcomes = []
    for part in parts:
        given = Part(part.name, min(part.seconds, end - clock() - GRACE_SECONDS))
        if given.seconds >= min(part.seconds, SHORTEST_SECONDS):
            asked = command or (sys.executable, "-m", "paceline_bench.gpu.command", "part")
            outcome = run_part(given, folder, asked)
        else:
            outcome = Outcome(part, 0.0, False, "it was left off: no time", Found([], [], []))
        outcomes.append(outcome)
        tell(outcome)
    return outcomes


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
