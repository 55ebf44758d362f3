"""One timed run: the load generator beside a router, and what the router used meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from paceline_bench.comparison import Sample
from paceline_bench.processes import TICKS, ProcessGroup, rss_bytes

from .native import Programs, cores, pinned
from .works import Work

OUTCOMES = ("answered", "refused", "failed", "error_events", "cut", "no_answer", "open")
GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class Counted:
    """What the load generator saw. Times are microseconds.

    Attributes:
        sent: requests, warm-up and end included; equal to the sum of `outcomes`.
        outcomes: each request in exactly one of `OUTCOMES`.
        requests: answered within the timed part.
        events: of streams, within the timed part.
        seconds: of the timed part.
        late: requests of an open loop that found every connection busy.
    """

    sent: int
    outcomes: dict[str, int]
    requests: int
    events: int
    seconds: float
    late: int
    p50_us: int
    p99_us: int
    first_p50_us: int
    first_p99_us: int
    first_trouble: str

    @classmethod
    def read(cls, line: str, seconds: float) -> Self:
        """From the generator's last line."""
        raw: dict[str, Any] = json.loads(line)
        outcomes = {name: raw.pop(name) for name in OUTCOMES}
        return cls(outcomes=outcomes, seconds=seconds, **raw)

    @property
    def bad(self) -> int:
        """Requests that were not answered."""
        return self.sent - self.outcomes["answered"]


@dataclass(frozen=True)
class Run:
    """One timed run of one router."""

    counted: Counted
    cpu_seconds: float

    def sample(self, work: Work) -> Sample:
        """As named in the results."""
        c = self.counted
        if work.streamed:
            cpu = {"cpu_us_per_chunk": self.cpu_seconds * 1e6 / max(1, c.events)}
            rate = {"chunks_per_s": c.events / c.seconds}
        else:
            cpu = {"cpu_us_per_request": self.cpu_seconds * 1e6 / max(1, c.requests)}
            rate = {"requests_per_s": c.requests / c.seconds}
        return Sample(cpu | rate | {"latency_ms_p50": c.p50_us / 1000, "latency_ms_p99": c.p99_us / 1000})


def run(
    programs: Programs,
    requests: Path,
    ports: Sequence[int],
    group: ProcessGroup | None,
    *,
    connections: int,
    warm: float,
    seconds: float,
    rate: float = 0.0,
    spread: float = 0.0,
    most: int = 0,
    seed: int = 1,
) -> Run:
    """Load the ports for so long, and no longer.

    Args:
        programs: what was built.
        requests: file of requests.
        ports: where they go, by connection.
        group: whose CPU counts; `None`: nobody's.
        connections: at once.
        warm: seconds before the timed part.
        seconds: of the timed part.
        rate: requests a second at random times; 0: the next request follows the last answer.
        spread: seconds over which the connections begin.
        most: requests in all; 0: no bound but the time.
        seed: of the random times.
    """
    options = ["-c", str(connections), "-w", str(warm), "-t", str(seconds), "-r", str(rate), "-s", str(spread)]
    options += ["-n", str(most), "-g", str(GRACE_SECONDS), "-i", str(seed)]
    command = pinned([str(programs.load), *options, str(requests), *map(str, ports)], cores()[1])
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        _expect(process.stdout.readline(), "begin")
        used, began = cpu_seconds(group) if group else 0.0, time.monotonic()
        _expect(process.stdout.readline(), "end")
        used, ended = (cpu_seconds(group) if group else 0.0) - used, time.monotonic()
        return Run(Counted.read(process.stdout.readline(), ended - began), used)
    finally:
        process.kill()
        process.wait()


def _expect(line: str, word: str) -> None:
    if line != f"{word}\n":
        raise RuntimeError(f"the load generator said {line!r} where {word} was due")


def family(pid: int) -> dict[int, list[str]]:
    """A process and all that descend from it, whatever their session, with the fields of `/proc/PID/stat` (Linux)."""
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stats[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
    found: dict[int, list[str]] = {}
    new = [pid]
    while new:
        found |= {one: stats[one] for one in new if one in stats}
        new = [one for one, fields in stats.items() if int(fields[1]) in new and one not in found]
    return found


def cpu_seconds(group: ProcessGroup) -> float:
    """User and system time of the router's processes, all threads."""
    return sum(int(fields[11]) + int(fields[12]) for fields in family(group.pid).values()) / TICKS


def memory_mib(group: ProcessGroup) -> float:
    """Resident memory of the router's processes."""
    return sum(rss_bytes(pid) or 0 for pid in family(group.pid)) / (1 << 20)
