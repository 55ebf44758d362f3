"""Where a text's beginning lies: which replicas have computed it lately.

A text is cut into blocks of 256 bytes up to 4 KB and of 2 KB after that. The hash of a block includes that of the block
before it, so that only a common *beginning* matches; the first one begins from a salt (the tenant). Only
whole blocks count.

Memory is bounded: the least recently used block makes room for a new one, children before parents. A replica's own
memory is bounded too, so what it was given long ago is no longer believed: its blocks are noted in two generations,
each half of what it can hold; when the younger is full the older is forgotten. So a block that was not asked for again
is believed for between half of that and all of it. Forgetting costs by what was noted, not by what the index holds, so
that replicas with small caches, whose generations are short, cost no more than others.

There are two implementations with the same results: `prefix.c`, and the one here for machines without a compiler.
"""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Collection
from typing import Protocol

SMALL = 256
LARGE = 2048
SMALL_UNTIL = 4096
MAX_BLOCKS = 512
"""What comes after (1 MB of text) is not looked at: what matches so far decides anyway."""

MAX_LEVELS = 8
VISITS_MOST = 65535

SLOTS = 256
"""Replicas of one service that the index can tell apart. More than that are served, without locality."""

NOTED_SHARE = 32
"""Of the index, what is noted of one replica at most before forgetting looks at all of it: a bound on the memory for
that, and on what forgetting costs for each block that was noted.
"""


class PrefixIndex(Protocol):
    """Both implementations.

    Attributes:
        total: bytes of the last text in whole blocks.
        matched: bytes of them that some replica holds.
        visits: how often a text went its own way after the last block that matched, before this one.
        fresh: who holds all of the last text so surely that `insert` would change nothing (bits by slot).
        levels: deepest first, how many bytes, and who holds at least as many (bits by slot).
        swept: blocks looked at in order to forget, since the index was made.
    """

    @property
    def total(self) -> int: ...

    @property
    def matched(self) -> int: ...

    @property
    def visits(self) -> int: ...

    @property
    def fresh(self) -> int: ...

    @property
    def levels(self) -> list[tuple[int, int]]: ...

    @property
    def swept(self) -> int: ...

    def match(self, text: bytes, salt: int) -> int:
        """Look a text up (below 2 GB); the bytes matched. Of a salt the lowest 31 bits count."""
        ...

    def insert(self, slot: int) -> None:
        """The text of the last `match` goes to this replica."""
        ...

    def forget(self, slot: int) -> None:
        """The replica is gone, or has begun anew with an empty cache."""
        ...

    def room(self, slot: int, size: int) -> None:
        """What the replica can hold, in bytes of text; 0 when not known: then only the index's own bound counts."""
        ...

    def __len__(self) -> int: ...


def block_ends(length: int) -> list[int]:
    """Where the whole blocks of a text end."""
    ends = list(range(SMALL, min(length, SMALL_UNTIL) + 1, SMALL))
    ends += range(SMALL_UNTIL + LARGE, length + 1, LARGE)
    return ends[:MAX_BLOCKS]


class PythonPrefixIndex:
    """Without a compiler."""

    def __init__(self, blocks: int, slots: int = SLOTS) -> None:
        self.total = self.matched = self.visits = self.fresh = self.swept = 0
        self.levels: list[tuple[int, int]] = []
        self._capacity = blocks
        # Key of a block: holders in generation 0 and 1, visits. Last is newest.
        self._entries: OrderedDict[int, list[int]] = OrderedDict()
        self._keys: list[int] = []
        self._ends: list[int] = []
        self._generation = 0
        self._filled = [0] * slots
        self._room = [0] * slots
        # By generation and slot, the keys noted in it; None after more than are kept: then all are looked at.
        self._noted: tuple[list[list[int] | None], ...] = ([[] for _ in range(slots)], [[] for _ in range(slots)])
        self._most_noted = blocks // NOTED_SHARE + 1

    def match(self, text: bytes, salt: int) -> int:
        """See `PrefixIndex`."""
        entries = self._entries
        keys: list[int] = []
        levels: list[tuple[int, int]] = []
        key, start, deep, matched = salt, 0, 0, 0
        live = fresh = -1
        generation = self._generation
        looking = True
        self._ends = block_ends(len(text))
        for end in self._ends:
            key = hash((key, text[start:end]))
            keys.append(key)
            start = end
            if not looking:
                continue
            entry = entries.get(key)
            now = live & (entry[0] | entry[1]) if entry is not None else 0
            if entry is None or not now:
                looking = False
                continue
            fresh &= (entry[0] & ~generation) | (entry[1] & generation)
            if now != live and deep:
                levels.append((deep, live))
            live = now
            deep = end
            matched += 1
        self.visits = 0
        if matched:
            levels.append((deep, live))
            last = entries[keys[matched - 1]]
            self.visits = last[2]
            last[2] = min(VISITS_MOST, last[2] + 1)
            for known in reversed(keys[:matched]):
                entries.move_to_end(known)
        levels.reverse()
        self.levels = levels[:MAX_LEVELS]
        self.fresh = fresh if keys and matched == len(keys) else 0
        self.total = start
        self.matched = deep
        self._keys = keys
        return deep

    def insert(self, slot: int) -> None:
        """See `PrefixIndex`."""
        entries = self._entries
        bit = 1 << slot
        generation = 1 if self._generation & bit else 0
        added = 0
        for number in range(len(self._keys) - 1, -1, -1):
            key = self._keys[number]
            entry = entries.get(key)
            if entry is None:
                if len(entries) >= self._capacity:
                    entries.popitem(last=False)
                entry = entries[key] = [0, 0, 0]
            else:
                entries.move_to_end(key)
            if not (entry[0] | entry[1]) & bit:
                added += SMALL if self._ends[number] <= SMALL_UNTIL else LARGE
            if not entry[generation] & bit:
                entry[generation] |= bit
                noted = self._noted[generation][slot]
                if noted is not None:
                    noted.append(key)
                    if len(noted) > self._most_noted:
                        self._noted[generation][slot] = None
        self._filled[slot] += added
        if self._room[slot] and self._filled[slot] >= self._room[slot] // 2:
            self._filled[slot] = 0
            self._generation ^= bit
            self._forget_in(slot, 1 - generation)

    def _forget_in(self, slot: int, generation: int) -> None:
        keep = ~(1 << slot)
        noted = self._noted[generation][slot]
        keys: Collection[int] = self._entries if noted is None else noted
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                entry[generation] &= keep
        self.swept += len(keys)
        self._noted[generation][slot] = []

    def forget(self, slot: int) -> None:
        """See `PrefixIndex`."""
        self._forget_in(slot, 0)
        self._forget_in(slot, 1)
        self._filled[slot] = 0

    def room(self, slot: int, size: int) -> None:
        """See `PrefixIndex`."""
        self._room[slot] = size

    def __len__(self) -> int:
        return len(self._entries)


