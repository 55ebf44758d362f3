"""A queue of keys that merges repeats, never hands one key to two workers, and lets failing keys wait longer.

`Schedule` is the whole decision, with time as parameter; `WorkQueue` adds waiting. The rules are those of
client-go's rate-limiting work queue: a key added while it is being worked on comes back once that pass is done.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Schedule(Generic[K]):
    """Which key is ready, which is being worked on, which waits until when. Times in seconds of any one clock."""

    def __init__(self) -> None:
        self._ready: dict[K, None] = {}  # dirty keys nobody works on, in order
        self._processing: set[K] = set()
        self._dirty: set[K] = set()  # to be worked on, again where a worker has them
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # entries that differ from `_due` are void
        self._sequence = 0

    def add(self, key: K) -> None:
        """The key needs work, as soon as possible."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready[key] = None

    def add_at(self, key: K, due: float) -> None:
        """The key needs work at `due`; of several such wishes the earliest counts."""
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key))

    def take(self, now: float) -> K | None:
        """The next key to work on, or None. The caller must end with `done`."""
        self._collect(now)
        if not self._ready:
            return None
        key = next(iter(self._ready))
        del self._ready[key]
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """Work on the key has ended, well or not.

        Raises:
            ValueError: nobody was working on it.
        """
        if key not in self._processing:
            raise ValueError(f"{key!r} was not taken")
        self._processing.discard(key)
        if key in self._dirty:
            self._ready[key] = None

    def next_due(self) -> float | None:
        """When the next waiting key becomes ready; None when none waits."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def depth(self) -> int:
        """Keys ready to be taken."""
        return len(self._ready)

    def processing(self) -> int:
        """Keys being worked on."""
        return len(self._processing)

    def waiting(self) -> int:
        """Keys that wait for their time."""
        return len(self._due)

    def _collect(self, now: float) -> None:
        while (due := self.next_due()) is not None and due <= now:
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            self.add(key)


class Backoff(Generic[K]):
    """Per-key delays: doubled with each failure up to `most`, then drawn from the upper half so that keys
    spread out.
    """

    def __init__(self, first: float = 0.2, most: float = 60.0, rng: random.Random | None = None) -> None:
        """`first` and `most` in seconds."""
        self._first = first
        self._most = most
        self._rng = rng or random.Random()
        self._failures: dict[K, int] = {}

    def next(self, key: K) -> float:
        """Seconds to wait after one more failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._most, self._first * 2.0 ** min(failures, 32))
        return self._rng.uniform(delay / 2, delay)

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure starts small again."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures in a row."""
        return self._failures.get(key, 0)


class WorkQueue(Generic[K]):
    """`Schedule` and `Backoff` for one event loop. Other threads add through `call_soon_threadsafe`."""

    def __init__(
        self,
        *,
        backoff: Backoff[K] | None = None,
        clock: Callable[[], float] = time.monotonic,
        paused: bool = False,
    ) -> None:
        """`clock` in seconds; `paused`: hand nothing out until `resume`."""
        self._schedule: Schedule[K] = Schedule()
        self._backoff: Backoff[K] = backoff or Backoff()
        self._clock = clock
        self._wake = asyncio.Event()
        self._closed = False
        self._paused = paused

    def add(self, key: K) -> None:
        """The key needs work."""
        if not self._closed:
            self._schedule.add(key)
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """The key needs work in so many seconds."""
        if not seconds > 0:
            # Not a number either: a due time that compares with nothing would hold up every other.
            self.add(key)
        elif not self._closed:
            self._schedule.add_at(key, self._clock() + seconds)
            self._wake.set()

    def add_failed(self, key: K, at_least: float = 0.0) -> float:
        """The key failed: it comes back after its growing delay, or `at_least` seconds. Gives the delay."""
        delay = max(self._backoff.next(key), at_least)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded."""
        self._backoff.forget(key)

    async def get(self) -> K | None:
        """The next key, waiting for one; None once the queue is closed. End the work with `done`."""
        while not self._closed:
            key = None if self._paused else self._schedule.take(self._clock())
            if key is not None:
                return key
            due = None if self._paused else self._schedule.next_due()
            # No await between looking and clearing: an `add` in between would be slept through.
            self._wake.clear()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                    await self._wake.wait()
            except TimeoutError:
                pass
        return None

    def done(self, key: K) -> None:
        """Work on the key has ended, well or not."""
        self._schedule.done(key)
        self._wake.set()

    def pause(self) -> None:
        """Hand nothing out until `resume`; keys are still taken in."""
        self._paused = True

    def resume(self) -> None:
        """Undo `pause`."""
        self._paused = False
        self._wake.set()

    def close(self) -> None:
        """Hand out nothing more; waiting workers get None."""
        self._closed = True
        self._wake.set()

    def depth(self) -> int:
        """Keys ready to be taken."""
        return self._schedule.depth()

    def processing(self) -> int:
        """Keys being worked on."""
        return self._schedule.processing()
