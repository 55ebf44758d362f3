"""Looks at every pool that follows load, every few seconds, and remembers how many replicas it should have.

Nothing is written here: a pass orders the count, on the way that a change of the spec takes. Where no service asks for
it, nobody is asked anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_autoscaler.observed import Settings
from paceline_autoscaler.samples import Absent, Sample, exactly
from paceline_crds.status import ScalingStatus
from paceline_kube import JsonObject, Key, key_of
from paceline_operator.observed import Observed
from paceline_operator.recorder import Recorder
from paceline_operator.render import Desired
from paceline_operator.rounds import come_round

from .asked import Asked, asked
from .decide import Memory, decide
from .direct import RATE_LOOKS, Heard, Pool, Replicas, hear
from .fleet import ordered, standing, with_counts
from .told import scaling_status

log = logging.getLogger(__name__)

STATUS_PATH = "/v1/paceline/status"
INTERVAL_SECONDS = 10.0
LONGEST_PAUSE = 3.0
"""Intervals after which what was remembered of the load is no history any more: a new leader begins anew."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A service as the caches have it."""

    service: JsonObject
    observed: Observed
    desired: Desired
    pods: tuple[JsonObject, ...]


@dataclass(slots=True)
class _Service:
    """What is remembered of one service, by pool."""

    uid: str
    memory: dict[str, Memory] = field(default_factory=dict)
    heard: dict[str, dict[str, Heard]] = field(default_factory=dict)
    told: dict[str, ScalingStatus] = field(default_factory=dict)


class ScalingKeeper:
    """Decides, and says what was decided."""

    def __init__(
        self,
        *,
        services: Callable[[], Iterable[JsonObject]],
        seen: Callable[[Key], Seen | None],
        routers: Callable[[], Awaitable[tuple[int, list[Mapping[str, Any]]]]],
        changed: Callable[[Key], None],
        recorder: Recorder,
        clock: Callable[[], float],
        interval: float = INTERVAL_SECONDS,
        tuning: Settings | None = None,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            services: all of them.
            seen: one as the caches have it; None where it is gone or nothing can be rendered.
            routers: how many router pods there are, and the bodies of `GET /v1/paceline/status` of those that answer.
            changed: told of each service for which something else was decided than before.
            clock: seconds since the epoch.
            interval: seconds between two looks.
            tuning: how eager decisions are.
            active: whether this process is the one that looks.
        """
        self._services = services
        self._seen = seen
        self._routers = routers
        self._changed = changed
        self._recorder = recorder
        self._clock = clock
        self._interval = interval
        self._tuning = Settings() if tuning is None else tuning
        self._active = active
        self._replicas = Replicas(clock)
        self._known: dict[Key, _Service] = {}
        self._looked: float | None = None

    def of(self, key: Key) -> Mapping[str, ScalingStatus] | None:
        """What was decided, by pool; None before the first look at a service, or where nothing follows load."""
        known = self._known.get(key)
        return None if known is None else known.told

    def all(self) -> Mapping[Key, Mapping[str, ScalingStatus]]:
        """The same of every service."""
        return {key: known.told for key, known in self._known.items()}

    def counts(self, key: Key, service: JsonObject, observed: Observed, desired: Desired) -> Desired:
        """What a pass asks for: the spec's counts, and the decided ones of pools that follow load."""
        pools = asked(service)
        if not pools:
            return desired
        known = self._known.get(key)
        decided: dict[str, int] = {}
        if known is not None and known.uid == observed.uid:
            decided = {name: one.target for name, one in known.memory.items() if one.target is not None}
        return with_counts(desired, observed, pools, decided)

    def forget(self) -> None:
        """Begin anew: another leader may have decided meanwhile."""
        self._known.clear()

    async def run(self) -> None:
        """For ever."""
        await come_round(
            self.look,
            active=self._active,
            interval=self._interval,
            failure="how many replicas the pools should have could not be decided",
        )

    async def look(self) -> None:
        """Ask and decide, once for every pool that follows load."""
        now, before = self._clock(), self._looked
        self._looked = now
        if before is not None and not 0 <= now - before <= LONGEST_PAUSE * self._interval:
            self._known.clear()
        wanted = {key_of(service): pools for service in self._services() if (pools := follows_load(service))}
        for key in self._known.keys() - wanted.keys():
            del self._known[key]
            self._changed(key)
        if not wanted:
            return
        count, pages = await self._routers()
        await asyncio.gather(
            *(self._service(key, pools, _held(key, count, pages, now)) for key, pools in wanted.items())
        )

    async def _service(self, key: Key, pools: Mapping[str, Asked], held: Sample | None) -> None:
        seen = self._seen(key)
        if seen is None:
            return
        known = self._known.get(key)
        if known is None or known.uid != seen.observed.uid:
            known = self._known[key] = _Service(seen.observed.uid)
        for gone in known.memory.keys() - pools.keys():
            del known.memory[gone]
            known.heard.pop(gone, None)
            known.told.pop(gone, None)
        for name, one in pools.items():
            await self._pool(key, known, seen, name, one, held)

    async def _pool(self, key: Key, known: _Service, seen: Seen, name: str, pool: Asked, held: Sample | None) -> None:
        where = standing(seen.observed, seen.desired, name)
        if where is None or where.deployment is None:
            return
        memory = known.memory.get(name, Memory())
        ready = {pod.uid for pod in where.ready}
        said = await self._replicas.ask(pod for pod in seen.pods if pod["metadata"]["uid"] in ready)
        keep = (RATE_LOOKS + 0.5) * self._interval
        heard = known.heard[name] = hear(known.heard.get(name, {}), said, keep)
        now = self._clock()
        current = memory.target
        if current is None:
            current = ordered(seen.observed, seen.desired, name) or pool.initial
        decision, memory = decide(
            pool, where, Pool(heard, now, self._interval), held, current, (), memory, self._tuning
        )
        known.memory[name] = memory
        before = known.told.get(name)
        sources = ["replicas", *(["routers"] if held is not None else [])]
        told = known.told[name] = scaling_status(name, decision, sources, now, before)
        if told is before:
            return
        log.info("%s/%s: pool %s: %d, %s: %s", *key, name, told.desired, told.reason, told.message)
        if decision.replicas != current:
            words = f"Pool {name} goes from {current} to {decision.replicas} replicas: {decision.message}"
            self._recorder.event(seen.service, type="Normal", reason=decision.reason, message=words)
        self._changed(key)


def follows_load(service: JsonObject) -> Mapping[str, Asked]:
    """The pools of a service whose counts are decided now: none while it is suspended or going."""
    if service["metadata"].get("deletionTimestamp") or (service.get("spec") or {}).get("suspend"):
        return {}
    return asked(service)


def _held(key: Key, count: int, pages: Iterable[Mapping[str, Any]], now: float) -> Sample | None:
    """Requests that routers hold for a service; None where there is no router that could."""
    if not count:
        return None
    namespace, name = key
    found = []
    for page in pages:
        try:
            found.append(int(page["services"][f"{namespace}/{name}"]["held"]))
        except (KeyError, TypeError, ValueError):
            continue
    if len(found) < count:
        return Absent(f"{len(found)} of {count} routers say what they hold")
    return exactly(float(sum(found)), now)
