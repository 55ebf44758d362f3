"""Looks at every service again and again, and remembers what drifted until the next look."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from paceline_kube import JsonObject, Key, key_of
from paceline_kube.pods import is_ready

from .compare import Drift, Ranges, World, compare
from .contents import Contents, config_maps_of
from .replicas import Replicas

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5


class DriftKeeper:
    """One look at each service at least every `interval` seconds, and soon after its objects changed.

    `of(key)` is what the last look found; None before the first one. The worker is told by `changed(key)` when a look
    found something else than the one before.
    """

    def __init__(
        self,
        *,
        world: Callable[[Key], World | None],
        services: Callable[[], Iterable[JsonObject]],
        changed: Callable[[Key], None],
        clock: Callable[[], float],
        interval: float,
        active: Callable[[], bool] = lambda: True,
        settle: float = 2.0,
        config_map: Callable[[str, str], Awaitable[JsonObject]] | None = None,
        within: Callable[[Key], Ranges] = lambda key: {},
    ) -> None:
        """
        Args:
            active: whether this process is the one that looks.
            world: reads the caches; None where a service is gone.
            clock: monotonic seconds.
            settle: seconds after a change of objects before the next look, so that a burst is one look.
            config_map: (namespace, name) → a ConfigMap of the user's; None: they are not looked at.
            within: how far the values go that running replicas of a service were told, by pool and parameter; before
                what the spec says of them by now.
        """
        self._world = world
        self._services = services
        self._changed = changed
        self._clock = clock
        self._interval = interval
        self._active = active
        self._settle = settle
        self._within = within
        self._replicas = Replicas(clock)
        self._contents = Contents(config_map, clock) if config_map is not None else None
        self._found: dict[Key, Drift] = {}
        self._seen: dict[Key, tuple[Any, ...]] = {}
        self._due: dict[Key, float] = {}
        self.looks = 0

    def of(self, key: Key) -> Drift | None:
        """What the last look at a service found."""
        return self._found.get(key)

    def all(self) -> dict[Key, Drift]:
        """What the last look at every service found."""
        return dict(self._found)

    def touch(self, key: Key) -> None:
        """Objects of the service have changed: look soon."""
        soon = self._clock() + self._settle
        if self._due.get(key, soon + 1) > soon:
            self._due[key] = soon

    def retold(self, key: Key) -> None:
        """Replicas of the service were told to run with something else: what they said of it is out of date."""
        self._replicas.forget(key)
        self.touch(key)

    def tuned(self, key: Key) -> frozenset[str]:
        """Names of replicas that were found to run with other values than they were started with."""
        found = self._found.get(key)
        return frozenset() if found is None else found.tuned

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look_at_due()
            await asyncio.sleep(TICK_SECONDS)

    async def look_at_due(self) -> None:
        """One round: every service whose look is due."""
        if not self._active():
            return
        now = self._clock()
        keys = [key_of(service) for service in self._services()]
        for position, key in enumerate(keys):
            # New ones are spread over the interval, so that a start is no burst.
            self._due.setdefault(key, now + self._settle + self._interval * position / (len(keys) + 1) / 2)
        known = set(keys)
        for key in [key for key in self._due if key not in known]:
            self._due.pop(key)
            self._found.pop(key, None)
            self._seen.pop(key, None)
            self._replicas.forget(key)
            if self._contents is not None:
                self._contents.forget(key)
        due = [key for key in keys if self._due[key] <= now]
        await asyncio.gather(*(self._look_safely(key) for key in due))

    async def _look_safely(self, key: Key) -> None:
        self._due[key] = self._clock() + self._interval
        try:
            await self.look(key)
        except Exception:
            # One odd object must not keep the others from being looked at.
            log.exception("%s/%s: the configuration could not be compared", *key)

    async def look(self, key: Key) -> Drift | None:
        """Look at one service now."""
        world = self._world(key)
        if world is None:
            return None
        if told := self._within(key):
            world = replace(world, ranges={**world.ranges, **told})
        ready = (pod for pod in world.pods if is_ready(pod))
        # A look that some change brought about needs no news of pods that have not changed.
        world = replace(world, reports=await self._replicas.ask(key, ready, self._interval / 2))
        if self._contents is not None:
            pools = (pool for pool in world.pools.values() if pool.hash in world.wanted)
            names = frozenset().union(*(config_maps_of(pool.pod_template) for pool in pools))
            world = replace(world, contents=await self._contents.ask(key, names))
        self.looks += 1
        seen = _inputs(world)
        found = self._found.get(key)
        if found is not None and self._seen.get(key) == seen:
            return found
        drift = compare(world)
        self._seen[key] = seen
        if drift != self._found.get(key):
            self._found[key] = drift
            self._changed(key)
        return drift


def _inputs(world: World) -> tuple[Any, ...]:
    """All that a comparison hangs on, objects by their versions: mostly nothing has changed since the last look."""
    objects = (*world.deployments, *world.config_maps, *world.pods)
    return (
        tuple(world.pools.items()),
        world.wanted,
        tuple((obj["metadata"].get("uid"), obj["metadata"].get("resourceVersion")) for obj in objects),
        tuple((uid, report.config, report.error) for uid, report in world.reports.items()),
        tuple(world.contents.items()),
        world.ranges,
    )
