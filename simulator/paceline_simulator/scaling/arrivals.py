"""Traces to scale for: read in three forms, cut in halves, and made denser until they need a fleet."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from paceline_simulator.engine import BLOCK_TOKENS, Request
from paceline_simulator.trace import EXPECTED_OUTPUT, TraceError, text_of

PLAIN_COLUMNS = 3
MOST_TOKENS = 10_000_000
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
FORMS = (
    "Write lines of `arrival seconds,input tokens,output tokens`, or Azure's CSV with its heading "
    f"({','.join(AZURE)}), or Mooncake's JSON lines"
)


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

    The plain form has lines of `arrival seconds,input tokens,output tokens`, with or without a heading. Empty lines and
    those that begin with # are left out.

    Raises:
        TraceError: it cannot be read, has another form, or has fewer than two requests.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    parse, lines = _parser(lines)
    made: list[Arrival] = []
    for number, line in lines:
        try:
            made.append(parse(line))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            missing = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise TraceError(f"{path}, line {number}: {missing}. {FORMS}") from error
    if len(made) < 2:
        raise TraceError(f"{path} has too few requests ({len(made)}): a trace needs at least two. {FORMS}")
    made.sort(key=lambda one: one.at)
    start = made[0].at
    return Trace(path.stem, tuple(replace(one, at=one.at - start) for one in made))


Lines: TypeAlias = list[tuple[int, str]]


def _parser(lines: Lines) -> tuple[Callable[[str], Arrival], Lines]:
    """How a line is read, by the first one, and those that are read so."""
    first = lines[0][1].strip() if lines else ""
    if first.startswith("{"):
        return _mooncake, lines
    heading = next(csv.reader([first]), [])
    if heading[:1] == [AZURE[0]]:
        return lambda line: _azure(dict(zip(heading, next(csv.reader([line])), strict=False))), lines[1:]
    if heading and not any(_is_number(word) for word in heading):
        return _plain, lines[1:]
    return _plain, lines


def _azure(row: Mapping[str, str]) -> Arrival:
    stamp = datetime.fromisoformat(row[AZURE[0]][:26]).replace(tzinfo=UTC).timestamp()
    return Arrival(stamp, _tokens(row[AZURE[1]]), _tokens(row[AZURE[2]]))


def _mooncake(line: str) -> Arrival:
    entry = json.loads(line)
    tokens = _tokens(str(entry["input_length"]))
    blocks = tuple(entry["hash_ids"])[: tokens // BLOCK_TOKENS]
    if not all(isinstance(block, int) and block >= 0 for block in blocks):
        raise ValueError("its hash_ids are no list of whole numbers")
    return Arrival(_seconds(str(entry["timestamp"])) / 1000.0, tokens, _tokens(str(entry["output_length"])), blocks)


def _plain(line: str) -> Arrival:
    row = next(csv.reader([line]))
    if len(row) != PLAIN_COLUMNS:
        # Which of them is the arrival would be a guess.
        raise ValueError(f"it has columns to the number of {len(row)}, by commas, and not {PLAIN_COLUMNS}")
    return Arrival(_seconds(row[0]), _tokens(row[1]), _tokens(row[2]))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _seconds(word: str) -> float:
    if not _is_number(word) or not math.isfinite(float(word)) or "_" in word:
        raise ValueError(f"{word.strip()!r} is no time in seconds")
    return float(word)


def _tokens(word: str) -> int:
    """A number of tokens; some traces have none for what was refused, which takes a step all the same."""
    number = float(word) if _is_number(word) and "_" not in word else math.nan
    if not (0 <= number <= MOST_TOKENS and number == int(number)):
        raise ValueError(f"{word.strip()!r} is no number of tokens from 0 to {MOST_TOKENS:,}")
    return max(1, int(number))


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
