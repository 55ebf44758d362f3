"""Which blocks one memory holds. Found by hash; the one unused for longest makes room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from .transfer import Memory, Place


class Entry:
    """One block held."""

    __slots__ = ("index", "pins", "ready")

    def __init__(self, index: int) -> None:
        self.index = index
        self.pins = 0  # preempted requests that count on it
        self.ready = False  # its content has arrived


class Tier:
    """`capacity` blocks of room, numbered from 0.

    Room that is read or written in a step is neither let go nor given away before `commit`.
    """

    def __init__(self, memory: Memory, capacity: int) -> None:
        self.memory = memory
        self.capacity = capacity
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()  # least recently used first
        self._free = list(range(capacity - 1, -1, -1))
        self._arriving: list[bytes] = []
        self._leaving: list[int] = []
        self._busy: set[int] = set()
        self._num_pinned = 0

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._entries)

    @property
    def num_free(self) -> int:
        """Blocks that fit without letting any go."""
        return len(self._free)

    @property
    def num_arriving(self) -> int:
        """Blocks that arrive in this step."""
        return len(self._arriving)

    @property
    def num_available(self) -> int:
        """Blocks that fit at least, where what nobody counts on is let go for them."""
        return self.capacity - self._num_pinned - len(self._busy) - len(self._leaving)

    def __contains__(self, key: bytes) -> bool:
        """Whether it holds this content, or will after this step."""
        return key in self._entries

    def find(self, key: bytes) -> Place | None:
        """Where this content lies, if it can be read now."""
        entry = self._entries.get(key)
        return Place(self.memory, entry.index) if entry is not None and entry.ready else None

    def use(self, key: bytes) -> None:
        """It is read in this step."""
        self._busy.add(self._entries[key].index)
        self._entries.move_to_end(key)

    def reserve(self, key: bytes) -> Place | None:
        """Room for content that arrives in this step; `None` if all is pinned or in use."""
        if not self._free and not self._make_room():
            return None
        entry = self._entries[key] = Entry(self._free.pop())
        self._arriving.append(key)
        self._busy.add(entry.index)
        return Place(self.memory, entry.index)

    def coldest(self) -> bytes | None:
        """The content unused for longest that may go."""
        return next(self._idle(), None)

    def move_away(self, key: bytes) -> Place:
        """It is copied elsewhere in this step and no longer found here; its room is free after the step."""
        entry = self._entries.pop(key)
        self._busy.add(entry.index)
        self._leaving.append(entry.index)
        return Place(self.memory, entry.index)

    def forget(self, key: bytes) -> None:
        """Its content is not what it should be, or never arrived."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._num_pinned -= entry.pins > 0
            self._leaving.append(entry.index)
            if key in self._arriving:
                self._arriving.remove(key)

    def pin(self, key: bytes, count: int) -> None:
        """Add to (or take from) those who count on it."""
        entry = self._entries.get(key)
        if entry is not None:
            self._num_pinned += (entry.pins + count > 0) - (entry.pins > 0)
            entry.pins += count

    def pins(self, key: bytes) -> int:
        """How many count on it."""
        entry = self._entries.get(key)
        return entry.pins if entry is not None else 0

    def pinned(self) -> list[bytes]:
        """Contents that somebody counts on."""
        return [key for key, entry in self._entries.items() if entry.pins]

    def commit(self) -> None:
        """The step's copies are done."""
        for key in self._arriving:
            self._entries[key].ready = True
        self._free += self._leaving
        self._arriving.clear()
        self._leaving.clear()
        self._busy.clear()

    def places(self) -> list[int]:
        """Every place as the books have it: free, leaving or held."""
        return self._free + self._leaving + [entry.index for entry in self._entries.values()]

    def _idle(self) -> Iterator[bytes]:
        for key, entry in self._entries.items():
            if entry.ready and not entry.pins and entry.index not in self._busy:
                yield key

    def _make_room(self) -> bool:
        key = self.coldest()
        if key is None:
            return False
        self._free.append(self._entries.pop(key).index)
        return True
