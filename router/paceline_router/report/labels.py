"""Label values that clients choose, held down to a number."""

from __future__ import annotations

from typing import Final

OTHER: Final = "_other"
NONE: Final = "_none"
MOST: Final = 20


class BoundedCounters:
    """A few counters for each of the first `MOST` values by its name, and for all further ones together.

    A value keeps its place while it is used, so that its series never jumps. What was not used between two calls of
    `forget_unused` gives its place up: names that somebody made up once do not hold it for ever.
    """

    __slots__ = ("_before", "_width", "rows")

    def __init__(self, width: int) -> None:
        self._width = width
        self._before: dict[str, tuple[int, ...]] = {}
        self.rows: dict[str, list[int]] = {}
        """By label value. A caller in a hurry looks here first."""

    def row(self, value: str) -> list[int]:
        """The counters of a value; empty stands for a request that named none."""
        name = value or NONE
        found = self.rows.get(name)
        if found is None:
            if name != NONE and len(self.rows.keys() - {NONE, OTHER}) >= MOST:
                name = OTHER
            found = self.rows.setdefault(name, [0] * self._width)
        return found

    def forget_unused(self) -> None:
        """Give up the places of values whose counters stand where they stood at the last call."""
        for name, before in self._before.items():
            if name not in (NONE, OTHER) and tuple(self.rows[name]) == before:
                del self.rows[name]
        self._before = {name: tuple(row) for name, row in self.rows.items()}