_MAX_WORDS = 4
_LEVEL_AT = 4 + _MAX_WORDS
_LEVEL_SIZE = 1 + _MAX_WORDS


class NativePrefixIndex:
    """On `prefix.c`; made with the library that `native.load` gives."""

    def __init__(self, library: ctypes.CDLL, blocks: int, slots: int = 64) -> None:
        self.matched = 0
        self._words = 1 if slots <= 64 else _MAX_WORDS
        secret = (ctypes.c_uint64 * 4).from_buffer_copy(os.urandom(32))
        handle = library.pfx_new(blocks, self._words, secret)
        if not handle:
            raise MemoryError("the prefix index")
        self._free = library.pfx_free
        # As an object of its own type it goes through a call faster than as a number.
        self._handle = ctypes.c_void_p(handle)
        self._match, self._insert, self._forget = library.pfx_match, library.pfx_insert, library.pfx_forget
        self._room, self._used, self._swept = library.pfx_room, library.pfx_used, library.pfx_swept
        size = _LEVEL_AT + MAX_LEVELS * _LEVEL_SIZE
        found = (ctypes.c_uint64 * size).from_address(library.pfx_found(handle))
        self._found = memoryview(found).cast("B").cast("Q")

    def match(self, text: bytes, salt: int) -> int:
        """See `PrefixIndex`."""
        self._match(self._handle, text, len(text), salt)
        self.matched = matched = self._found[1]
        return matched

    def insert(self, slot: int) -> None:
        """See `PrefixIndex`."""
        self._insert(self._handle, slot)

    @property
    def total(self) -> int:
        """See `PrefixIndex`."""
        return self._found[0]

    @property
    def visits(self) -> int:
        """See `PrefixIndex`."""
        return self._found[2]

    @property
    def swept(self) -> int:
        """See `PrefixIndex`."""
        return int(self._swept(self._handle))

    @property
    def fresh(self) -> int:
        """See `PrefixIndex`."""
        return self._found[4] if self._words == 1 else self._wide(4)

    @property
    def levels(self) -> list[tuple[int, int]]:
        """See `PrefixIndex`."""
        found = self._found
        count = found[3]
        if count == 1 and self._words == 1:
            return [(found[_LEVEL_AT], found[_LEVEL_AT + 1])]
        starts = range(_LEVEL_AT, _LEVEL_AT + count * _LEVEL_SIZE, _LEVEL_SIZE)
        if self._words == 1:
            return [(found[at], found[at + 1]) for at in starts]
        return [(found[at], self._wide(at + 1)) for at in starts]

    def _wide(self, at: int) -> int:
        found = self._found
        return found[at] | found[at + 1] << 64 | found[at + 2] << 128 | found[at + 3] << 192

    def forget(self, slot: int) -> None:
        """See `PrefixIndex`."""
        self._forget(self._handle, slot)

    def room(self, slot: int, size: int) -> None:
        """See `PrefixIndex`."""
        self._room(self._handle, slot, size)

    def __len__(self) -> int:
        return int(self._used(self._handle))

    def __del__(self) -> None:
        if hasattr(self, "_found"):
            self._found.release()
            self._free(self._handle)
