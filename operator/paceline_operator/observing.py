"""What the informers' caches say of one service, with our own writes that they do not show yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    PODDISRUPTIONBUDGETS,
    JsonObject,
    Key,
    Resource,
    Store,
)

from .drift.compare import World
from .drift.world import world_of
from .gather import RevisionReader, gather
from .observed import Observed
from .pod_events import PodEvents
from .render import Desired, InvalidSpec
from .rendering import Renderer
from .scaling.keeper import Seen
from .served_names import Conflict, conflict_of
from .stores import INDEX_SERVICE, Caches, child_index_value
from .tuning.asked import allowed


class Observer:
    """Reads services and their children, and renders specs; each once for each of its states."""

    def __init__(self, caches: Caches, pod_events: PodEvents, runtime_image: str) -> None:
        self._caches = caches
        self._pod_events = pod_events
        self._read_revision = RevisionReader()
        self._render = Renderer(runtime_image)
        self._worlds: dict[Key, tuple[tuple[Any, ...], World]] = {}

    def uid(self, key: Key) -> str | None:
        """Of the service, unless it is gone or going: its children follow it by their owner references."""
        cached = self._living(key)
        return None if cached is None else str(cached["metadata"]["uid"])

    def service(self, key: Key) -> JsonObject | None:
        """The service with what was written to it of late, unless it is gone or going."""
        cached = self._living(key)
        return None if cached is None else self._caches.written.view(key, INFERENCESERVICES, [cached])[0]

    def pods(self, key: Key) -> list[JsonObject]:
        """Its pods, whatever their state."""
        return self._caches.pods.by_index(INDEX_SERVICE, child_index_value(*key))

    def observe(self, service: JsonObject) -> Observed:
        """The service and its children as values."""
        namespace, name = key = (service["metadata"]["namespace"], service["metadata"]["name"])
        value = child_index_value(namespace, name)

        def children(resource: Resource, store: Store) -> Iterable[JsonObject]:
            return self._caches.written.view(key, resource, store.by_index(INDEX_SERVICE, value))

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

    def render(self, service: JsonObject, observed: Observed) -> Desired:
        """What the spec asks for.

        Raises:
            InvalidSpec: the spec cannot be acted on.
        """
        return self._render(service, observed)

    def conflict(self, service: JsonObject) -> Conflict | None:
        """Other services that ask for the same served name."""
        return conflict_of(service, self._caches.services)

    def current(self, key: Key) -> Observed | None:
        """A service and its children as values; None where it is gone or going."""
        service = self.service(key)
        return None if service is None else self.observe(service)

    def seen(self, key: Key) -> Seen | None:
        """A service as the caches have it; None where it is gone or going, or cannot be rendered."""
        service = self._living(key)
        if service is None:
            return None
        observed = self.observe(service)
        try:
            return Seen(service, observed, self._render(service, observed), tuple(self.pods(key)))
        except InvalidSpec:
            return None

    def world(self, key: Key) -> World | None:
        """What is compared for a service; None where it is gone or going.

        While no object has changed, it is the very one of the last time: looks come round for ever, changes do not.
        """
        service = self._living(key)
        if service is None:
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
        observed = self.observe(service)
        try:
            asked = self._render(service, observed).pools
        except InvalidSpec:
            asked = ()
        world = world_of(observed, asked, deployments, config_maps, pods, allowed(service))
        if not caches.written.pending(key):
            self._worlds[key] = versions, world
        return world

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._worlds.pop(key, None)

    def _living(self, key: Key) -> JsonObject | None:
        service = self._caches.services.get(*key)
        return None if service is None or service["metadata"].get("deletionTimestamp") else service
