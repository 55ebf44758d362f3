"""The informers' stores, and how the children of a service are found in them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from paceline_crds.names import LABEL_SERVICE, derived_name
from paceline_kube import JsonObject, Store, by_namespaced_label
from paceline_kube.store import IndexFunction

from .records import Records
from .served_names import served_name_indexes
from .views import Views
from .written import Written

INDEX_SERVICE = "service"
"""Index of children under `namespace/label` of their service; see `child_indexes` and `child_index_value`."""


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
