"""What is kept of the requests of one pool, revision and shape, and how it is cut into stretches of time."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from paceline_crds.sketch import BUCKETS, Sketch
from paceline_router.report.histogram import DURATION, TPOT, TTFT, FineHistogram

OUTCOMES: Final = ("2xx", "3xx", "4xx", "5xx", "cancelled", "broken_stream")
"""Status class of the answer; `cancelled`: the client left; `broken_stream`: ended by an error event after bytes
were passed on.
"""

OUTCOME_INDEX: Final[Mapping[str, int]] = {outcome: index for index, outcome in enumerate(OUTCOMES)}

Key: TypeAlias = tuple[str, str]
"""Pool and revision; empty where a request met neither, or where it is not known."""

SIGNALS: Final = ("ttft", "tpot", "duration")

_STEP: Final = 70
_PAIR = struct.Struct("<HI")


class Cell:
    """Counters that only grow."""

    __slots__ = ("duration", "met", "missed", "outcomes", "output_tokens", "prompt_tokens", "tpot", "ttft")

    def __init__(self) -> None:
        self.outcomes = [0] * len(OUTCOMES)
        self.ttft = FineHistogram(TTFT)
        self.tpot = FineHistogram(TPOT)
        self.duration = FineHistogram(DURATION)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.met = 0
        self.missed = 0


class Reading:
    """A cell as it was at one moment. Two of them make what happened in between."""

    __slots__ = ("met", "missed", "outcomes", "output_tokens", "prompt_tokens", "times")

    def __init__(self, cell: Cell) -> None:
        self.outcomes = tuple(cell.outcomes)
        self.prompt_tokens = cell.prompt_tokens
        self.output_tokens = cell.output_tokens
        self.met = cell.met
        self.missed = cell.missed
        self.times = (cell.ttft.counts[:], cell.tpot.counts[:], cell.duration.counts[:])

    def since(self, earlier: Reading | None) -> Row | None:
        """What came after `earlier` (None: after the beginning); None when nothing did."""
        if earlier is None:
            earlier = _NOTHING
        if self.outcomes == earlier.outcomes:
            return None
        ttft, tpot, duration = (_packed(_grown(new, old)) for new, old in zip(self.times, earlier.times, strict=True))
        return Row(
            outcomes=tuple(new - old for new, old in zip(self.outcomes, earlier.outcomes, strict=True)),
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            output_tokens=self.output_tokens - earlier.output_tokens,
            met=self.met - earlier.met,
            missed=self.missed - earlier.missed,
            times=(ttft, tpot, duration),
        )


class Row(NamedTuple):
    """What happened in one cell in a stretch of time, in little memory: thousands of these are kept.

    Attributes:
        times: of each of `SIGNALS`, buckets and their counts.
    """

    outcomes: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    met: int
    missed: int
    times: tuple[bytes, bytes, bytes]


class Stretch:
    """Rows added up."""

    __slots__ = ("met", "missed", "outcomes", "output_tokens", "prompt_tokens", "times")

    def __init__(self) -> None:
        self.outcomes = [0] * len(OUTCOMES)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.met = 0
        self.missed = 0
        self.times = (Sketch(), Sketch(), Sketch())

    def add(self, row: Row) -> None:
        """Add what happened in the same cell at another time."""
        self.outcomes = [mine + its for mine, its in zip(self.outcomes, row.outcomes, strict=True)]
        self.prompt_tokens += row.prompt_tokens
        self.output_tokens += row.output_tokens
        self.met += row.met
        self.missed += row.missed
        for sketch, packed in zip(self.times, row.times, strict=True):
            sketch.add(_PAIR.iter_unpack(packed))

    def row(self) -> Row:
        """The sum as one row."""
        ttft, tpot, duration = (_packed(sketch.counts.items()) for sketch in self.times)
        numbers = (self.prompt_tokens, self.output_tokens, self.met, self.missed)
        return Row(tuple(self.outcomes), *numbers, (ttft, tpot, duration))


_NOTHING: Final = Reading(Cell())


def _packed(counts: Iterable[tuple[int, int]]) -> bytes:
    return b"".join([_PAIR.pack(bucket, count) for bucket, count in counts])


def _grown(new: list[int], old: list[int]) -> Iterator[tuple[int, int]]:
    """Buckets that have more now, and how much. Whole decades that stood still are passed over at a comparison each."""
    for begin in range(0, BUCKETS, _STEP):
        now, then = new[begin : begin + _STEP], old[begin : begin + _STEP]
        if now != then:
            for bucket, (count, before) in enumerate(zip(now, then, strict=True), begin):
                if count != before:
                    yield bucket, count - before
