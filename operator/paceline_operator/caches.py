"""The operator's informers: what they hold, and which service they wake when it changes."""

from __future__ import annotations

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
    Key,
    KubeClient,
    Resource,
    Store,
    Timing,
    drop_managed_fields,
    key_of,
)

from .reconcile import INDEX_SERVICE, Caches, child_indexes, service_indexes
from .routers import ROUTER_SELECTOR
from .served_names import concerned


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
        enqueue: called with the key of each service that a change may concern.
        touched: called with the key of each service whose own objects have changed.
    """
    services = Store(service_indexes())

    def service_changed(change: Change) -> None:
        enqueue(change.key)
        for key in concerned(change, services):
            enqueue(key)

    def child_changed(change: Change) -> None:
        for obj in (change.old, change.new):
            for key in owners(obj["metadata"], services) if obj is not None else ():
                enqueue(key)
                touched(key)

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
        groups[name] = informers(resource, stores[name], child_changed, LABEL_SERVICE, scope)
    routers = Store()
    groups["routers"] = informers(PODS, routers, lambda _: None, ROUTER_SELECTOR, [own_namespace])
    return Watching(Caches(services=services, routers=routers, **stores), groups)


_CHILDREN = {
    "revisions": INFERENCEREVISIONS,
    "deployments": DEPLOYMENTS,
    "configmaps": CONFIGMAPS,
    "pods": PODS,
    "budgets": PODDISRUPTIONBUDGETS,
}


def owners(metadata: dict[str, object], services: Store) -> list[Key]:
    """The services that a child's label names: a label may be a cut name, so it is looked up."""
    labels = metadata.get("labels")
    label = labels.get(LABEL_SERVICE) if isinstance(labels, dict) else None
    if not label:
        return []
    return [key_of(service) for service in services.by_index(INDEX_SERVICE, f"{metadata.get('namespace')}/{label}")]
