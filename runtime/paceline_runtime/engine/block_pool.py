"""Each block of the KV cache and who holds it, what of it can be found again, and what is copied in a step.

A block is in exactly one place: held by requests (reference count ≥ 1), cold (held by nobody, but its content can be
found by hash), free, or parked. Parked blocks have been let go in this step while something is copied from or to them:
they are handed out in the next one, so that the copies of one step never depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from .batch import BlockCopy
from .integrity import IntegrityError
from .prefix_index import NO_BLOCK, PrefixIndex
from .tiers import Memory, Place, Transfer


class BlockPool:
    """Blocks numbered from 0 to `num_blocks` - 1.

    Taking and dropping one takes constant time, where a cold block has to be let go for it logarithmic time.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.index = PrefixIndex(num_blocks, block_size)
        self.refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # the last one is handed out next
        self._fence: set[int] = set()
        self._parked: dict[int, None] = {}
        self._copies: list[BlockCopy] = []
        self._transfers: list[Transfer] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now, cold ones included."""
        return len(self._free) + self.index.num_cold

    @property
    def num_parked(self) -> int:
        """Blocks that can be handed out in the next step."""
        return len(self._parked)

    @property
    def num_filled(self) -> int:
        """Blocks held or cold."""
        return self.num_blocks - len(self._free) - len(self._parked)

    # --- holding ---

    def take(self) -> tuple[int, bytes | None]:
        """A block for one holder, and the hash of the content that was let go for it, if any was."""
        key = None
        if self._free:
            block = self._free.pop()
        else:
            popped = self.index.pop_coldest()
            if popped is None:
                raise IntegrityError("a block is taken where none is free")
            block, key = popped
        self.refs[block] = 1
        return block, key

    def hold(self, block: int) -> None:
        """One more holds a block whose content is known."""
        if self.refs[block] == 0:
            if block in self._parked:
                del self._parked[block]
            else:
                self.index.hold(block)
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        """One less holds a block."""
        if self.refs[block] < 1:
            raise IntegrityError(f"block {block} is freed twice")
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if block in self._fence:
                self._parked[block] = None
                # The block before it cannot be let go earlier than this one.
                parent = self.index.parent_of(block)
                if parent != NO_BLOCK:
                    self._fence.add(parent)
            else:
                self._settle(block)

    def pop_coldest(self) -> tuple[int, bytes] | None:
        """The least valuable cold block, which is nowhere until `free` or `store`; `None` if no block is cold."""
        return self.index.pop_coldest()

    def free(self, block: int) -> None:
        """A block that `pop_coldest` gave is free."""
        self._free.append(block)

    # --- copying ---

    def copy(self, source: int, target: int) -> None:
        """Copy a held block to another one in this step."""
        self._copies.append(BlockCopy(source, target))
        self._fence |= {source, target}

    def load(self, transfer: Transfer) -> None:
        """Read a held block from lower memory in this step."""
        self._transfers.append(transfer)
        self._fence.add(transfer.target.number)

    def store(self, block: int, place: Place, key: bytes) -> None:
        """Write a held block, or one that `pop_coldest` gave, to lower memory in this step."""
        self._transfers.append(Transfer(Place(Memory.DEVICE, block), place, key))
        self._fence.add(block)
        if self.refs[block] == 0:
            self._parked[block] = None

    def pass_down(self, transfers: Sequence[Transfer]) -> None:
        """Copies between lower memories in this step."""
        self._transfers += transfers

    def take_moves(self) -> tuple[tuple[BlockCopy, ...], tuple[Transfer, ...]]:
        """What has to be moved before the next forward."""
        copies, transfers = tuple(self._copies), tuple(self._transfers)
        self._copies.clear()
        self._transfers.clear()
        return copies, transfers

    def commit(self) -> None:
        """The moves taken are done: what they touched may be used again."""
        if self._copies or self._transfers:
            raise IntegrityError("blocks were to be moved, and nobody took the list")
        self._fence.clear()
        for block in self._parked:
            self._settle(block)
        self._parked.clear()

    # --- checks ---

    def check(self, held: Sequence[int]) -> None:
        """Compare the books with the numbers of holders by block.

        Raises:
            IntegrityError: naming the first thing that is wrong.
        """
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("a block is twice in the free list")
        for block, count in enumerate(held):
            if count != self.refs[block]:
                raise IntegrityError(f"block {block} has {self.refs[block]} references but {count} holders")
            places = (count > 0) + (block in free) + (block in self._parked) + self.index.is_cold(block)
            if places != 1:
                raise IntegrityError(f"block {block} with {count} holders is in {places} places instead of one")
            if block in free and self.index.hash_of(block) is not None:
                raise IntegrityError(f"block {block} is free and can still be found")
        self.index.check(held, parked=self._parked)

    def _settle(self, block: int) -> None:
        if self.index.hash_of(block) is None:
            self._free.append(block)
        else:
            self.index.let_go(block)
