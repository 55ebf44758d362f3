"""Traces to scale for: read in three forms, cut in halves, and made denser until they need a fleet."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from paceline_simulator.engine import BLOCK_TOKENS, Request
from paceline_simulator.trace import EXPECTED_OUTPUT, TraceError, text_of

PLAIN_COLUMNS = 3
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace: seconds since its start, tokens, and the names of its prompt's whole blocks."""

    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """A trace with its name."""

    name: str
    arrivals: tuple[Arrival, ...]

    @property
    def length(self) -> float:
        """Seconds until its last arrival."""
        return self.arrivals[-1].at

    def first(self, seconds: float, count: int) -> Trace:
        """Its beginning: what arrives within so many seconds, and of that the first so many requests."""
        return replace(self, arrivals=tuple(one for one in self.arrivals[:count] if one.at <= seconds))


def read(path: Path) -> Trace:
    """Read a trace of Azure's form (CSV), Mooncake's (JSON lines) or the plain one.

    The plain form has lines of `arrival seconds, input tokens, output tokens`, with or without a heading.

    Raises:
        TraceError: it cannot be read, has another form, or has fewer than two requests.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    number = 0
    made: list[Arrival] = []
    parse = _mooncake if first.lstrip().startswith("{") else _azure if first.startswith(AZURE[0]) else _plain
    try:
        for number, arrival in enumerate(parse(lines), 1):  # noqa: B007
            made.append(arrival)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TraceError(
            f"{path}, request {number + 1}: not of a known form; write lines of `arrival seconds,input tokens,"
            f"output tokens`, or Azure's CSV ({','.join(AZURE)}), or Mooncake's JSON lines: {error}"
        ) from error
    if len(made) < 2:
        raise TraceError(f"{path} has {len(made)} requests; a trace needs at least two")
    made.sort(key=lambda one: one.at)
    start = made[0].at
    return Trace(path.stem, tuple(replace(one, at=one.at - start) for one in made))


def _azure(lines: Sequence[str]) -> Iterator[Arrival]:
    for row in csv.DictReader(lines):
        stamp = datetime.fromisoformat(row[AZURE[0]][:26]).replace(tzinfo=UTC).timestamp()
        yield Arrival(stamp, max(1, int(row[AZURE[1]])), max(1, int(row[AZURE[2]])))


def _mooncake(lines: Iterable[str]) -> Iterator[Arrival]:
    for line in lines:
        if line.strip():
            entry = json.loads(line)
            tokens = max(1, int(entry["input_length"]))
            blocks = tuple(entry["hash_ids"])[: tokens // BLOCK_TOKENS]
            yield Arrival(entry["timestamp"] / 1000.0, tokens, max(1, int(entry["output_length"])), blocks)


def _plain(lines: Sequence[str]) -> Iterator[Arrival]:
    for number, row in enumerate(csv.reader(line for line in lines if line.strip())):
        if len(row) != PLAIN_COLUMNS:
            raise ValueError(f"{len(row)} columns, not {PLAIN_COLUMNS}")  # whose arrival would be a guess
        try:
            at = float(row[0])
        except ValueError:
            if number == 0:
                continue  # a heading
            raise
        yield Arrival(at, max(1, int(row[1])), max(1, int(row[2])))


def requests(trace: Trace, copies: int, shift: float, seed: int) -> list[Request]:
    """The trace's requests, each `copies` times, later by up to `shift` seconds at random.

    Copies of a prompt share no blocks with each other: they stand for other users.
    """
    chance = random.Random(seed)
    drawn = [
        (one.at + chance.uniform(0.0, shift), one, copy * 10_000_000)
        for one in trace.arrivals
        for copy in range(copies)
    ]
    drawn.sort(key=lambda entry: entry[0])
    made = []
    for number, (at, one, other) in enumerate(drawn):
        blocks = tuple(block + other for block in one.blocks) if other else one.blocks
        made.append(Request(number, at, one.prompt, one.output, blocks, text_of(blocks), None, EXPECTED_OUTPUT))
    return made
