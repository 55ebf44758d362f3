"""One pass over one service: gather what is there, plan, apply the plan, tell the status."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline_crds.conditions import Reason
from paceline_crds.names import FIELD_MANAGER_OPERATOR, LABEL_SERVICE, derived_name
from paceline_crds.service import DriftPolicy
from paceline_crds.status import ScalingStatus
from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    PODDISRUPTIONBUDGETS,
    ApiError,
    Conflict,
    JsonObject,
    Key,
    KubeClient,
    NotFound,
    Resource,
    Store,
    TooManyRequests,
    by_namespaced_label,
)
from paceline_kube.pods import is_ready
from paceline_kube.store import IndexFunction

from .actions import Phase, Plan, tidies
from .announcements import announce
from .apply import Applier, NameTaken, ServiceGone
from .budgets import budgets
from .drift.compare import Drift, World
from .drift.repair import Last, Repair, after, repair
from .drift.world import world_of
from .failures import Problem, is_refusal, refusal
from .fights import WORDS, Fights
from .gather import RevisionReader, gather
from .keys import has_keys, told_before
from .observed import Observed
from .plan import Limits, asks_routers, plan
from .pod_events import PodEvents
from .recorder import Recorder
from .records import Records
from .render import Desired, InvalidSpec
from .rendering import Renderer
from .routers import ROUTES_PATH, Routers
from .scaling.keeper import Seen, follows_load
from .served_names import Conflict as NameConflict
from .served_names import conflict_of, served_name_indexes
from .settings import Settings
from .situation import Situation
from .splits import SPLIT_PATH
from .startups import StartUps, recorded
from .status import status_of, with_last_looks
from .upgrades import available
from .verdict import Verdict
from .views import Views
from .written import KEEP_SECONDS, Written

log = logging.getLogger(__name__)

INDEX_SERVICE = "service"
"""Index of children under `namespace/label` of their service; see `child_indexes` and `child_index_value`."""

REFUSED_RETRY_SECONDS = 30.0
"""A refused child is tried again: a quota may have been raised, a policy changed."""

LASTING_SECONDS = 30.0
"""For which a write may fail for a reason that mostly passes (a 500, a kind that is not served) before it is told."""

UNTOLD_SECONDS = 1.0
UNSEEN_SECONDS = KEEP_SECONDS + 1.0
"""Informers tell of our own writes sooner; a write that one never shows was undone, and then is forgotten."""

CONFLICT_SECONDS = 0.2
POLL_MOST_SECONDS = 5.0


def child_indexes() -> dict[str, IndexFunction]:
    """Indexes that the stores of revisions, Deployments, ConfigMaps and pods must have."""
    return {INDEX_SERVICE: by_namespaced_label(LABEL_SERVICE)}


def service_indexes() -> dict[str, IndexFunction]:
    """Indexes of the store of services: from the label on a child (`INDEX_SERVICE`) back to its service, and by the
    served name.
    """

    def label(obj: JsonObject) -> tuple[str]:
        return (child_index_value(obj["metadata"]["namespace"], obj["metadata"]["name"]),)

    return {INDEX_SERVICE: label, **served_name_indexes()}


def child_index_value(namespace: str, service: str) -> str:
    """Where `INDEX_SERVICE` has the children of a service. The label is the name only where the name fits a label."""
    return f"{namespace}/{derived_name(service)}"


@dataclass(frozen=True, slots=True)
class Caches:
    """Stores of the informers.

    `services` with `service_indexes()`; `revisions`, `deployments`, `configmaps`, `pods` and `budgets` with
    `child_indexes()`, of objects that carry the label `paceline.io/service`; `routers` are the pods with
    `routers.ROUTER_SELECTOR` in the operator's own namespace.

    `views` of the objects, what was `written` of late and `records` of the traffic that were taken away stand beside
    them, since who listens to the informers asks or tells them too.
    """

    services: Store
    revisions: Store
    deployments: Store
    configmaps: Store
    pods: Store
    budgets: Store
    routers: Store
    views: Views = field(default_factory=Views)
    written: Written = field(default_factory=lambda: Written(time.monotonic))
    records: Records = field(default_factory=Records)


class Reconciler:
    """Brings one service at a time to what its spec asks for. Passes of different services may run side by side."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        recorder: Recorder,
        clock: Callable[[], float],
        settings: Settings,
        drift_of: Callable[[Key], Drift | None] = lambda _: None,
        split_of: Callable[[Key], Verdict | None] = lambda _: None,
        crd_lacks: Callable[[], tuple[str, ...] | None] = lambda: (),
        keys_of: Callable[[Key], str | None] = lambda _: "",
        counts_of: Callable[[Key, JsonObject, Observed, Desired], Desired] = lambda *given: given[-1],
        scaling_of: Callable[[Key], Mapping[str, ScalingStatus] | None] = lambda _: None,
    ) -> None:
        """
        Args:
            clock: seconds since the epoch.
            drift_of: what the last look at a service's configuration found.
            split_of: what the routers advise of its pools.
            crd_lacks: fields that the cluster's CRDs lack; None: not known yet.
            keys_of: why no router can check a service's keys; None: not known yet.
            counts_of: what is asked for, with the counts of pools that follow load.
            scaling_of: what was decided about these pools; None: nothing yet.
        """
        self._client = client
        self._caches = caches
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._pod_events = PodEvents(client, time.monotonic)
        self._routers = Routers(client, settings.namespace, settings.router_admin_port)
        self._limits = Limits(settings.router_ack_timeout, settings.no_room_seconds)
        self._written = caches.written
        self._read_revision = RevisionReader()
        self._render = Renderer(settings.runtime_image)
        self._uids: dict[Key, str] = {}
        self._drift_of = drift_of
        self._split_of = split_of
        self._crd_lacks = crd_lacks
        self._keys_of = keys_of
        self._counts_of = counts_of
        self._scaling_of = scaling_of
        self._repaired: dict[Key, Last] = {}
        self._failing: dict[Key, float] = {}
        self._start_ups = StartUps()
        self._fights = Fights(time.monotonic)
        self._worlds: dict[Key, tuple[tuple[Any, ...], World]] = {}

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

    def seen(self, key: Key) -> Seen | None:
        """A service as the caches have it; None where it is gone or going, or cannot be rendered."""
        service = self._caches.services.get(*key)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return None
        observed = self._observe(service)
        pods = self._caches.pods.by_index(INDEX_SERVICE, child_index_value(*key))
        try:
            return Seen(service, observed, self._render(service, observed), tuple(pods))
        except InvalidSpec:
            return None

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
        pods = self._caches.pods.by_index(INDEX_SERVICE, child_index_value(namespace, name))
        next_question = await self._pod_events.ask(key, pods)
        observed = self._observe(service)
        try:
            observed = await self._put_back(key, service, observed)
            desired = self._render(service, observed)
        except ServiceGone:
            self._forget(key)
            return None
        except InvalidSpec as exc:
            problem = Problem(exc.reason, str(exc))
            situation = Situation(observed, None, problem, conflict=self._conflict(service), drift=self._drift_of(key))
            return await self._tell(service, situation)
        desired = self._counts_of(key, service, observed, desired)
        if asks_routers(observed, desired):
            views = await self._routers.ask(self._caches.routers.list(), namespace, name)
            observed = replace(observed, routers=views)
        steps = plan(observed, desired, self._clock(), self._limits)
        steps = replace(steps, actions=(*steps.actions, *budgets(observed, desired, steps.phase)))
        drift = self._drift_of(key)
        mending = self._mend(key, steps, observed, desired, drift)
        if mending.action is not None:
            steps = replace(steps, actions=(*steps.actions, mending.action))
        try:
            refused = await self._take(steps, service, observed, desired)
        except ServiceGone:
            self._forget(key)
            return None
        except (Conflict, NotFound) as exc:
            if isinstance(exc, NotFound) and not exc.details.get("name"):
                raise  # its whole kind is not served
            # Another writer, or the garbage collector, was first: what it did is on its way into the caches.
            log.debug("%s/%s: %s", *key, exc)
            return CONFLICT_SECONDS
        if refused is None and mending.costs and drift is not None:
            # The interval is counted on a clock that nobody sets.
            self._repaired[key] = last = after(mending, observed, drift, time.monotonic(), self._repaired.get(key))
            if last.futile:
                self._recorder.event(service, type="Warning", reason="DriftComesBack", message=last.futile)
        if steps.actions:
            observed = self._observe(service)
        upgrade = available(desired, self._settings.runtime_image)
        situation = Situation(observed, desired, refused, steps.waiting, self._conflict(service), drift, upgrade)
        told = await self._tell(service, situation)
        await self._measure(key, observed)
        looks = (self._next_look(key, steps, observed, refused, mending), next_question, told)
        return min((seconds for seconds in looks if seconds is not None), default=None)

    def world(self, key: Key) -> World | None:
        """What is compared for a service; None where it is gone or going.

        While no object has changed, it is the very one of the last time: looks come round for ever, changes do not.
        """
        service = self._caches.services.get(*key)
        if service is None or service["metadata"].get("deletionTimestamp"):
            self._worlds.pop(key, None)
            return None
        value = child_index_value(*key)
        caches = self._caches
        deployments, config_maps, pods, revisions = (
            store.by_index(INDEX_SERVICE, value)
            for store in (caches.deployments, caches.configmaps, caches.pods, caches.revisions)
        )
        versions = tuple(
            (obj["metadata"].get("uid"), obj["metadata"].get("resourceVersion"))
            for obj in (service, *deployments, *config_maps, *pods, *revisions)
        )
        known = self._worlds.get(key)
        if known is not None and known[0] == versions:
            return known[1]
        observed = self._observe(service)
        try:
            asked = self._render(service, observed).pools
        except InvalidSpec:
            asked = ()
        world = world_of(observed, asked, deployments, config_maps, pods)
        if not self._written.pending(key):
            self._worlds[key] = versions, world
        return world

    async def _put_back(self, key: Key, service: JsonObject, observed: Observed) -> Observed:
        """Put the record of the traffic back where somebody took it away; suspended or not, since it says what is."""
        lost = self._caches.records.lost(key, observed)
        if lost is None:
            return observed
        try:
            await Applier(self._client, self._recorder, self._written, service, observed).put_back(lost)
        except (NameTaken, ApiError) as exc:
            if isinstance(exc, ApiError) and not is_refusal(exc):
                raise
            log.warning("%s/%s: the record of the traffic cannot be put back: %s", *key, exc)
        return self._observe(service)

    async def _measure(self, key: Key, observed: Observed) -> None:
        """Write down how long replicas took to start. What cannot be written is let go: nothing hangs on it."""
        samples = self._start_ups.see(key, observed.pods)
        for name, status in recorded(observed, samples).items() if samples else ():
            kept = observed.revision(name)
            version = kept.resource_version if kept is not None else ""
            try:
                stored = await self._client.patch(
                    INFERENCEREVISIONS,
                    name,
                    {"metadata": {"resourceVersion": version}, "status": status},
                    observed.namespace,
                    subresource="status",
                    field_manager=FIELD_MANAGER_OPERATOR,
                )
            except ApiError as exc:
                log.info("%s/%s: the start-up time of %s is not written down: %s", *key, name, exc)
            else:
                self._written.put(key, INFERENCEREVISIONS, stored)

    def _mend(self, key: Key, steps: Plan, observed: Observed, desired: Desired, drift: Drift | None) -> Repair:
        """The next repair, once nothing else is under way."""
        if desired.drift_policy is not DriftPolicy.REPAIR or drift is None or steps.phase is not Phase.SETTLED:
            return Repair()
        return repair(observed, drift, time.monotonic(), self._repaired.get(key))

    def _read(self, key: Key) -> JsonObject | None:
        """The service, unless it is gone or going: its children follow it by their owner references."""
        cached = self._caches.services.get(*key)
        if cached is None or cached["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return None
        uid = str(cached["metadata"]["uid"])
        if self._uids.get(key, uid) != uid:
            self._forget(key)
        self._uids[key] = uid
        return self._written.view(key, INFERENCESERVICES, [cached])[0]

    def _forget(self, key: Key) -> None:
        self._written.forget(key)
        self._uids.pop(key, None)
        self._repaired.pop(key, None)
        self._failing.pop(key, None)
        self._fights.forget(key)
        self._caches.records.forget(key)
        self._worlds.pop(key, None)
        self._pod_events.forget(key)
        self._start_ups.forget(key)

    def _observe(self, service: JsonObject) -> Observed:
        namespace, name = key = (service["metadata"]["namespace"], service["metadata"]["name"])
        value = child_index_value(namespace, name)

        def children(resource: Resource, store: Store) -> Iterable[JsonObject]:
            return self._written.view(key, resource, store.by_index(INDEX_SERVICE, value))

        return gather(
            service,
            read=self._read_revision,
            revisions=children(INFERENCEREVISIONS, self._caches.revisions),
            deployments=children(DEPLOYMENTS, self._caches.deployments),
            config_maps=children(CONFIGMAPS, self._caches.configmaps),
            pods=self._caches.pods.by_index(INDEX_SERVICE, value),
            budgets=children(PODDISRUPTIONBUDGETS, self._caches.budgets),
            said=lambda uid: self._pod_events.said(key, uid),
            views=self._caches.views,
        )

    def _conflict(self, service: JsonObject) -> NameConflict | None:
        return conflict_of(service, self._caches.services)

    async def _take(self, steps: Plan, service: JsonObject, observed: Observed, desired: Desired) -> Problem | None:
        """Take the actions in order; what the API server does not accept ends the pass, and is told in the status."""
        applier = Applier(self._client, self._recorder, self._written, service, observed, desired)
        for action in steps.actions:
            try:
                await applier.take(action)
            except NameTaken as exc:
                log.warning("%s/%s: %s", observed.namespace, observed.name, exc)
                return Problem(Reason.RESOURCE_CONFLICT, str(exc))
            except ApiError as exc:
                if not is_refusal(exc) and not self._lasts(exc, (observed.namespace, observed.name)):
                    raise
                log.warning("%s/%s: cannot %s: %s", observed.namespace, observed.name, action.sentence, exc)
                problem = refusal(action.sentence, exc.message)
                if not tidies(action):
                    return problem
                # Nothing that was asked for waits for it; it is tried again when the service is looked at next.
                self._recorder.event(service, type="Warning", reason="TidyingRefused", message=problem.sentence)
        if not steps.conflict:
            self._failing.pop((observed.namespace, observed.name), None)
        elif self._has_lasted((observed.namespace, observed.name)):
            # Children of a former service of the name go by themselves; what stays is for somebody to take away.
            return Problem(Reason.RESOURCE_CONFLICT, f"{steps.waiting}; it is not touched")
        return None

    def _lasts(self, error: ApiError, key: Key) -> bool:
        """Whether an error that mostly passes has kept a service up for so long that people have to know."""
        if isinstance(error, Conflict | TooManyRequests):
            return False
        return self._has_lasted(key)

    def _has_lasted(self, key: Key) -> bool:
        now = time.monotonic()
        return now - self._failing.setdefault(key, now) > LASTING_SECONDS

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

    async def _tell(self, service: JsonObject, situation: Situation) -> float | None:
        """Write the status where it changed, and only over the version of the service that was judged.

        Losing to another writer, or to a deletion, is no error: what it wrote wakes the next pass.

        Returns:
            Seconds after which to look again at the latest; None: the status is told.
        """
        old: dict[str, Any] = service.get("status") or {}
        conditions = old.get("conditions") or []
        observed = situation.observed
        key = (observed.namespace, observed.name)
        keys = self._keys_of(key)
        if keys is None:
            keys = told_before(conditions) if has_keys(service) else ""
        situation = replace(situation, split=self._split_of(key), crd_lacks=self._crd_lacks() or (), keys=keys)
        if situation.desired is not None and follows_load(service):
            situation = replace(situation, scaling=self._scaling_of(key), follows_load=True)
        new = status_of(situation, conditions, self._clock(), self._settings.public_router_url)
        if situation.drift is None or situation.split is None or (situation.follows_load and not situation.scaling):
            new = with_last_looks(new, old, situation)
        if new == old:
            return None
        if (pause := self._fights.wait(key, new)) > 0:
            return pause
        patch = {
            # So a leader that was held up, and is none any more, overwrites nothing that was said since.
            "metadata": {"resourceVersion": service["metadata"]["resourceVersion"]},
            "status": {**dict.fromkeys(old.keys() - new.keys()), **new},
        }
        try:
            stored = await self._client.patch(
                INFERENCESERVICES,
                observed.name,
                patch,
                observed.namespace,
                subresource="status",
                field_manager=FIELD_MANAGER_OPERATOR,
            )
        except (NotFound, Conflict) as exc:
            log.debug("%s/%s: status not written: %s", *key, exc)
            return UNTOLD_SECONDS
        if stored["metadata"]["uid"] == observed.uid:
            self._written.put(key, INFERENCESERVICES, stored)
        announce(self._recorder, service, conditions, new["conditions"])
        if self._fights.wrote(key, new):
            self._recorder.event(service, type="Warning", reason="StatusOverwritten", message=WORDS)
        return None
