"""The table from the Kubernetes API: informers for services, revisions and pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Set

from paceline_crds import names
from paceline_kube import INFERENCEREVISIONS, INFERENCESERVICES, PODS, Change, Informer, KubeClient, drop_managed_fields
from paceline_router.table.records import (
    JsonObject,
    Record,
    Removal,
    Replica,
    Revision,
    Service,
    Table,
    replica_from_pod,
    revision_from_object,
    service_from_object,
    updated,
)

log = logging.getLogger(__name__)

_Kind = type[Service] | type[Revision] | type[Replica]


class KubeSource:
    """Gives the table to `use` after the first full sync and after every change. With the API server away the last
    one stays.
    """

    def __init__(self, client: KubeClient, use: Callable[[Table, Set[str] | None], None]) -> None:
        self._use = use
        self._table = Table()
        self._pending: list[Record | Removal] = []
        self._flush_planned = False
        self._synced = False
        self._used = False
        self._informers = (
            self._informer(client, INFERENCESERVICES, Service),
            self._informer(client, INFERENCEREVISIONS, Revision),
            self._informer(client, PODS, Replica, label_selector=names.LABEL_SERVICE),
        )

    def _informer(
        self, client: KubeClient, resource: object, kind: _Kind, label_selector: str | None = None
    ) -> Informer:
        return Informer(
            client,
            resource,  # type: ignore[arg-type]
            label_selector=label_selector,
            transform=drop_managed_fields,
            on_change=lambda change: self._take(kind, change),
        )

    @property
    def error(self) -> str | None:
        """What the last contact with the API server failed with; None while all is well."""
        return next((str(informer.last_error) for informer in self._informers if informer.last_error is not None), None)

    def age(self) -> float | None:
        """Seconds since the API server was last heard, for the kind that is worst off; None before the first time."""
        ages = [informer.age() for informer in self._informers]
        known = [age for age in ages if age is not None]
        return max(known) if len(known) == len(ages) else None

    async def run(self) -> None:
        """Follow the API server for ever."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            for informer in self._informers:
                await informer.synced.wait()
            self._synced = True
            self._flush()
            log.info(
                "the table is complete: %d services, %d replicas", len(self._table.services), len(self._table.replicas)
            )

    def _take(self, kind: _Kind, change: Change) -> None:
        self._pending.extend(changes_of(kind, change))
        if not self._flush_planned:
            # All changes of one batch make one new table.
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        pending, self._pending = self._pending, []
        changed = services_of(self._table, pending)
        if pending:
            self._table = updated(self._table, pending)
        if self._synced:
            self._use(self._table, changed if self._used else None)
            self._used = True


def services_of(table: Table, changes: Iterable[Record | Removal]) -> set[str]:
    """The services that changes speak of; `table` is the one before them."""
    found: set[str] = set()
    for change in changes:
        if isinstance(change, Service):
            found.add(change.key)
        elif isinstance(change, Replica | Revision):
            found.add(change.service)
            # A pod may change hands by a change of its labels.
            before = table.replicas.get(change.uid) if isinstance(change, Replica) else None
            if before is not None:
                found.add(before.service)
        elif change.kind is Service:
            found.add(change.key)
        else:
            gone = (table.replicas if change.kind is Replica else table.revisions).get(change.key)
            if gone is not None:
                found.add(gone.service)
    return found


def changes_of(kind: _Kind, change: Change) -> list[Record | Removal]:
    """What a change of one API object means for the table."""
    if kind is Replica:
        return _pod_changes(change)
    key = "/".join(change.key)
    if change.new is None:
        return [Removal(kind, key)]
    return [service_from_object(change.new) if kind is Service else revision_from_object(change.new)]


def _pod_changes(change: Change) -> list[Record | Removal]:
    removed: list[Record | Removal] = []
    if change.old is not None and (change.new is None or _uid(change.old) != _uid(change.new)):
        removed = [Removal(Replica, _uid(change.old))]
    if change.new is None:
        return removed
    replica = replica_from_pod(change.new)
    return [*removed, replica if replica is not None else Removal(Replica, _uid(change.new))]


def _uid(obj: JsonObject) -> str:
    return str(obj["metadata"]["uid"])
