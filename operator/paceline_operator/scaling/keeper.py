"""Looks at every pool that follows load, every few seconds, and remembers how many replicas it should have.

Nothing is written here but the marks of replicas that drain: a pass orders the count, on the way that a change of the
spec takes. Where no service asks for it, nobody is asked anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from paceline_autoscaler.observed import Settings
from paceline_autoscaler.recommend import Decision, State
from paceline_autoscaler.samples import Present
from paceline_autoscaler.source import MetricsSource
from paceline_autoscaler.source import Pool as Source
from paceline_crds.names import LABEL_POOL, LABEL_SERVICE, derived_name
from paceline_crds.status import ScalingStatus
from paceline_kube import JsonObject, Key, KubeClient, key_of
from paceline_operator.observed import Observed
from paceline_operator.recorder import Recorder
from paceline_operator.render import Desired
from paceline_operator.rounds import come_round

from .asked import Asked, asked, longest_request
from .decide import Memory, decide
from .direct import RATE_LOOKS, Heard, Pool, Replicas, hear
from .drain import Step, marked, step
from .fleet import Standing, ordered, standing, with_counts
from .held import Pages, Sleeper, device_of, has_no_place, may_rest, to_wake
from .marks import Marks, Routers
from .rivals import Rivals
from .slow import Slow
from .told import CONFLICT, scaling_status

log = logging.getLogger(__name__)

STATUS_PATH = "/v1/paceline/status"
INTERVAL_SECONDS = 10.0
TEND_SECONDS = 1.0
LONGEST_PAUSE = 60.0
"""Seconds without a look after which what was remembered of the load is no history any more."""


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
    counts: dict[str, int] = field(default_factory=dict)
    """What passes ask for: what was decided, and replicas that drain."""
    empty: dict[str, set[str]] = field(default_factory=dict)
    """Of these, the uids of those that have nothing left."""
    woken: set[str] = field(default_factory=set)
    """Pools whose last change was from zero."""
    rival: str | None = None
    """An HPA that scales the service."""

    def forget(self, pool: str) -> None:
        for of in (self.memory, self.heard, self.told, self.counts, self.empty):
            of.pop(pool, None)
        self.woken.discard(pool)


class ScalingKeeper:
    """Decides, and says what was decided."""

    def __init__(
        self,
        *,
        services: Callable[[], Iterable[JsonObject]],
        seen: Callable[[Key], Seen | None],
        pods: Callable[[], Iterable[JsonObject]],
        client: KubeClient,
        routers: Routers,
        changed: Callable[[Key], None],
        recorder: Recorder,
        clock: Callable[[], float],
        interval: float = INTERVAL_SECONDS,
        tuning: Settings | None = None,
        prometheus: MetricsSource | None = None,
        knobs: Callable[[Key, str], Mapping[str, int]] = lambda key, pool: {},
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            services: all of them.
            seen: one as the caches have it; None where it is gone or nothing can be rendered.
            pods: of all services.
            client: writes the marks.
            routers: asks the routers.
            changed: told of each service for which something else was decided than before.
            clock: seconds since the epoch.
            interval: seconds between two looks.
            tuning: how eager decisions are.
            prometheus: asked for percentiles; None: there is none.
            knobs: limits that a pool's replicas run with by now, where these follow load.
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
        self._knobs = knobs
        self._active = active
        self._replicas = Replicas(clock)
        self._marks = Marks(client, routers, clock)
        self._slow = None if prometheus is None else Slow(prometheus, clock)
        self._rivals = Rivals(client, lambda: {namespace for namespace, _ in self._known})
        self._pods = pods
        self._tended: set[Key] = set()
        self._one_at_a_time = asyncio.Lock()
        self._known: dict[Key, _Service] = {}
        self._looked: float | None = None
        self._gaps = (0.0, 0.0)
        self._pace = interval

    def of(self, key: Key) -> Mapping[str, ScalingStatus] | None:
        """What was decided, by pool; None before the first look at a service, or where nothing follows load."""
        known = self._known.get(key)
        return None if known is None else known.told

    def all(self) -> Mapping[Key, Mapping[str, ScalingStatus]]:
        """The same of every service; nothing where another process decides."""
        return {key: known.told for key, known in self._known.items()} if self._active() else {}

    def counts(self, key: Key, service: JsonObject, observed: Observed, desired: Desired) -> Desired:
        """What a pass asks for: the spec's counts, and the decided ones of pools that follow load."""
        pools = asked(service)
        if not pools:
            return desired
        known = self._known.get(key)
        decided: Mapping[str, int] = {}
        if known is not None and known.uid == observed.uid:
            decided = known.counts
        return with_counts(desired, observed, pools, decided)

    def forget(self) -> None:
        """Begin anew: another leader may have decided meanwhile."""
        self._known.clear()
        self._tended.clear()

    async def run(self) -> None:
        """For ever."""
        await asyncio.gather(
            come_round(
                self.look,
                active=self._active,
                interval=self._interval,
                failure="how many replicas the pools should have could not be decided",
            ),
            come_round(
                self.tend,
                active=self._active,
                interval=min(TEND_SECONDS, self._interval),
                failure="replicas that drain could not be looked after",
            ),
            come_round(
                self._rivals.look,
                active=self._active,
                interval=min(self._rivals.interval, 3.0 * self._interval),
                failure="whether somebody else scales what is scaled here could not be seen",
            ),
            *([] if self._slow is None else [self._ask_slowly(self._slow)]),
        )

    async def _ask_slowly(self, slow: Slow) -> None:
        await come_round(
            lambda: slow.ask([_source_of(key, name) for key, known in self._known.items() for name in known.memory]),
            active=self._active,
            interval=slow.interval,
            failure="Prometheus could not be asked",
        )

    async def look(self) -> None:
        """Ask and decide, once for every pool that follows load."""
        async with self._one_at_a_time:
            await self._look()

    async def _look(self) -> None:
        now, before = self._clock(), self._looked
        self._looked = now
        gap = 0.0 if before is None else now - before
        if not 0 <= gap <= LONGEST_PAUSE + self._interval:
            self.forget()
            gap = 0.0
        # How old an answer may be is judged by how often looks really come round.
        self._gaps = self._gaps[-1], gap
        self._pace = max(self._interval, *self._gaps)
        wanted = {key_of(service): pools for service in self._services() if (pools := follows_load(service))}
        for key in self._known.keys() - wanted.keys():
            del self._known[key]
            self._tended.discard(key)
            self._changed(key)
        await self._clear_marks()
        if not wanted:
            return
        pages = Pages(*await self._routers(STATUS_PATH), now)
        await asyncio.gather(*(_apart(key, self._service(key, pools, pages)) for key, pools in wanted.items()))

    async def _service(self, key: Key, pools: Mapping[str, Asked], pages: Pages) -> None:
        seen = self._seen(key)
        if seen is None:
            return
        known = self._known.get(key)
        if known is None or known.uid != seen.observed.uid:
            known = self._known[key] = _Service(seen.observed.uid)
        for gone in known.memory.keys() - pools.keys():
            known.forget(gone)
        self._warn_of_one_for_nothing(key, known, seen)
        for name in pools:
            await self._pool(key, known, seen, name, pools, pages)

    def _warn_of_one_for_nothing(self, key: Key, known: _Service, seen: Seen) -> None:
        rival, before = self._rivals.of_service(key), known.rival
        known.rival = rival
        if rival is not None and rival != before:
            words = (
                f"HPA {rival} writes spec.replicas, which nothing uses while the count follows load: write "
                "scaling.mode: External to leave the count to it, or delete it"
            )
            self._recorder.event(seen.service, type="Warning", reason=CONFLICT, message=words)

    async def _pool(
        self, key: Key, known: _Service, seen: Seen, name: str, pools: Mapping[str, Asked], pages: Pages
    ) -> None:
        pool = pools[name]
        where = standing(seen.observed, seen.desired, name)
        if where is None or where.deployment is None:
            return
        rival = self._rivals.of_deployment(key[0], where.deployment.name)
        if rival is not None:
            await self._leave_to(rival, key, known, seen, name, where)
            return
        memory = known.memory.get(name, Memory())
        ready = {pod.uid for pod in where.loaded}
        said = await self._replicas.ask(pod for pod in seen.pods if pod["metadata"]["uid"] in ready)
        keep = (RATE_LOOKS + 0.5) * self._pace
        heard = known.heard[name] = hear(known.heard.get(name, {}), said, keep)
        # As it is by now: asking takes seconds where a replica does not answer.
        after = self._seen(key)
        where = None if after is None else standing(after.observed, after.desired, name)
        if after is None or after.observed.uid != known.uid or where is None:
            return
        seen, now = after, self._clock()
        draining = self._draining(seen, where)
        current = memory.target
        if current is None:
            current = _at_first(seen, where, name, pool, len(draining))
        others = [self._resting(known, seen, other, pools[other]) for other in pools if other != name]
        if not may_rest(others, pool.idle_after, now):
            pool = replace(pool, least=max(1, pool.least))
        held = pages.held(key, name if current and len(seen.desired.pools) > 1 else None)
        listened = Pool(heard, now, self._pace)
        slow = None
        if self._slow is not None:
            slow = self._slow.of(_source_of(key, name), pool.objectives.promised is not None)
        knobs = self._knobs(key, name)
        decision, memory = decide(pool, where, listened, held, current, draining, memory, self._tuning, slow, knobs)
        known.memory[name] = memory
        before = known.told.get(name)
        beside = {"routers": held, "prometheus": slow}
        sources = ["replicas", *(source for source, asked_of in beside.items() if asked_of is not None)]
        told = known.told[name] = scaling_status(name, decision, sources, now, before)
        due = self._settle(key, known, seen, name, where)
        if told is not before:
            log.info("%s/%s: pool %s: %d, %s: %s", *key, name, told.desired, told.reason, told.message)
            self._changed(key)
        if decision.replicas != current:
            (known.woken.add if current == 0 else known.woken.discard)(name)
            words = f"Pool {name} goes from {current} to {decision.replicas} replicas: {decision.message}"
            self._recorder.event(seen.service, type="Normal", reason=decision.reason, message=words)
        await self._write(seen, due)

    def _resting(self, known: _Service, seen: Seen, name: str, pool: Asked) -> tuple[int, float | None]:
        """Replicas of another pool of the service, and since when it has been idle."""
        memory = known.memory.get(name)
        if memory is not None and memory.target is not None:
            return memory.target, memory.state.idle_since
        where = standing(seen.observed, seen.desired, name)
        draining = 0 if where is None else len(self._draining(seen, where))
        return (0 if where is None else _at_first(seen, where, name, pool, draining)), None

    async def _leave_to(self, rival: str, key: Key, known: _Service, seen: Seen, name: str, where: Standing) -> None:
        """Decide nothing about a pool whose Deployment somebody else scales: the count is as that one writes it."""
        assert where.deployment is not None
        before, count = known.told.get(name), where.deployment.replicas
        known.forget(name)
        words = (
            f"HPA {rival} scales Deployment {where.deployment.name}, so that its count is left as it is: delete that "
            "HPA, or write scaling.mode: External and let an HPA scale the InferenceService"
        )
        decision = Decision(count, CONFLICT, words, {}, State())
        told = known.told[name] = scaling_status(name, decision, (), self._clock(), before)
        if before is None or before.reason != CONFLICT:
            log.warning("%s/%s: pool %s: %s", *key, name, words)
            self._recorder.event(seen.service, type="Warning", reason=CONFLICT, message=words)
        if told is not before:
            self._changed(key)
        draining = self._draining(seen, where)
        await self._write(seen, Step((), tuple(pod for pod in where.pods if pod.uid in draining), count))

    async def tend(self) -> None:
        """See whether replicas that drain are empty, and still should drain; wake what is at zero and asked for."""
        async with self._one_at_a_time:
            await self._tend()
            await self._wake()

    async def _wake(self) -> None:
        asleep = [key for key, known in self._known.items() if any(one.target == 0 for one in known.memory.values())]
        if not asleep:
            return
        pages = Pages(*await self._routers(STATUS_PATH), self._clock())
        found = []
        for key in asleep:
            held, seen = pages.held(key), self._seen(key)
            if isinstance(held, Present) and held.low > 0 and seen is not None:
                found.append(Sleeper(key, pages.waited(key), self._device(seen)))
        for key in to_wake(found, self._spoken_for(pages) if found else ()):
            seen = self._seen(key)
            if seen is not None:
                await _apart(key, self._service(key, follows_load(seen.service), pages))

    def _spoken_for(self, pages: Pages) -> set[str]:
        """Devices for which a service that was woken, and is still asked for, has no place yet."""
        taken = set()
        for key, known in self._known.items():
            woken = {name for name, memory in known.memory.items() if memory.target} & known.woken
            held, seen = pages.held(key), self._seen(key) if woken else None
            if seen is None or not isinstance(held, Present) or held.low <= 0:
                continue
            places = [standing(seen.observed, seen.desired, name) for name in woken]
            device = self._device(seen)
            if device is not None and any(where is not None and has_no_place(where) for where in places):
                taken.add(device)
        return taken

    @staticmethod
    def _device(seen: Seen) -> str | None:
        devices = {device_of(pool) for pool in seen.desired.pools} - {None}
        return min((device for device in devices if device is not None), default=None)

    async def _tend(self) -> None:
        for key in sorted(self._tended):
            await _apart(key, self._tend_service(key))

    async def _tend_service(self, key: Key) -> None:
        seen, known = self._seen(key), self._known.get(key)
        self._tended.discard(key)  # `_settle` of a pool puts it back
        if seen is None or known is None or known.uid != seen.observed.uid:
            return
        for name, memory in list(known.memory.items()):
            where = standing(seen.observed, seen.desired, name)
            if where is None or memory.target is None or name not in follows_load(seen.service):
                continue
            draining = self._draining(seen, where)
            if draining:
                going = (pod for pod in seen.pods if pod["metadata"]["uid"] in draining)
                known.empty[name] = await self._marks.empty(going)
            await self._write(seen, self._settle(key, known, seen, name, where))

    def _settle(self, key: Key, known: _Service, seen: Seen, name: str, where: Standing) -> Step:
        """What is due for a pool, and the count that passes ask for from now on."""
        target = known.memory[name].target
        assert target is not None, "a pool that is settled was decided about"
        now = self._clock()
        draining = self._draining(seen, where)
        listened = Pool(known.heard.get(name, {}), now, self._pace)
        empty = known.empty[name] = known.empty.get(name, set()) & draining.keys()
        due = step(target, where.pods, draining, empty, listened.busyness, now, longest_request(seen.service))
        if due.begin or draining:
            self._tended.add(key)
        if known.counts.get(name) != due.count:
            known.counts[name] = due.count
            self._changed(key)
        return due

    def _draining(self, seen: Seen, where: Standing) -> dict[str, float]:
        ours = {pod.uid for pod in where.pods}
        return self._marks.of(pod for pod in seen.pods if pod["metadata"]["uid"] in ours)

    async def _write(self, seen: Seen, due: Step) -> None:
        objects = {str(pod["metadata"]["uid"]): pod for pod in seen.pods}
        for pods, begin in ((due.begin, True), (due.cancel, False)):
            for pod in pods:
                await self._marks.write(objects[pod.uid], begin)

    async def _clear_marks(self) -> None:
        """Take the marks away from replicas of pools that follow load no more."""
        pods = [pod for pod in self._pods() if marked(pod) is not None and not pod["metadata"].get("deletionTimestamp")]
        if not pods:
            return
        following = {
            (service["metadata"]["namespace"], derived_name(service["metadata"]["name"]), pool)
            for service in self._services()
            for pool in asked(service)
        }
        for pod in pods:
            labels = pod["metadata"].get("labels") or {}
            whose = pod["metadata"]["namespace"], labels.get(LABEL_SERVICE), labels.get(LABEL_POOL)
            if whose not in following:
                await self._marks.write(pod, False)


async def _apart(key: Key, work: Awaitable[None]) -> None:
    """Do the work of one service: a fault there must not stop the others, nor go unnoticed."""
    try:
        await work
    except Exception:
        log.exception("%s/%s: how many replicas its pools should have could not be decided", *key)


def _source_of(key: Key, pool: str) -> Source:
    namespace, name = key
    return Source(namespace, name, pool)


def _at_first(seen: Seen, where: Standing, name: str, pool: Asked, draining: int) -> int:
    """What was decided before this operator began, as far as the cluster shows it."""
    count = ordered(seen.observed, seen.desired, name, pool)
    return max(pool.least, min(count, len(where.pods) - draining)) if draining else count


def follows_load(service: JsonObject) -> Mapping[str, Asked]:
    """The pools of a service whose counts are decided now: none while it is suspended or going."""
    if service["metadata"].get("deletionTimestamp") or (service.get("spec") or {}).get("suspend"):
        return {}
    return asked(service)
