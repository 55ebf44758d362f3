"""Asks every replica the fixed question, seldom, and remembers what was found until the next time."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from paceline_crds.names import LABEL_POOL_HASH
from paceline_kube import JsonObject, Key, key_of
from paceline_kube.pods import is_ready
from paceline_operator.drift.compare import World
from paceline_operator.drift.replicas import Containers, containers_of

from .judge import CONFIRMED, Answer, Doubts, Failed, Outcome, Reading, confirmed, judge

log = logging.getLogger(__name__)

TICK_SECONDS = 2.0

INTERVAL_SECONDS = 600.0
"""Between two questions to one replica: some 300 prompt tokens and 32 answer tokens, in ten minutes."""

SETTLE_SECONDS = 30.0
"""After a replica has become ready, before it is asked for the first time; it has other things to do."""

DOUBT_SECONDS = 20.0
"""After an answer that differs, before that replica is asked again."""

KEPT_INTERVALS = 3
"""For so many an answer counts though its replica was too busy to give another one."""

FAILED_INTERVALS = 1.5
"""The same though it failed to: once may be chance, as a connection that broke."""


class Records(Protocol):
    """The answers of services that were agreed upon, by pool hash."""

    def of(self, key: Key) -> Mapping[str, Answer]:
        """Those of one service."""
        ...

    async def keep(self, key: Key, answers: Mapping[str, Answer]) -> None:
        """Remember some for ever, or let it go where that fails now."""
        ...


@dataclass(slots=True)
class _Known:
    """What a replica said last.

    Attributes:
        containers: of the pod then.
        asked: when it was asked last.
        heard: when it said this.
    """

    containers: Containers
    asked: float
    heard: float
    reading: Reading | str


@dataclass(slots=True)
class _Service:
    said: dict[str, _Known] = field(default_factory=dict)
    agreed: dict[str, tuple[Answer, int]] = field(default_factory=dict)
    doubts: dict[str, Doubts] = field(default_factory=dict)
    outcomes: dict[str, Outcome] | None = None


class CanaryKeeper:
    """Of every service. What is lost with the process is asked again; what was agreed upon is in the revisions."""

    def __init__(
        self,
        *,
        world: Callable[[Key], World | None],
        services: Callable[[], Iterable[JsonObject]],
        records: Records,
        ask: Callable[[JsonObject], Awaitable[Reading | str]],
        changed: Callable[[Key], None],
        clock: Callable[[], float],
        interval: float = INTERVAL_SECONDS,
        settle: float = SETTLE_SECONDS,
        doubt: float = DOUBT_SECONDS,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            world: reads the caches; None where a service is gone.
            records: where answers are kept that were agreed upon.
            changed: told of a service about which something else is known than before.
            clock: monotonic seconds.
            interval, settle, doubt: seconds, see the constants.
            active: whether this process is the one that asks.
        """
        self._world = world
        self._services = services
        self._records = records
        self._ask = ask
        self._changed = changed
        self._clock = clock
        self._interval = interval
        self._settle = settle
        self._doubt = doubt
        self._active = active
        self._known: dict[Key, _Service] = {}
        self._due: dict[Key, float] = {}
        self._looking: dict[Key, asyncio.Task[None]] = {}

    def of(self, key: Key) -> Mapping[str, Outcome] | None:
        """What is known of the answers of a service, by pool; None before it was asked."""
        known = self._known.get(key)
        return known.outcomes if known is not None else None

    def all(self) -> dict[Key, Mapping[str, Outcome]]:
        """The same of every service; nothing where another process asks."""
        known = dict(self._known) if self._active() else {}
        return {key: one.outcomes for key, one in known.items() if one.outcomes is not None}

    def touch(self, key: Key) -> None:
        """Replicas of the service may have come or gone: look soon. Only those are asked that are due."""
        soon = self._clock() + self._settle
        if self._due.get(key, soon + 1) > soon:
            self._due[key] = soon

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                self.begin_due()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for task in self._looking.values():
                task.cancel()

    def begin_due(self) -> None:
        """Begin the looks that are due. A slow replica of one service holds no other service up."""
        if not self._active():
            self._known.clear()
            self._due.clear()
            return
        now = self._clock()
        keys = [key_of(service) for service in self._services()]
        for position, key in enumerate(keys):
            # New ones are spread over the interval, so that a start is no burst.
            self._due.setdefault(key, now + self._settle + self._interval * position / (len(keys) + 1) / 2)
        for key in self._due.keys() - set(keys):
            self._due.pop(key)
            self._known.pop(key, None)
        for key in keys:
            if self._due[key] <= now and key not in self._looking:
                self._due[key] = now + self._interval
                self._looking[key] = task = asyncio.create_task(self._safely(key))
                task.add_done_callback(functools.partial(self._ended, key))

    def _ended(self, key: Key, _: asyncio.Task[None]) -> None:
        self._looking.pop(key, None)

    async def _safely(self, key: Key) -> None:
        try:
            await self.look(key)
        except Exception:
            log.exception("%s/%s: the answers of its replicas could not be compared", *key)

    async def look(self, key: Key) -> None:
        """Ask the replicas of one service that are due, and judge all of them."""
        world = self._world(key)
        if world is None:
            return
        known = self._known.setdefault(key, _Service())
        ready = {str(pod["metadata"]["uid"]): pod for pod in world.pods if is_ready(pod) and _hash(pod) in world.pools}
        known.said = {uid: one for uid, one in known.said.items() if uid in ready}
        suspects = _suspects(known.doubts)
        due = [pod for uid, pod in ready.items() if self._is_due(known.said.get(uid), pod, suspects)]
        answers = await asyncio.gather(*(self._ask(pod) for pod in due))
        for pod, answer in zip(due, answers, strict=True):
            uid = str(pod["metadata"]["uid"])
            known.said[uid] = self._with(known.said.get(uid), containers_of(pod), answer)
        asked = {str(pod["metadata"]["name"]) for pod in due}
        outcomes = await self._judge(key, world, known, ready, asked)
        if _suspects(known.doubts):
            again = self._clock() + self._doubt
            self._due[key] = min(self._due.get(key, again), again)
        if outcomes != known.outcomes:
            known.outcomes = outcomes
            self._changed(key)

    async def _judge(
        self, key: Key, world: World, known: _Service, ready: Mapping[str, JsonObject], asked: set[str]
    ) -> dict[str, Outcome]:
        recorded = self._records.of(key)
        readings: dict[str, dict[str, Reading | str]] = {}
        for uid, pod in ready.items():
            if uid in known.said:
                readings.setdefault(_hash(pod), {})[str(pod["metadata"]["name"])] = known.said[uid].reading
        new: dict[str, Answer] = {}
        outcomes: dict[str, Outcome] = {}
        doubts: dict[str, Doubts] = {}
        for pool_hash, said in sorted(readings.items()):
            outcome = judge(said, recorded.get(pool_hash))
            if outcome.reference is not None and pool_hash not in recorded and outcome.agree & asked:
                before, times = known.agreed.get(pool_hash, (outcome.reference, 0))
                times = times + 1 if before == outcome.reference else 1
                known.agreed[pool_hash] = outcome.reference, times
                if times >= CONFIRMED:
                    # Twice the same: what everything to come is held against must be no chance.
                    new[pool_hash] = outcome.reference
            told, doubts[pool_hash] = confirmed(outcome, known.doubts.get(pool_hash, {}), asked)
            # Of two hashes of one pool, during a roll, each is a pool of its own here.
            name = world.pools[pool_hash].name
            outcomes[name if name not in outcomes else f"{name} ({pool_hash})"] = told
        known.doubts = doubts
        if new:
            await self._records.keep(key, new)
        return outcomes

    def _is_due(self, known: _Known | None, pod: JsonObject, suspects: set[str]) -> bool:
        if known is None or known.containers != containers_of(pod):
            return True
        wait = self._doubt if pod["metadata"]["name"] in suspects else self._interval
        # A look comes a moment before or after its time.
        return self._clock() - known.asked >= 0.9 * wait

    def _with(self, before: _Known | None, containers: Containers, answer: Reading | str) -> _Known:
        """The answer, or the one before it where a replica is too busy to say it again."""
        now = self._clock()
        intervals = FAILED_INTERVALS if isinstance(answer, Failed) else KEPT_INTERVALS
        kept = (
            isinstance(answer, str)
            and before is not None
            and before.containers == containers
            and now - before.heard < intervals * self._interval
        )
        return replace(before, asked=now) if kept and before is not None else _Known(containers, now, now, answer)


def _suspects(doubts: Mapping[str, Doubts]) -> set[str]:
    """Replicas whose fault was seen, and not often enough to be told."""
    return {name for one in doubts.values() for name, (_, times) in one.items() if times < CONFIRMED}


def _hash(pod: JsonObject) -> str:
    return str((pod["metadata"].get("labels") or {}).get(LABEL_POOL_HASH) or "")
