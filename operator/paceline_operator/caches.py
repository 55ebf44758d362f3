"""The operator's informers: what they hold, and which service they wake when it changes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_crds.names import LABEL_SERVICE
from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    PODDISRUPTIONBUDGETS,
    PODS,
    Change,
    Informer,
    JsonObject,
    Key,
    KubeClient,
    Resource,
    Store,
    Timing,
    drop_managed_fields,
    key_of,
)
from paceline_kube.pods import is_ready

from .drift.replicas import containers_of
from .gather import tells_nothing
from .records import Records
from .routers import ROUTER_SELECTOR
from .served_names import concerned
from .stores import INDEX_SERVICE, Caches, child_indexes, service_indexes
from .views import Views
from .written import Written


@dataclass(frozen=True, slots=True)
class Watching:
    """Caches for the reconciler, and the informers that fill them, by what they hold."""

    caches: Caches
    informers: dict[str, tuple[Informer, ...]]

    def all(self) -> list[Informer]:
        """Every informer."""
        return [informer for group in self.informers.values() for informer in group]

    async def services_synced(self) -> None:
        """Wait for the first list of services, which shows that their kind is served."""
        for informer in self.informers["services"]:
            await informer.synced.wait()

    async def synced(self) -> None:
        """Wait until each informer has its first list."""
        for informer in self.all():
            await informer.synced.wait()


def watching(
    client: KubeClient,
    *,
    namespaces: Sequence[str],
    own_namespace: str,
    enqueue: Callable[[Key], None],
    touched: Callable[[Key], None] = lambda _: None,
    timing: Timing | None = None,
) -> Watching:
    """Informers for the kinds of `Caches`; run them all.

    Args:
        namespaces: of the services; empty: all.
        own_namespace: where the routers are.
        enqueue: called with the key of each service that a change may concern. What passes have seen already, since
            they wrote it themselves, and what changes no view of a child, concerns nobody.
        touched: called with the key of each service whose replicas may run with something else now.
    """
    services = Store(service_indexes())
    views, written, records = Views(), Written(time.monotonic), Records()

    def service_changed(change: Change) -> None:
        if change.new is None or not written.knows(change.key, INFERENCESERVICES, change.new):
            enqueue(change.key)
        for key in concerned(change, services):
            enqueue(key)

    def child_changed(kind: Resource, change: Change) -> None:
        if change.new is None:
            views.forget(change.object)
        keys = dict.fromkeys(
            key for obj in (change.old, change.new) if obj is not None for key in owners(obj["metadata"], services)
        )
        for key in keys:
            if kind == INFERENCEREVISIONS:
                records.see(key, change)
            if change.new is None:
                written.gone(key, kind, change.object)
            if _concerns_what_runs(kind, change):
                touched(key)
            if not _is_no_news(kind, change, key):
                enqueue(key)

    def _is_no_news(kind: Resource, change: Change, key: Key) -> bool:
        if change.new is None:
            return False
        if written.knows(key, kind, change.new):
            return True
        service = services.get(*key)
        if change.old is None or service is None:
            return False
        return tells_nothing(kind, change.old, change.new, service, views)

    def informers(
        resource: Resource,
        store: Store,
        on_change: Callable[[Change], None],
        label_selector: str | None,
        scope: Sequence[str | None],
    ) -> tuple[Informer, ...]:
        return tuple(
            Informer(
                client,
                resource,
                namespace=namespace,
                label_selector=label_selector,
                on_change=on_change,
                transform=drop_managed_fields,
                store=store,
                timing=timing,
            )
            for namespace in scope
        )

    scope: Sequence[str | None] = list(namespaces) or [None]
    groups = {"services": informers(INFERENCESERVICES, services, service_changed, None, scope)}
    stores: dict[str, Store] = {}
    for name, resource in _CHILDREN.items():
        stores[name] = Store(child_indexes())
        on_change = functools.partial(child_changed, resource)
        groups[name] = informers(resource, stores[name], on_change, LABEL_SERVICE, scope)
    routers = Store()
    groups["routers"] = informers(PODS, routers, lambda _: None, ROUTER_SELECTOR, [own_namespace])
    caches = Caches(services=services, routers=routers, **stores, views=views, written=written, records=records)
    return Watching(caches, groups)


_CHILDREN = {
    "revisions": INFERENCEREVISIONS,
    "deployments": DEPLOYMENTS,
    "configmaps": CONFIGMAPS,
    "pods": PODS,
    "budgets": PODDISRUPTIONBUDGETS,
}


def _concerns_what_runs(kind: Resource, change: Change) -> bool:
    """Whether replicas may run with something else now.

    Statuses change all the time: a Deployment counts its pods, a pod tells of its way to being ready, a revision what
    was measured of it.
    """
    if kind == PODDISRUPTIONBUDGETS:
        return False
    old, new = change.old, change.new
    if old is None or new is None or kind == CONFIGMAPS:
        return True
    if kind == PODS:
        return _what_runs(old) != _what_runs(new)
    return bool(old["metadata"].get("generation") != new["metadata"].get("generation"))


def _what_runs(pod: JsonObject) -> tuple[object, ...]:
    metadata = pod["metadata"]
    return (
        metadata.get("labels"),
        metadata.get("deletionTimestamp"),
        pod["spec"].get("containers"),
        is_ready(pod),
        containers_of(pod),
    )


def owners(metadata: dict[str, object], services: Store) -> list[Key]:
    """The services that a child's label names: a label may be a cut name, so it is looked up."""
    labels = metadata.get("labels")
    label = labels.get(LABEL_SERVICE) if isinstance(labels, dict) else None
    if not label:
        return []
    return [key_of(service) for service in services.by_index(INDEX_SERVICE, f"{metadata.get('namespace')}/{label}")]
