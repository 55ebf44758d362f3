"""One pass over one service: gather what is there, plan, apply the plan, tell the status."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paceline_kube import Conflict, JsonObject, Key, KubeClient, NotFound
from paceline_kube.pods import is_ready

from .acting import Actor
from .actions import Phase, Plan
from .apply import ServiceGone
from .budgets import budgets
from .drift.compare import World
from .drift.mending import Mender
from .drift.repair import Repair
from .failures import Problem
from .findings import Findings
from .keeping import Limits
from .observed import Observed
from .observing import Observer
from .plan import asks_routers, plan
from .pod_events import PodEvents
from .recorder import Recorder
from .render import Desired, InvalidSpec
from .rollout import staging
from .rollout.places import Places
from .rollout.state import State
from .routers import ROUTES_PATH, Routers
from .scaling.keeper import Seen
from .settings import Settings
from .situation import Situation
from .splits import SPLIT_PATH
from .stores import Caches
from .telling import Teller
from .upgrades import available
from .written import KEEP_SECONDS

log = logging.getLogger(__name__)

REFUSED_RETRY_SECONDS = 30.0
"""A refused child is tried again: a quota may have been raised, a policy changed."""

UNSEEN_SECONDS = KEEP_SECONDS + 1.0
"""Informers tell of our own writes sooner; a write that one never shows was undone, and then is forgotten."""

CONFLICT_SECONDS = 0.2
POLL_MOST_SECONDS = 5.0


class Reconciler:
    """Brings one service at a time to what its spec asks for. Passes of different services may run side by side."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        recorder: Recorder,
        clock: Callable[[], float],
        settings: Settings,
        findings: Findings | None = None,
    ) -> None:
        """
        Args:
            clock: seconds since the epoch.
            findings: what keepers beside the passes found out; None: there are none.
        """
        self._caches = caches
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._findings = findings or Findings()
        self._limits = Limits(settings.router_ack_timeout, settings.no_room_seconds)
        self._written = caches.written
        self._pod_events = PodEvents(client, time.monotonic)
        self._routers = Routers(client, settings.namespace, settings.router_admin_port)
        self._observer = Observer(caches, self._pod_events, settings.runtime_image)
        self._actor = Actor(client, recorder, caches.written)
        self._mender = Mender()
        self._teller = Teller(
            client, recorder, caches.written, self._findings, clock, router_url=settings.public_router_url
        )
        self._places = Places(client, time.monotonic, staging.ROOM_SECONDS)
        self._uids: dict[Key, str] = {}

    async def prepare(self) -> None:
        """Once at start, as leader: make the Secret with the routers' admin token if it is absent.

        Raises:
            KubeError: the Secret can be neither read nor made.
        """
        await self._routers.prepare()

    async def close(self) -> None:
        """Close the connections to the routers."""
        await self._routers.close()

    async def split_pages(self) -> list[Mapping[str, Any]]:
        """What each ready router says of pools by shape, see `splits`."""
        return await self._routers.pages(self._caches.routers.list(), SPLIT_PATH)

    async def route_pages(self) -> list[Mapping[str, Any]]:
        """What each ready router says of its services, see `keys`."""
        return await self._routers.pages(self._caches.routers.list(), ROUTES_PATH)

    async def router_pages(self, path: str) -> tuple[int, list[Mapping[str, Any]]]:
        """How many routers should answer at a path, and what those say that do."""
        routers = self._caches.routers.list()
        ready = sum(is_ready(pod) for pod in routers)
        return ready or len(routers), await self._routers.pages(routers, path)

    def current(self, key: Key) -> Observed | None:
        """A service and its children as the caches have them; None where it is gone or going."""
        return self._observer.current(key)

    async def router_answers(self, path: str) -> Mapping[str, Mapping[str, Any] | None]:
        """What each ready router answers at a path, by its name; None of one that cannot be asked."""
        return await self._routers.answers(self._caches.routers.list(), path)

    async def recorders(self) -> list[str]:
        """Base URLs of the recorders that are ready."""
        return await self._routers.recorders()

    async def recorded(self, url: str) -> Mapping[str, Any] | None:
        """What a recorder answers; None where it cannot be asked."""
        return await self._routers.recorded(url)

    def seen(self, key: Key) -> Seen | None:
        """A service as the caches have it; None where it is gone or going, or cannot be rendered."""
        return self._observer.seen(key)

    def world(self, key: Key) -> World | None:
        """What is compared for a service; None where it is gone or going."""
        return self._observer.world(key)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass.

        Returns:
            Seconds after which the service should be looked at again though nothing changed; None: not needed.

        Raises:
            KubeError: a write failed; the caller tries again after a growing delay.
        """
        key = (namespace, name)
        service = self._read(key)
        if service is None:
            return None
        try:
            return await self._pass(key, service)
        except ServiceGone:
            self._forget(key)
            return None

    async def _pass(self, key: Key, service: JsonObject) -> float | None:
        next_question = await self._pod_events.ask(key, self._observer.pods(key))
        observed = self._observer.observe(service)
        lost = self._caches.records.lost(key, observed)
        if lost is not None:
            await self._actor.put_back(lost, service, observed)
            observed = self._observer.observe(service)
        try:
            desired = self._observer.render(service, observed)
        except InvalidSpec as exc:
            problem, drift = Problem(exc.reason, str(exc)), self._findings.drift(key)
            situation = Situation(observed, None, problem, conflict=self._observer.conflict(service), drift=drift)
            return await self._teller.tell(service, situation)
        desired = self._findings.counts(key, service, observed, desired)
        if await self._actor.catch_up(key, observed, desired):
            observed = self._observer.observe(service)
        observed, steps, stood = await self._plan(key, observed, desired)
        steps = replace(steps, actions=(*steps.actions, *budgets(observed, desired, steps.phase)))
        drift = self._findings.drift(key)
        mending = self._mender.next(key, steps.phase, observed, desired, drift)
        if mending.action is not None:
            steps = replace(steps, actions=(*steps.actions, mending.action))
        try:
            refused = await self._actor.take(steps, service, observed, desired)
        except (Conflict, NotFound) as exc:
            if isinstance(exc, NotFound) and not exc.details.get("name"):
                raise  # its whole kind is not served
            # Another writer, or the garbage collector, was first: what it did is on its way into the caches.
            log.debug("%s/%s: %s", *key, exc)
            return CONFLICT_SECONDS
        if refused is None and (words := self._mender.taken(key, mending, observed, drift)):
            self._recorder.event(service, type="Warning", reason="DriftComesBack", message=words)
        if steps.actions:
            observed = replace(self._observer.observe(service), judgement=observed.judgement)
        upgrade = available(desired, self._settings.runtime_image)
        conflict = self._observer.conflict(service)
        situation = Situation(observed, desired, refused, steps.waiting, conflict, drift, upgrade)
        told = await self._teller.tell(service, situation)
        await self._actor.measure(key, observed)
        if stood is not None:
            now = replace(self._observer.observe(service), judgement=observed.judgement)
            await self._actor.chronicle(key, now, steps, stood)
        looks = (self._next_look(key, steps, observed, refused, mending), next_question, told)
        return min((seconds for seconds in looks if seconds is not None), default=None)

    async def _plan(self, key: Key, observed: Observed, desired: Desired) -> tuple[Observed, Plan, State | None]:
        """What was seen, with what the next steps hang on; these steps; and where a rollout by steps stands."""
        stand, limits = staging.stand_of(observed, desired), self._limits
        if staging.asks_routers(observed, stand) if stand else asks_routers(observed, desired):
            views = await self._routers.ask(self._caches.routers.list(), *key)
            observed = replace(observed, routers=views)
        if stand is None:
            return observed, plan(observed, desired, self._clock(), limits), None
        if staging.asks_room(stand, desired):
            observed = replace(observed, free=await self._places.free(key, stand.changed))
        observed = replace(observed, judgement=self._findings.judgement(key))
        return observed, staging.plan(observed, desired, stand, self._clock(), limits), stand.state

    def _read(self, key: Key) -> JsonObject | None:
        """The service; None where it is gone or going."""
        uid = self._observer.uid(key)
        if uid is None:
            self._forget(key)
            return None
        if self._uids.get(key, uid) != uid:
            self._forget(key)
        self._uids[key] = uid
        return self._observer.service(key)

    def _forget(self, key: Key) -> None:
        self._written.forget(key)
        self._uids.pop(key, None)
        self._caches.records.forget(key)
        self._pod_events.forget(key)
        self._observer.forget(key)
        self._actor.forget(key)
        self._mender.forget(key)
        self._teller.forget(key)
        self._places.forget(key)

    def _next_look(
        self, key: Key, steps: Plan, observed: Observed, refused: Problem | None, mending: Repair
    ) -> float | None:
        delays = []
        if mending.waiting:
            delays.append(POLL_MOST_SECONDS)
        if refused is not None:
            delays.append(REFUSED_RETRY_SECONDS)
        elif steps.phase is Phase.BLOCKED:
            delays.append(POLL_MOST_SECONDS)
        elif steps.poll:
            waited = self._clock() - observed.traffic.moved_at if observed.traffic else 0.0
            delays.append(min(max(waited / 10, self._settings.poll_seconds), POLL_MOST_SECONDS))
        if steps.again is not None:
            delays.append(steps.again)
        if self._written.pending(key):
            delays.append(UNSEEN_SECONDS)
        return min(delays, default=None)
