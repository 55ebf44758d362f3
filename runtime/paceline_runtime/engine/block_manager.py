"""Which blocks of the KV cache a request has, and which of them it takes from earlier ones or from lower memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from .batch import BlockCopy
from .block_pool import BlockPool
from .hashing import block_hash, hash_seed
from .integrity import IntegrityError
from .prefix_index import NO_BLOCK
from .request import Request
from .tiers import Memory, Place, TierStack, Transfer

__all__ = ["BlockManager", "IntegrityError", "Match", "hash_seed"]

LEAST_TRIM = 64
LEAST_STORES = 16
"""Cold blocks let go, and moved to lower memory, in any step. With more tokens in a step it is twice as many as these
fill, which keeps up with them; copying a block takes a small share of the time that filling it took."""


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix of a request, block by block: in the cache (a number) or in lower memory (a place)."""

    found: tuple[int | Place, ...] = ()

    @property
    def loads(self) -> int:
        """Blocks that come from lower memory."""
        return sum(1 for item in self.found if not isinstance(item, int))


class BlockManager:
    """Blocks of `block_size` tokens, numbered from 0 to `num_blocks` - 1.

    Allocation and release take constant time per block, where a cold block has to be let go for it logarithmic time.

    Args:
        watermark_percent: share of blocks held or cold from which cold ones are let go ahead of need (`trim`).
        tiers: memories to which cold blocks and those of preempted requests go.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool,
        seed: bytes = b"",
        watermark_percent: int = 100,
        tiers: TierStack | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"{num_blocks} blocks of {block_size} tokens are no cache")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.seed = seed
        self.tiers = tiers
        self.num_promised = 0
        self.evicted_blocks = 0
        self._watermark = num_blocks * watermark_percent // 100
        self._pool = BlockPool(num_blocks, block_size)
        self._index = self._pool.index

    # --- state ---

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now, cold ones included."""
        return self._pool.num_free

    @property
    def num_used(self) -> int:
        """Blocks held by requests."""
        return self.num_blocks - self._pool.num_free - self._pool.num_parked

    @property
    def num_cached(self) -> int:
        """Blocks, held or not, whose content can be found by its hash."""
        return len(self._index)

    @property
    def num_cold(self) -> int:
        """Blocks held by nobody whose content can be found."""
        return self._index.num_cold

    @property
    def num_parked(self) -> int:
        """Blocks that can be handed out in the next step."""
        return self._pool.num_parked

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    # --- finding ---

    def find_prefix(self, request: Request) -> list[int]:
        """Blocks of the cache that hold the longest prefix of the request's tokens found there."""
        blocks: list[int] = []
        for item in self.match(request).found:
            if not isinstance(item, int):
                break
            blocks.append(item)
        return blocks

    def match(self, request: Request) -> Match:
        """The longest known prefix of the request's tokens.

        Whole blocks only, and at least one token is left to compute: without it there would be no logits to go on from.
        """
        if not request.may_look_up or not (self.prefix_caching or request.pinned):
            return Match()
        found: list[int | Place] = []
        for index in range((len(request.tokens) - 1) // self.block_size):
            key = self._hash(request, index)
            item: int | Place | None = self._index.find(key)
            if item is None and self.tiers is not None:
                item = self.tiers.find(key)
            if item is None:
                break
            found.append(item)
        return Match(tuple(found))

    # --- taking ---

    def needed(self, request: Request, match: Match) -> int:
        """Blocks that admission takes out of those that can be handed out, cold ones that were found included."""
        new = self.blocks_for(len(request.tokens)) - len(match.found)
        return new + sum(1 for item in match.found if not isinstance(item, int) or self._pool.refs[item] == 0)

    def admit(self, request: Request, match: Match | None = None, *, reserve: int = 0, promise: int = 0) -> bool:
        """Give a request that holds nothing the blocks for all of its tokens, known ones where there are any.

        `num_computed` is set to the tokens found. Taking everything at once means that two half-computed prompts never
        wait for each other's blocks.

        Args:
            match: what `match` found since the last change; `None` looks it up.
            reserve: blocks that have to stay free.
            promise: blocks set aside for the request's growth; nobody else is given them.

        Returns:
            False, and nothing is changed, if there are not enough free blocks.
        """
        if request.blocks:
            raise IntegrityError(f"request {request.request_id} is admitted with blocks in hand")
        if match is None:
            match = self.match(request)
        if self.needed(request, match) + reserve + promise + self.num_promised > self.num_free:
            return False
        group = self._group(request)
        # What was found is held before anything is taken: taking may let cold blocks go.
        for item in match.found:
            if isinstance(item, int):
                self._pool.hold(item)
                self._index.use(item, group)
        blocks: list[int] = []
        registered: int | None = None
        for index, item in enumerate(match.found):
            if isinstance(item, int):
                blocks.append(item)
                continue
            registered = index if registered is None else registered
            target = self._take()
            self._pool.load(self._tiers.load(self._hash(request, index), Place(Memory.DEVICE, target)))
            blocks.append(target)
        blocks += [self._take() for _ in range(self.blocks_for(len(request.tokens)) - len(blocks))]
        request.blocks = blocks
        # Loaded blocks are found by others once they are known to be right: `register` sees to it after the step.
        request.num_registered = len(match.found) if registered is None else registered
        request.num_computed = len(match.found) * self.block_size
        request.promised = promise
        self.num_promised += promise
        self.unpin(request)
        return True

    def grow(self, request: Request) -> bool:
        """Make room for all of a running request's tokens, in blocks that it may write.

        A block shared with another answer to the same prompt is copied before it is written.

        Returns:
            False, and nothing is changed, if there are not enough free blocks.
        """
        blocks = request.blocks
        fresh = self.blocks_for(len(request.tokens)) - len(blocks)
        first = request.num_computed // self.block_size
        copies = first < len(blocks) and self._pool.refs[blocks[first]] > 1
        need = fresh + copies
        if not need:
            return True
        if need > self.num_free - max(self.num_promised - request.promised, 0):
            return False
        kept = min(need, request.promised)
        request.promised -= kept
        self.num_promised -= kept
        if copies:
            source, target = blocks[first], self._take()
            self._pool.copy(source, target)
            blocks[first] = target
            self._pool.drop(source)
        for _ in range(fresh):
            blocks.append(self._take())
        return True

    def grow_ahead(self, request: Request) -> bool:
        """Make room for the token after a running request's last one, before it is known.

        Returns:
            False, and nothing is changed, if there is no free block, or the token would go into a shared one.
        """
        place, blocks = len(request.tokens) // self.block_size, request.blocks
        if place < len(blocks):
            return self._pool.refs[blocks[place]] == 1
        if self.num_free - max(self.num_promised - request.promised, 0) < 1:
            return False
        kept = min(1, request.promised)
        request.promised -= kept
        self.num_promised -= kept
        blocks.append(self._take())
        return True

    def fork(self, parent: Request, child: Request) -> None:
        """Let another answer to the same computed prompt share the parent's blocks."""
        if child.blocks:
            raise IntegrityError(f"request {child.request_id} is forked with blocks in hand")
        for block in parent.blocks:
            self._pool.refs[block] += 1
        child.blocks = list(parent.blocks)
        child.block_hashes = list(parent.block_hashes)
        child.num_computed = child.most_computed = parent.num_computed
        child.num_registered = parent.num_registered

    def hand_over(self, request: Request, heir: Request) -> None:
        """Another answer to the same prompt takes a request's place and all that it holds."""
        heir.blocks, request.blocks = request.blocks, []
        heir.promised, request.promised = request.promised, 0
        heir.block_hashes = request.block_hashes
        heir.num_registered, heir.num_computed = request.num_registered, request.num_computed

    def register(self, request: Request) -> None:
        """Let the prefix cache know the request's blocks that are full and computed.

        Where another request's block with the same content is known already, it is shared and the own one let go.
        """
        if not self.prefix_caching:
            return
        full = request.num_computed // self.block_size
        if request.num_registered >= full:
            return
        group = self._group(request)
        blocks = request.blocks
        for index in range(request.num_registered, full):
            own, key = blocks[index], self._hash(request, index)
            known = self._index.find(key)
            if known is None:
                parent = blocks[index - 1] if index else NO_BLOCK
                self._index.insert(key, own, parent, index, group)
            elif known != own:
                self._pool.hold(known)
                self._index.use(known, group)
                blocks[index] = known
                self._pool.drop(own)
        request.num_registered = full

    # --- giving back ---

    def release(self, request: Request) -> None:
        """Take all blocks from a request. The one place where a sequence's blocks become free."""
        # Last block first: a chain is let go from its end.
        for block in reversed(request.blocks):
            self._pool.drop(block)
        self.num_promised -= request.promised
        request.promised = 0
        request.blocks = []
        request.num_registered = 0
        request.num_computed = 0

    def swap_out(self, request: Request) -> int:
        """Send a request's computed whole blocks to lower memory, where they are kept for it; `release` follows.

        Returns:
            Leading blocks that will be there, known ones included.
        """
        kept = 0
        for index in range(request.num_computed // self.block_size):
            key, block = self._hash(request, index), request.blocks[index]
            if not self._tiers.holds(key):
                place = self._tiers.reserve(key)
                if place is None:
                    break
                self._pool.store(block, place, key)
            self._tiers.pin(key)
            request.pinned.append(key)
            kept += 1
        return kept

    def unpin(self, request: Request) -> None:
        """Lower memory need not keep anything for this request any more."""
        for key in request.pinned:
            self._tiers.unpin(key)
        request.pinned.clear()

    def exclusive(self, request: Request) -> int:
        """Blocks that a request's release would free."""
        return sum(1 for block in request.blocks if self._pool.refs[block] == 1)

    def would_keep(self, request: Request) -> int:
        """Leading blocks that would still be found after a release: others hold them, or lower memory does."""
        kept = 0
        for index in range(request.num_computed // self.block_size):
            if self._pool.refs[request.blocks[index]] == 1 and (
                self.tiers is None or not self.tiers.holds(self._hash(request, index))
            ):
                break
            kept += 1
        return kept

    def trim(self, num_tokens: int = 0) -> None:
        """Let cold blocks go ahead of need while more are held or cold than the watermark allows.

        Args:
            num_tokens: tokens of this step, by which the number of blocks is bounded.
        """
        over = self._pool.num_filled - self._watermark
        if over <= 0:
            return
        filled = 2 * self.blocks_for(num_tokens)
        stores = max(LEAST_STORES, filled)
        for _ in range(min(over, max(LEAST_TRIM, filled))):
            storing = self.tiers is not None and self.tiers.wants_blocks
            if storing and stores == 0:
                return
            popped = self._pool.pop_coldest()
            if popped is None:
                return
            block, key = popped
            if self.tiers is not None and self.tiers.holds(key):
                self._pool.free(block)
                continue
            place = self.tiers.reserve(key) if storing and self.tiers is not None else None
            if place is None:
                self.evicted_blocks += 1
                self._pool.free(block)
            else:
                stores -= 1
                self._pool.store(block, place, key)

    def pass_down(self) -> None:
        """Make room in lower memory ahead of need, by passing its coldest blocks on to the memory below that one."""
        if self.tiers is not None:
            self._pool.pass_down(self.tiers.pass_down())

    # --- one step's moves ---

    def take_moves(self) -> tuple[tuple[BlockCopy, ...], tuple[Transfer, ...]]:
        """What has to be moved before the next forward."""
        return self._pool.take_moves()

    def commit(self) -> None:
        """The moves taken are done: what they touched may be used again."""
        self._pool.commit()
        if self.tiers is not None:
            self.tiers.commit()

    def check(self, holders: Iterable[Request]) -> None:
        """Compare the books with what the requests hold.

        Raises:
            IntegrityError: naming the first thing that is wrong.
        """
        held = [0] * self.num_blocks
        promised = 0
        pinned: list[bytes] = []
        for request in holders:
            promised += request.promised
            pinned += request.pinned
            for block in request.blocks:
                held[block] += 1
        self._pool.check(held)
        if promised != self.num_promised or self.num_promised > self.num_free + self.num_parked:
            raise IntegrityError(f"{self.num_promised} blocks are promised, {promised} by what requests were told")
        if self.tiers is not None:
            self.tiers.check(pinned)

    # --- inside ---

    @property
    def _tiers(self) -> TierStack:
        if self.tiers is None:
            raise IntegrityError("there is no memory below the cache")
        return self.tiers

    def _group(self, request: Request) -> Hashable:
        if request.session:
            return (request.hash_root, request.session)
        return request.request_id

    def _hash(self, request: Request, index: int) -> bytes:
        return block_hash(request, index, self.block_size, self.seed)

    def _take(self) -> int:
        block, key = self._pool.take()
        if key is not None and (self.tiers is None or not self.tiers.holds(key)):
            self.evicted_blocks += 1
        return block
