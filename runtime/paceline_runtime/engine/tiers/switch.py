"""Whether it pays to keep blocks in a memory, by what was measured."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_SAMPLE = 32
"""Blocks moved before anything is judged."""

RETRY_SECONDS = 300.0
"""After which a memory that did not pay is tried again; doubled each time, up to `RETRY_LIMIT`."""
RETRY_LIMIT = 3600.0


@dataclass(slots=True)
class Tally:
    """What went to a memory and came back. `saved` and `cost` are seconds."""

    stored: int = 0
    loaded: int = 0
    hit_tokens: int = 0
    saved: float = 0.0
    store_seconds: float = 0.0
    load_seconds: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds spent on copies."""
        return self.store_seconds + self.load_seconds

    def plus(self, other: Tally, sign: int = 1) -> Tally:
        """Both together."""
        return Tally(
            self.stored + sign * other.stored,
            self.loaded + sign * other.loaded,
            self.hit_tokens + sign * other.hit_tokens,
            self.saved + sign * other.saved,
            self.store_seconds + sign * other.store_seconds,
            self.load_seconds + sign * other.load_seconds,
        )


class TierSwitch:
    """Turns storing off where it costs more than it saves, and says why in numbers.

    Two rules: where copying a block there and back takes longer than computing it, no number of hits can pay, and it
    ends at once. Else what was saved is set against what was spent over a whole turnover: as many blocks stored as this
    memory and those below it hold, so that each had its full time to be asked for (a user may think for ten minutes).
    """

    def __init__(self, capacity: int, block_size: int) -> None:
        """`capacity`: blocks that this memory and those below it hold; `block_size`: tokens in a block."""
        self.active = True
        self.reason = "nothing has been stored yet"
        self._capacity = capacity
        self._block_size = block_size
        self._window = Tally()
        self._retry_at = 0.0
        self._retry = RETRY_SECONDS

    def judge(self, total: Tally, prefill_token_seconds: float | None, now: float) -> bool:
        """Decide anew.

        Args:
            total: since start.
            prefill_token_seconds: measured seconds to compute one token of a prompt; `None` is not known.

        Returns:
            Whether to store blocks from now on.
        """
        self._judge(total, prefill_token_seconds, now)
        return self.active

    def _judge(self, total: Tally, prefill_token_seconds: float | None, now: float) -> None:
        if not self.active:
            if now >= self._retry_at:
                self.active = True
                self.reason = f"tried again after a pause of {self._retry / 2:.0f} s"
                self._window = total.plus(Tally())
            return
        window = total.plus(self._window, -1)
        hits = f"{window.loaded} of {window.stored} blocks were asked for again"
        if window.stored < LEAST_SAMPLE or prefill_token_seconds is None:
            self.reason = f"{hits}; too few to judge" if total.stored else self.reason
            return
        compute = prefill_token_seconds * self._block_size
        store = window.store_seconds / window.stored
        load = window.load_seconds / window.loaded if window.loaded else store
        rates = f"a block takes {_ms(store)} to store and {_ms(load)} to load, {_ms(compute)} to compute"
        if store + load >= compute:
            self._stop(f"{rates}: no number of hits can pay for that", now)
        elif window.stored >= self._capacity and window.cost > window.saved:
            self._stop(f"{hits}, which saved {window.saved:.2f} s and cost {window.cost:.2f} s; {rates}", now)
        else:
            self.reason = f"{hits}, which saved {window.saved:.2f} s and cost {window.cost:.2f} s; {rates}"
            if window.stored >= self._capacity:
                self._window = total.plus(Tally())
                self._retry = RETRY_SECONDS

    def _stop(self, why: str, now: float) -> None:
        self.active = False
        self.reason = f"off for {self._retry:.0f} s: {why}"
        self._retry_at = now + self._retry
        self._retry = min(self._retry * 2, RETRY_LIMIT)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
