"""Which blocks hold content that can be found again, and which of them to let go first.

A conversation's blocks form a group. The coldest group loses its blocks first, one after another from the end of the
chain, so that no chain ever loses its middle. How cold a group is follows GreedyDual-Size-Frequency (Cherkasova 1998):
a clock, which grows with each block let go, at its last use, plus uses times what computing a block again would cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Hashable, Sequence

from .integrity import IntegrityError

ATTENTION_TOKENS = 4096
"""Context length at which attending to it costs as much as the rest of a token's computation. It differs between
models by a small factor, which only shifts how much a late block is worth beside an early one."""

NO_BLOCK = -1


class Group:
    """Blocks last used by one conversation."""

    __slots__ = ("clock", "leaves", "size", "turn", "version")

    def __init__(self) -> None:
        self.clock = 0.0  # of the index, at the last use
        self.turn = 0  # number of the last use
        self.size = 0  # blocks
        self.version = 0  # of its entry in the heap; others are stale
        self.leaves: dict[int, None] = {}  # blocks that may be let go


class PrefixIndex:
    """Finds blocks by hash. All operations take constant or logarithmic time.

    A block in the index is either held by requests, or cold: then it may be let go once no block in the index follows
    it. Holding a block means holding all blocks before it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._parent = [NO_BLOCK] * num_blocks
        self._children = [0] * num_blocks
        self._position = [0] * num_blocks
        self._hits = [0] * num_blocks
        self._cold: dict[int, None] = {}
        self._group_of: dict[int, Hashable] = {}
        self._groups: dict[Hashable, Group] = {}
        self._heap: list[tuple[float, int, int, Hashable]] = []
        self._clock = 0.0
        self._turns = 0
        self._versions = 0

    def __len__(self) -> int:
        """Blocks that can be found."""
        return len(self._block_of)

    @property
    def num_cold(self) -> int:
        """Those of them that nobody holds."""
        return len(self._cold)

    def parent_of(self, block: int) -> int:
        """The block before one in its chain; `NO_BLOCK` for the first, and for blocks that cannot be found."""
        return self._parent[block] if self._hash_of[block] is not None else NO_BLOCK

    def is_cold(self, block: int) -> bool:
        """Whether nobody holds this block, which can be found."""
        return block in self._cold

    def find(self, key: bytes) -> int | None:
        """The block with this content."""
        return self._block_of.get(key)

    def hash_of(self, block: int) -> bytes | None:
        """By which a block is found, if it is."""
        return self._hash_of[block]

    def insert(self, key: bytes, block: int, parent: int, position: int, group: Hashable) -> None:
        """Let a held block be found.

        Args:
            parent: the block before it in the chain, which is in the index; `NO_BLOCK` for the first.
            position: of the block in the chain, from 0.
        """
        self._block_of[key] = block
        self._hash_of[block] = key
        self._parent[block] = parent
        self._children[block] = 0
        self._position[block] = position
        self._hits[block] = 0
        if parent != NO_BLOCK:
            self._children[parent] += 1
        self._group_of[block] = group
        self._group(group).size += 1

    def use(self, block: int, group: Hashable) -> None:
        """A held block was found: it belongs to the conversation that used it last.

        A hit by another conversation counts for the block's worth. One by its own does not: else the end of each
        conversation, which is new, would be let go before any conversation as a whole.
        """
        before = self._group_of[block]
        if before != group:
            self._hits[block] += 1
            self._leave(block, before)
            self._group_of[block] = group
            self._group(group).size += 1

    def hold(self, block: int) -> None:
        """A cold block is held again."""
        del self._cold[block]
        self._groups[self._group_of[block]].leaves.pop(block, None)

    def let_go(self, block: int) -> None:
        """A held block is held by nobody any more: it is cold now."""
        self._cold[block] = None
        if self._children[block] == 0:
            name = self._group_of[block]
            group = self._groups[name]
            self._turns += 1
            group.turn, group.clock = self._turns, self._clock
            group.leaves[block] = None
            self._offer(name, group)

    def pop_coldest(self) -> tuple[int, bytes] | None:
        """Take the least valuable cold block out of the index; `None` if no block is cold."""
        while self._heap:
            score, _, version, name = heapq.heappop(self._heap)
            group = self._groups.get(name)
            if group is None or group.version != version or not group.leaves:
                continue
            block, _ = group.leaves.popitem()
            self._clock = max(self._clock, score)
            key = self._forget(block)
            if group.leaves:
                self._offer(name, group)
            return block, key
        return None

    def check(self, held: Sequence[int], *, parked: Container[int] = ()) -> None:
        """Compare with the numbers of holders by block; parked blocks become cold with the next step.

        Raises:
            IntegrityError: naming the first thing that is wrong.
        """
        children = [0] * len(held)
        sizes: dict[Hashable, int] = {}
        for key, block in self._block_of.items():
            if self._hash_of[block] != key:
                raise IntegrityError(f"block {block} is found by a hash that it no longer has")
            parent = self._parent[block]
            if parent != NO_BLOCK:
                if self._hash_of[parent] is None:
                    raise IntegrityError(f"block {block} follows block {parent}, which cannot be found")
                if held[block] and not held[parent]:
                    raise IntegrityError(f"block {block} is held, but block {parent} before it is not")
                children[parent] += 1
            if (block in self._cold) != (held[block] == 0 and block not in parked):
                raise IntegrityError(f"block {block} with {held[block]} holders is on the wrong side of the cold ones")
            sizes[self._group_of[block]] = sizes.get(self._group_of[block], 0) + 1
        if len(self._block_of) != sum(1 for key in self._hash_of if key is not None):
            raise IntegrityError("a block has a hash by which it cannot be found")
        if {name: group.size for name, group in self._groups.items()} != sizes:
            raise IntegrityError("a conversation's blocks are miscounted")
        leaves = {block for group in self._groups.values() for block in group.leaves}
        for block in self._block_of.values():
            if children[block] != self._children[block]:
                raise IntegrityError(f"block {block} has {children[block]} followers, not {self._children[block]}")
            if (block in leaves) != (block in self._cold and children[block] == 0):
                raise IntegrityError(f"block {block} is on the wrong side of those that may be let go")

    def _group(self, name: Hashable) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group()
        return group

    def _leave(self, block: int, name: Hashable) -> None:
        group = self._groups[name]
        group.leaves.pop(block, None)
        group.size -= 1
        if group.size == 0:
            del self._groups[name]

    def _forget(self, block: int) -> bytes:
        key = self._hash_of[block]
        if key is None:
            raise IntegrityError(f"block {block} is let go twice")
        del self._block_of[key], self._cold[block]
        self._hash_of[block] = None
        own = self._group_of.pop(block)
        self._leave(block, own)
        parent = self._parent[block]
        if parent != NO_BLOCK:
            self._children[parent] -= 1
            if self._children[parent] == 0 and parent in self._cold:
                name = self._group_of[parent]
                group = self._groups[name]
                group.leaves[parent] = None
                if name != own:  # its own group is offered by who asked for the block
                    self._offer(name, group)
        return key

    def _offer(self, name: Hashable, group: Group) -> None:
        """Put a group with leaves in its place in the heap, by the leaf that is let go next."""
        leaf = next(reversed(group.leaves))
        cost = 1.0 + self._position[leaf] * self._block_size / ATTENTION_TOKENS
        self._versions += 1
        group.version = self._versions
        entry = (group.clock + (1 + self._hits[leaf]) * cost, group.turn, self._versions, name)
        if len(self._heap) > 4 * len(self._groups) + 64:
            # Stale entries at the bottom would stay for ever.
            self._heap = [e for e in self._heap if (g := self._groups.get(e[3])) and g.version == e[2]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, entry)
