"""Who was there when: latencies of each shape's requests beside the shapes that were in flight when they came.

One recorder for each pool of a service. It answers one question, for `split`: what happens to the others while more
of a shape is in flight than usual? Usual is the shape's mean share of what is in flight, so in a quiet pool "more
than usual" is "any", and in a busy one, where some of every shape is always there, it is still about half of the
time. Counts only, in a bounded number of cells: the shapes of which there was more than usual (as bits), load (in
powers of two), own shape, latency (in steps of 9 %). Two halves of a window, so that what is old falls out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from paceline_router.shape.histogram import bucket_of
from paceline_router.table.policy import SHAPES

HALF_SECONDS: Final = 1800.0
_SHAPE_BITS: Final = 3
_BUCKET_BITS: Final = 8
_PRESENT_BITS: Final = len(SHAPES)
_PRESENT: Final = (1 << _PRESENT_BITS) - 1
_HIGHEST_LOAD: Final = 15
_PLACES: Final = tuple((shape, 1 << shape) for shape in range(len(SHAPES)))
_USUAL_EVERY: Final = 8
_USUAL_STEP: Final = 0.02


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a latency was counted.

    Attributes:
        shape: of the request itself.
        present: bit by shape, set where more of that shape than usual was in flight when this one came.
        load: requests in flight when it came, as the number's bit length.
        bucket: of the latency.
    """

    shape: int
    present: int
    load: int
    bucket: int


@dataclass(frozen=True, slots=True)
class Half:
    """What one half of the window saw. Latencies are counted by cell.

    Attributes:
        requests, tokens: by shape; tokens are prompt and output together.
        ttft: milliseconds.
        tpot: tenths of milliseconds.
    """

    requests: tuple[int, ...]
    tokens: tuple[int, ...]
    ttft: Mapping[Cell, int]
    tpot: Mapping[Cell, int]


@dataclass(frozen=True, slots=True)
class Window:
    """The older and the newer half, and the seconds that both together took."""

    halves: tuple[Half, ...]
    seconds: float


class _Counts:
    __slots__ = ("began", "requests", "tokens", "tpot", "ttft")

    def __init__(self, began: float) -> None:
        self.began = began
        self.requests = [0] * len(SHAPES)
        self.tokens = [0] * len(SHAPES)
        self.ttft: dict[int, int] = {}
        self.tpot: dict[int, int] = {}

    def half(self) -> Half:
        return Half(tuple(self.requests), tuple(self.tokens), _cells(self.ttft), _cells(self.tpot))


def _cells(counts: Mapping[int, int]) -> dict[Cell, int]:
    return {
        Cell(
            shape=(key >> _BUCKET_BITS) & ((1 << _SHAPE_BITS) - 1),
            present=(key >> (_BUCKET_BITS + _SHAPE_BITS)) & _PRESENT,
            load=key >> (_BUCKET_BITS + _SHAPE_BITS + _PRESENT_BITS),
            bucket=key & ((1 << _BUCKET_BITS) - 1),
        ): count
        for key, count in list(counts.items())
    }


class Interference:
    """The recorder of one pool."""

    __slots__ = ("_in_flight", "_new", "_old", "_running", "_turns", "_until", "_usual")

    def __init__(self, now: float) -> None:
        self._running = [0] * len(SHAPES)
        self._in_flight = 0
        self._usual = [0.0] * len(SHAPES)
        self._turns = 0
        self._new = _Counts(now)
        self._old: _Counts | None = None
        self._until = now + HALF_SECONDS

    def enter(self, shape: int) -> int:
        """A request goes to a replica. What it returns belongs to `leave`."""
        in_flight = self._in_flight
        running = self._running
        context = 0
        if in_flight:
            usual = self._usual
            for other, bit in _PLACES:
                if running[other] > usual[other] * in_flight:
                    context |= bit
            load = in_flight.bit_length()
            context |= (load if load < _HIGHEST_LOAD else _HIGHEST_LOAD) << _PRESENT_BITS
            self._turns += 1
            if not self._turns % _USUAL_EVERY:
                for other, _ in _PLACES:
                    usual[other] += _USUAL_STEP * (running[other] / in_flight - usual[other])
        self._in_flight = in_flight + 1
        running[shape] += 1
        return context

    def leave(self, shape: int, context: int, ttft: float | None, tpot: float | None, tokens: int, now: float) -> None:
        """It has ended.

        Args:
            shape: its own.
            context: what `enter` returned.
            ttft: seconds to its first token; None when not known, as for an answer that is not streamed.
            tpot: seconds per token after that; None when not known.
            tokens: prompt and output, as far as known.
            now: seconds.
        """
        self._in_flight -= 1
        self._running[shape] -= 1
        if now >= self._until:
            self._turn(now)
        counts = self._new
        counts.requests[shape] += 1
        counts.tokens[shape] += tokens
        key = (context << _SHAPE_BITS | shape) << _BUCKET_BITS
        if ttft is not None:
            place = key | bucket_of(int(1e3 * ttft))
            counts.ttft[place] = counts.ttft.get(place, 0) + 1
        if tpot is not None:
            place = key | bucket_of(int(1e4 * tpot))
            counts.tpot[place] = counts.tpot.get(place, 0) + 1

    def _turn(self, now: float) -> None:
        # After a long silence what is there is older than any half.
        self._old = self._new if now < self._until + HALF_SECONDS else None
        self._new = _Counts(now)
        self._until = now + HALF_SECONDS

    def window(self, now: float) -> Window:
        """What `split.advise` judges. Changes nothing, so another thread may ask."""
        if now < self._until:
            recent: tuple[_Counts | None, ...] = (self._old, self._new)
        else:
            recent = (self._new,) if now < self._until + HALF_SECONDS else ()
        halves = [half for half in recent if half is not None]
        return Window(tuple(half.half() for half in halves), now - halves[0].began if halves else 0.0)
