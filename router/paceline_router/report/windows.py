"""What happened lately, in slots of time, so that the operator can ask about any stretch of the last hours."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline_router.report.cells import Cell, Key, Reading, Row, Stretch

SLOT_SECONDS = 10.0
RECENT_SLOTS = 60
OLD_SLOTS = 240
FOLD = 6
"""Slots of ten seconds are kept for ten minutes; then six of them become one, and those are kept for four hours."""

Place = tuple[Key, int]
"""A key and a shape."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A closed stretch of time. Times are Unix seconds."""

    begin: float
    end: float
    rows: Mapping[Place, Row]
    parts: int = 1
    """Of how many it was made."""


@dataclass(frozen=True, slots=True)
class _State:
    """All of it in one value, which is replaced as a whole: a reader in another thread sees no half of a change."""

    old: tuple[Slot, ...]
    recent: tuple[Slot, ...]
    readings: Mapping[Place, Reading]
    begin: float


class Windows:
    """The slots of one service. `close` belongs to the data path's thread, `since` may be called in any."""

    def __init__(self, now: float) -> None:
        self._state = _State((), (), {}, now)

    def close(self, cells: Mapping[Key, Sequence[Cell]], now: float) -> None:
        """End the current slot."""
        state = self._state
        readings = {place: Reading(cell) for place, cell in _used(cells)}
        recent = (*state.recent, Slot(state.begin, now, _grown(readings, state.readings)))
        old = state.old
        if len(recent) > RECENT_SLOTS:
            # One at a time: this is the thread of the data path, and six at once would be felt.
            if old and old[-1].parts < FOLD:
                old = (*old[:-1], _joined(old[-1], recent[0]))
            else:
                old = (*old, recent[0])[-OLD_SLOTS:]
            recent = recent[1:]
        self._state = _State(old, recent, readings, now)

    def since(self, cells: Mapping[Key, Sequence[Cell]], when: float, now: float) -> tuple[float, dict[Place, Stretch]]:
        """What happened after `when`, in whole slots: nothing from before it is in it.

        Returns:
            When the first of the slots begins, and what happened from then until now.
        """
        state = self._state
        slots = [slot for slot in (*state.old, *state.recent) if slot.begin >= when]
        if state.begin >= when:
            readings = {place: Reading(cell) for place, cell in _used(cells)}
            slots.append(Slot(state.begin, now, _grown(readings, state.readings)))
        return (slots[0].begin if slots else now), _sums(slots)


def _used(cells: Mapping[Key, Sequence[Cell]]) -> Iterator[tuple[Place, Cell]]:
    for key, shapes in list(cells.items()):
        for shape, cell in enumerate(shapes):
            if any(cell.outcomes):
                yield (key, shape), cell


def _grown(readings: Mapping[Place, Reading], earlier: Mapping[Place, Reading]) -> dict[Place, Row]:
    rows = {place: reading.since(earlier.get(place)) for place, reading in readings.items()}
    return {place: row for place, row in rows.items() if row is not None}


def _joined(first: Slot, second: Slot) -> Slot:
    """Two neighbouring slots as one."""
    rows = dict(first.rows)
    for place, row in second.rows.items():
        earlier = rows.get(place)
        if earlier is not None:
            both = Stretch()
            both.add(earlier)
            both.add(row)
            row = both.row()
        rows[place] = row
    return Slot(first.begin, second.end, rows, first.parts + second.parts)


def _sums(slots: Iterable[Slot]) -> dict[Place, Stretch]:
    """What happened in all of them together, for a thread that others must not wait for."""
    sums: dict[Place, Stretch] = {}
    for slot in slots:
        time.sleep(0)
        for place, row in slot.rows.items():
            stretch = sums.get(place)
            if stretch is None:
                stretch = sums[place] = Stretch()
            stretch.add(row)
    return sums
