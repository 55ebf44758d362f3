"""Looks at every pool whose knobs follow load, every few seconds, and has its replicas run with what was decided.

Nothing is written to the cluster: what is in effect is what replicas say, so that an operator that begins needs no
memory of the one before. A replica starts with what its revision records, with or without an operator, and is told what
was decided at the first look that finds it ready. Where no service asks for it, nobody is asked anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from paceline_autoscaler.knobs import MOVED, Observed, Settings, State
from paceline_autoscaler.tuning import resumed, tune
from paceline_crds.names import LABEL_POOL
from paceline_kube import JsonObject, Key, key_of
from paceline_kube.pods import is_ready
from paceline_operator.recorder import Recorder
from paceline_operator.rounds import come_round
from paceline_operator.scaling.fleet import Standing, standing
from paceline_operator.scaling.keeper import Seen

from .asked import Asked, Limits, asked, by_parameter, ranges_of
from .heard import Heard, found_values, hear, measuring, samples
from .replicas import Page, Replicas, differs, fitting
from .told import Told, tuning_status

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
WINDOW_SECONDS = 60.0
"""Over which is measured what a change did; shorter than `Settings.settle` by more than a look."""
TOUCH_SECONDS = 0.5
NAMED = 3


@dataclass(slots=True)
class _Pool:
    """What is remembered of one pool.

    Attributes:
        hash: of the configuration that replicas were started with; of another one nothing measured still holds.
        asked: what the spec asked for at the last look.
        within: how far the values went that replicas were last told; None before they were told any.
    """

    hash: str
    asked: Asked
    within: Limits | None = None
    state: State | None = None
    heard: dict[str, Heard] = field(default_factory=dict)
    told: Told | None = None


@dataclass(slots=True)
class _Service:
    uid: str
    pools: dict[str, _Pool] = field(default_factory=dict)
    back: dict[str, Limits | None] = field(default_factory=dict)
    """Pools that follow load no more, and whose replicas are to run as they were started again; how far they went."""


class TuningKeeper:
    """Decides, has it done, and says what was decided."""

    def __init__(
        self,
        *,
        services: Callable[[], Iterable[JsonObject]],
        seen: Callable[[Key], Seen | None],
        tuned: Callable[[Key], Collection[str]],
        retold: Callable[[Key], None],
        changed: Callable[[Key], None],
        recorder: Recorder,
        clock: Callable[[], float],
        interval: float = INTERVAL_SECONDS,
        window: float = WINDOW_SECONDS,
        settings: Settings | None = None,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            services: all of them.
            seen: one as the caches have it; None where it is gone or nothing can be rendered.
            tuned: names of a service's replicas that were found to run otherwise than they were started.
            retold: told of each service whose replicas were told other values: what they said before is out of date.
            changed: told of each service for which something else was decided than before.
            clock: seconds since the epoch.
            interval, window: seconds, see the constants.
            settings: how eager decisions are.
            active: whether this process is the one that looks.
        """
        self._services = services
        self._seen = seen
        self._tuned = tuned
        self._retold = retold
        self._changed = changed
        self._recorder = recorder
        self._clock = clock
        self._interval = interval
        self._window = window
        self._settings = Settings() if settings is None else settings
        self._active = active
        self._replicas = Replicas()
        self._known: dict[Key, _Service] = {}
        self._touched: set[Key] = set()
        self._one_at_a_time = asyncio.Lock()

    def of(self, key: Key) -> Mapping[str, Told] | None:
        """What is told of a service's pools; None before the first look, or where nothing follows load."""
        known = self._known.get(key)
        return None if known is None else {n: one.told for n, one in known.pools.items() if one.told is not None}

    def all(self) -> Mapping[Key, Mapping[str, Told]]:
        """The same of every service; nothing where another process decides."""
        return {key: self.of(key) or {} for key in list(self._known)} if self._active() else {}

    def knobs(self, key: Key, pool: str) -> Mapping[str, int]:
        """What was decided of one pool; nothing where no knob of it follows load, or none was decided yet."""
        told = (self.of(key) or {}).get(pool)
        return {} if told is None else told.status.knobs

    def within(self, key: Key) -> dict[str, dict[str, tuple[int, int]]]:
        """By pool and parameter, how far the values went that replicas were last told.

        A spec that asks for something else is followed at the next look. Until then what they run with is as it was
        told, and no drift.
        """
        known = self._known.get(key)
        if known is None:
            return {}
        every = {**known.back, **{name: one.within for name, one in known.pools.items()}}
        return {name: by_parameter(limits) for name, limits in every.items() if limits is not None}

    def touch(self, key: Key) -> None:
        """Something of a service has changed: where that is what it asks for here, it is looked at soon."""
        if key in self._known:
            self._touched.add(key)

    def forget(self) -> None:
        """Begin anew: another leader may have decided meanwhile. Replicas say what."""
        self._known.clear()
        self._touched.clear()

    async def run(self) -> None:
        """For ever."""
        failure = "what the knobs of pools should be could not be decided"
        await asyncio.gather(
            come_round(self.look, active=self._active, interval=self._interval, failure=failure),
            come_round(
                self.look_at_touched,
                active=self._active,
                interval=min(TOUCH_SECONDS, self._interval),
                failure=failure,
            ),
        )

    async def look(self) -> None:
        """Ask, decide and tell, once for every pool whose knobs follow load, or did until now."""
        async with self._one_at_a_time:
            services = {key_of(service): service for service in self._services()}
            for key in self._known.keys() - services.keys():
                del self._known[key]
            due = [key for key, one in services.items() if key in self._known or asked(one) or self._tuned(key)]
            await asyncio.gather(*(self._safely(key) for key in due))

    async def look_at_touched(self) -> None:
        """The same for services that ask for something else than at the last look."""
        if not self._touched:
            return
        async with self._one_at_a_time:
            touched, self._touched = self._touched, set()
            due = []
            for service in self._services():
                key = key_of(service)
                known = self._known.get(key) if key in touched else None
                if known is not None and asked(service) != {name: one.asked for name, one in known.pools.items()}:
                    due.append(key)
            await asyncio.gather(*(self._safely(key) for key in due))

    async def _safely(self, key: Key) -> None:
        try:
            await self._service(key)
        except Exception:
            log.exception("%s/%s: what its knobs should be could not be decided", *key)

    async def _service(self, key: Key) -> None:
        seen = self._seen(key)
        if seen is None or seen.desired.suspended:
            return
        wanted = asked(seen.service)
        known = self._known.get(key)
        if known is None or known.uid != seen.observed.uid:
            known = self._known[key] = _Service(seen.observed.uid)
        for name in known.pools.keys() - wanted.keys():
            known.back[name] = known.pools.pop(name).within
            self._changed(key)
        for name in known.back.keys() & wanted.keys():
            del known.back[name]
        tuned = set(self._tuned(key))
        for name, one in wanted.items():
            await self._pool(key, known, seen, name, one)
        back = [
            pod
            for pod in seen.pods
            if is_ready(pod)
            and (pool := _pool_of(pod)) not in wanted
            and (pool in known.back or pod["metadata"]["name"] in tuned)
        ]
        if not await self._put_back(key, seen, back):
            known.back.clear()
        if not wanted and not known.back:
            self._known.pop(key, None)

    async def _put_back(self, key: Key, seen: Seen, pods: Collection[JsonObject]) -> bool:
        """Have replicas run as they were started; whether some have still to be asked again."""
        pages = await asyncio.gather(*(self._replicas.page(pod) for pod in pods))
        off = [pod for pod, page in zip(pods, pages, strict=True) if isinstance(page, Page) and differs(page, {})]
        refused = [words for words in await asyncio.gather(*(self._replicas.tell(pod, {}) for pod in off)) if words]
        if refused:
            log.warning("%s/%s: replicas do not run as started again: %s", *key, "; ".join(refused[:NAMED]))
        if done := len(off) - len(refused):
            self._retold(key)
            count = "1 replica runs" if done == 1 else f"{done} replicas run"
            words = f"{count} as started again: no autoRanges of the spec hold for them"
            log.info("%s/%s: %s", *key, words)
            self._recorder.event(seen.service, type="Normal", reason="KnobsPutBack", message=words)
        return bool(refused) or any(isinstance(page, str) for page in pages)

    async def _pool(self, key: Key, known: _Service, seen: Seen, name: str, one: Asked) -> None:
        where = standing(seen.observed, seen.desired, name)
        if where is None or not where.ready:
            return
        memory = known.pools.get(name)
        if memory is None or memory.hash != where.pool.hash:
            # The values go on; what was measured was of another configuration.
            told = None if memory is None else memory.told
            state = (
                None
                if memory is None or memory.state is None
                else State(memory.state.values, self._clock(), tightened=memory.state.tightened)
            )
            memory = _Pool(where.pool.hash, one, None if memory is None else memory.within, state, told=told)
        memory.asked, known.pools[name] = one, memory
        pods = _pods_of(seen, where)
        said = dict(zip(pods, await asyncio.gather(*map(self._replicas.page, pods.values())), strict=True))
        now = self._clock()
        memory.heard = hear(memory.heard, {pod: (now, page) for pod, page in said.items()}, self._window)
        ranges, unused = ranges_of(one.limits(now), where.pool.config.parameters)
        if memory.state is None:
            found = found_values(memory.heard)
            if not found:
                return  # nobody says yet what runs, and that may be another operator's decision
            memory.state = resumed({knob: found[knob] for knob in ranges if knob in found}, ranges, now)
        observed = Observed(
            samples=samples(memory.heard, one.level, self._window, self._interval, now),
            ranges=ranges,
            limit=one.limit,
            replicas=len(pods),
            rolling=where.rolling,
            measuring=measuring(memory.heard, self._window),
            first_limit=one.first_limit,
            settings=self._settings,
        )
        decision = tune(observed, memory.state, now)
        memory.state = decision.state
        wanted = {knob.value: value for knob, value in decision.knobs.items()}
        refusing = await self._tell(key, pods, memory.heard, wanted)
        memory.within = one.widest
        before = memory.told
        status = tuning_status(name, decision, ranges, now, before.status if before is not None else None)
        memory.told = Told(status, unused, refusing)
        if memory.told != before:
            self._changed(key)
        if decision.reason in MOVED:
            log.info("%s/%s: pool %s: %s", *key, name, decision.message)
            words = f"Pool {name}: {decision.message}"
            self._recorder.event(seen.service, type="Normal", reason=f"Knobs{decision.reason}", message=words)

    async def _tell(
        self, key: Key, pods: Mapping[str, JsonObject], heard: Mapping[str, Heard], wanted: Mapping[str, int]
    ) -> str:
        """Tell those replicas that run with something else; in words which do not take it."""
        if not self._active():
            return ""  # another process decides by now
        pages = {pod: page for pod, one in heard.items() if (page := one.page) is not None and differs(page, wanted)}
        answers = await asyncio.gather(
            *(self._replicas.tell(pods[pod], fitting(wanted, page.started)) for pod, page in pages.items())
        )
        refused = {pod: words for pod, words in zip(pages, answers, strict=True) if words}
        if len(refused) < len(pages):
            self._retold(key)
        named = "; ".join(f"{pod}: {words}" for pod, words in sorted(refused.items())[:NAMED])
        more = f" and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
        return f"{named}{more}"


def _pods_of(seen: Seen, where: Standing) -> dict[str, JsonObject]:
    """By name, the replicas that have the pool's load; in a rollout by steps those of both revisions."""
    loaded = {pod.uid for pod in where.loaded}
    return {str(pod["metadata"]["name"]): pod for pod in seen.pods if str(pod["metadata"]["uid"]) in loaded}


def _pool_of(pod: JsonObject) -> str:
    return str((pod["metadata"].get("labels") or {}).get(LABEL_POOL) or "")
