"""The memories below the KV cache, one below the other: what is looked up, stored, passed down and forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from paceline_runtime.engine.integrity import IntegrityError
from paceline_runtime.messages import TierStats

from .switch import Tally, TierSwitch
from .tier import Tier
from .transfer import Memory, MoveReport, Place, Transfer

LEAST_DEMOTIONS = 8
"""Blocks passed down in any step; twice as many as came in, where that is more."""

FREE_PERCENT = 5
"""Share of a memory that is kept free by passing its coldest blocks down, so that storing never waits for it."""


class TierStack:
    """Host memory and disk, or one of them.

    Args:
        capacities: blocks of room, from the fastest memory to the slowest.
        block_size: tokens in a block.
    """

    def __init__(self, capacities: Sequence[tuple[Memory, int]], block_size: int) -> None:
        self._block_size = block_size
        self._tiers = [Tier(memory, capacity) for memory, capacity in capacities if capacity > 0]
        if not self._tiers:
            raise ValueError("a stack of memories needs at least one with room for a block")
        self._tallies = {tier.memory: Tally() for tier in self._tiers}
        below = [sum(tier.capacity for tier in self._tiers[index:]) for index in range(len(self._tiers))]
        self._switches = {
            tier.memory: TierSwitch(room, block_size) for tier, room in zip(self._tiers, below, strict=True)
        }

    # --- looking up ---

    @property
    def wants_blocks(self) -> bool:
        """Whether cold blocks should be stored."""
        return self._switches[self._tiers[0].memory].active

    def holds(self, key: bytes) -> bool:
        """Whether some memory has this content, or will after this step."""
        return any(key in tier for tier in self._tiers)

    def find(self, key: bytes) -> Place | None:
        """Where it can be read from now."""
        for tier in self._tiers:
            place = tier.find(key)
            if place is not None:
                return place
        return None

    # --- moving ---

    def load(self, key: bytes, target: Place) -> Transfer:
        """Read a block that `find` found into the cache."""
        for tier in self._tiers:
            source = tier.find(key)
            if source is not None:
                tier.use(key)
                return Transfer(source, target, key)
        raise IntegrityError("a block is to be loaded that no memory holds")

    def reserve(self, key: bytes) -> Place | None:
        """Room in the fastest memory for a block that arrives in this step."""
        return self._tiers[0].reserve(key)

    def pass_down(self) -> list[Transfer]:
        """Copies of the coldest blocks of each nearly full memory to the one below it."""
        transfers: list[Transfer] = []
        for upper, lower in zip(self._tiers, self._tiers[1:], strict=False):
            if not self._switches[lower.memory].active:
                continue
            # As much as came in this step may come in the next.
            least_free = max(upper.capacity * FREE_PERCENT // 100, 1, upper.num_arriving)
            most = max(LEAST_DEMOTIONS, 2 * upper.num_arriving)
            for _ in range(min(most, least_free - upper.num_free)):
                key = upper.coldest()
                if key is None:
                    break
                if key in lower:
                    upper.move_away(key)
                    continue
                target = lower.reserve(key)
                if target is None:
                    break
                transfers.append(Transfer(upper.move_away(key), target, key))
        return transfers

    def pin(self, key: bytes) -> None:
        """Keep this content until `unpin`."""
        for tier in self._tiers:
            if key in tier:
                tier.pin(key, 1)
                return

    def unpin(self, key: bytes) -> None:
        """One less counts on it."""
        for tier in self._tiers:
            if tier.pins(key):
                tier.pin(key, -1)
                return

    def commit(self) -> None:
        """The step's copies are done."""
        for tier in self._tiers:
            tier.commit()

    # --- measuring ---

    def moved(self, transfers: Sequence[Transfer], report: MoveReport, prefill: float | None, now: float) -> None:
        """Enter what a step's transfers took, before `commit`.

        Args:
            prefill: measured seconds to compute one token of a prompt; `None` is not known.
        """
        failed = set(report.failed)
        for transfer in transfers:
            if transfer in failed:
                # Nothing is known about what lies at either end.
                for tier in self._tiers:
                    tier.forget(transfer.key)
                continue
            if transfer.target.memory in self._tallies:
                self._tallies[transfer.target.memory].stored += 1
            else:
                tally = self._tallies[transfer.source.memory]
                tally.loaded += 1
                tally.hit_tokens += self._block_size
                tally.saved += (prefill or 0.0) * self._block_size
        for (source, target), seconds in report.seconds.items():
            if target in self._tallies:
                self._tallies[target].store_seconds += seconds
            elif source in self._tallies:
                self._tallies[source].load_seconds += seconds
        self._judge(prefill, now)

    def retry(self, now: float) -> None:
        """Try memories again that were given up some time ago."""
        if not all(switch.active for switch in self._switches.values()):
            self._judge(None, now, paused_only=True)

    def _judge(self, prefill: float | None, now: float, *, paused_only: bool = False) -> None:
        # What is stored in one memory may be asked for after it was passed down, so that counts for both.
        total = Tally()
        for tier in reversed(self._tiers):
            own = self._tallies[tier.memory]
            total = total.plus(own)
            total.stored = own.stored
            switch = self._switches[tier.memory]
            if not (paused_only and switch.active):
                switch.judge(total, prefill, now)

    def block_seconds(self) -> float | None:
        """Measured seconds to store a block in the fastest memory and load it again; `None` is not known."""
        tally = self._tallies[self._tiers[0].memory]
        if not tally.stored:
            return None
        store = tally.store_seconds / tally.stored
        return store + (tally.load_seconds / tally.loaded if tally.loaded else store)

    def room(self) -> int:
        """Blocks that fit into the fastest memory, where those that nobody counts on are let go."""
        return self._tiers[0].num_available

    def stats(self) -> list[TierStats]:
        """One line for each memory."""
        return [
            TierStats(
                name=str(tier.memory),
                active=self._switches[tier.memory].active,
                reason=self._switches[tier.memory].reason,
                blocks_used=len(tier),
                blocks_total=tier.capacity,
                stored_blocks_total=tally.stored,
                loaded_blocks_total=tally.loaded,
                hit_tokens_total=tally.hit_tokens,
                saved_seconds_total=tally.saved,
                cost_seconds_total=tally.cost,
            )
            for tier, tally in ((tier, self._tallies[tier.memory]) for tier in self._tiers)
        ]

    def check(self, pinned: Iterable[bytes]) -> None:
        """Compare the books with what preempted requests count on.

        Raises:
            IntegrityError: naming the first thing that is wrong.
        """
        wanted = Counter(pinned)
        for tier in self._tiers:
            places = tier.places()
            if sorted(places) != list(range(tier.capacity)):
                raise IntegrityError(f"a place of {tier.memory} memory is lost or doubled")
        for key, count in wanted.items():
            found = sum(tier.pins(key) for tier in self._tiers)
            if self.holds(key) and found > count:
                raise IntegrityError(f"a block in lower memory is kept for {found} requests, but {count} count on it")
        for tier in self._tiers:
            for key in tier.pinned():
                if not wanted[key]:
                    raise IntegrityError(f"a block in {tier.memory} memory is kept for a request that is gone")
