"""Which replica has which number in the prefix index."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from .load import ReplicaLoad
from .native import make_index
from .prefix import SLOTS, PrefixIndex

UNSEATED, SEATLESS = -1, -2
"""`ReplicaLoad.slot` of one that has no number yet, and of one for which none is left."""

NARROW: Final = 64
"""Replicas up to which the index needs a third of the memory."""

L = TypeVar("L", bound=ReplicaLoad)


class Seats(Generic[L]):
    """The index, and who is who in it.

    Attributes:
        loads: by slot.
        serials: by slot, how many had it before and with its present holder: tells a new holder from an old one.
    """

    __slots__ = ("_blocks", "_rooms", "_width", "index", "loads", "serials")

    def __init__(self, blocks: int, index: PrefixIndex | None = None) -> None:
        self._blocks = blocks
        self._width = NARROW if index is None else SLOTS
        self._rooms: dict[int, int] = {}
        self.index = make_index(blocks, NARROW) if index is None else index
        self.loads: list[L | None] = []
        self.serials: list[int] = []

    def take(self, load: L) -> None:
        """Give a replica a number. One that began anew gets its old number, without what it held."""
        loads = self.loads
        number = next((number for number, there in enumerate(loads) if there is load), None)
        if number is not None:
            self.index.forget(number)
        elif None in loads:
            number = loads.index(None)
        elif len(loads) < SLOTS:
            number = len(loads)
            loads.append(None)
            self.serials.append(0)
            if number >= self._width:
                # Wider from now on; what was known is learnt again.
                self.index = make_index(self._blocks, SLOTS)
                self._width = SLOTS
                for slot, size in self._rooms.items():
                    self.index.room(slot, size)
        else:
            load.slot = SEATLESS
            return
        loads[number] = load
        self.serials[number] += 1
        load.slot = number

    def leave(self, load: L) -> None:
        """The replica is gone: its number is free."""
        for number, there in enumerate(self.loads):
            if there is load:
                self.loads[number] = None
                self.index.forget(number)
                self.room(number, 0)
        load.slot = UNSEATED

    def room(self, slot: int, size: int) -> None:
        """What the replica can hold, in bytes of text; 0 when not known."""
        self._rooms[slot] = size
        self.index.room(slot, size)
