"""Memory of our router over very many requests, of which no two are alike in what a router remembers them by."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline_bench.results import Row

from . import timed
from .native import Programs
from .rounds import Figures
from .systems import Running
from .works import UNIQUE, Work, chat_body, http_request, prompt, save

PARTS = 10
RATE_AT_LEAST = 500.0
"""Requests a second below which a part is given up."""
WORK = Work("json", 32, 4096)
METRIC = "rss_mib"
VARIANTS = 256
"""Requests in the file of a part, each sent many times with another number in it."""

DIFFERS = ("tenant", "session", "prompt-version", "text")
"""What has that number, in turns: each a thing of which a router keeps account by its value."""


def write_part(path: Path, part: int) -> None:
    """The requests of one part. Its name is in all that differs, since the numbers begin anew with each part."""
    rng = random.Random(part)
    made = []
    for variant in range(VARIANTS):
        differs = DIFFERS[variant % len(DIFFERS)]
        headers = {
            f"x-paceline-{name}": f"{name[0]}{part}-{UNIQUE if name == differs else variant}" for name in DIFFERS[:-1]
        }
        text = prompt(rng, WORK.body_bytes, f"part {part}, ", unique=differs == "text")
        made.append(http_request(chat_body(text, WORK), headers))
    save(path, made)


def watch(running: Running, requests: int, programs: Programs, folder: Path, figures: Figures) -> Iterator[Row]:
    """Send so many requests and look at resident memory after each tenth.

    A quarter has a tenant never seen before, a quarter a session, a quarter a prompt version, and a quarter a text.
    """
    file = folder / "memory.requests"
    sent = 0
    yield _row(running, sent, timed.memory_mib(running.group))
    for part in range(PARTS):
        most = requests * (part + 1) // PARTS - sent
        if most == 0:
            continue
        write_part(file, part)
        made = timed.run(
            programs,
            file,
            [running.port],
            running.group,
            connections=WORK.connections,
            warm=0.0,
            seconds=max(10.0, most / RATE_AT_LEAST),
            most=most,
        )
        figures.count(running.system.key, made.counted)
        sent += made.counted.sent
        yield _row(running, sent, timed.memory_mib(running.group))


def _row(running: Running, sent: int, mib: float) -> Row:
    params = {"features": running.system.features, "requests": sent, "body_bytes": WORK.body_bytes}
    return Row("memory", running.system.name, METRIC, mib, "MiB", params)


def words(rows: Sequence[Row]) -> list[str]:
    """One line per router: memory by the number of requests, and what it grew by after the first three tenths."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.metric == METRIC:
            found.setdefault(row.params["features"], []).append(row)
    return [f"memory of paceline ({features}): {_line(looks)}" for features, looks in found.items()]


def _line(looks: Sequence[Row]) -> str:
    said = ", ".join(f"{row.value:.1f} MiB after {row.params['requests']:,}" for row in looks)
    if len(looks) <= PARTS:
        return said
    grown = looks[-1].value - looks[3].value
    return f"{said}; {grown:+.1f} MiB from {looks[3].params['requests']:,} requests on"
