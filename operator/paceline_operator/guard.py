"""A `KubeClient` that writes only while this process leads, and long enough for the write to end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from paceline_kube import (
    JsonObject,
    KubeClient,
    KubeError,
    ObjectList,
    PatchKind,
    Propagation,
    Resource,
    WatchEvent,
)


class NotLeader(KubeError):
    """This process does not hold the lease, or not for long enough: the write was not sent."""


class LeaderGuard:
    """Passes everything on to `client`; a write first needs a lease that outlasts the write's timeout.

    What remains: a process that is stopped between this check and the send, and wakes up seconds later. The writes of
    the reconciler, a status among them, therefore also name the version that they were judged on, and new objects are
    created, which fails where there is one by now.
    """

    def __init__(self, client: KubeClient, remaining: Callable[[], float]) -> None:
        """`remaining` gives the seconds left of the lease, zero or less without one."""
        self._client = client
        self._remaining = remaining

    @property
    def timeout(self) -> float:
        return self._client.timeout

    def check(self, seconds: float | None = None) -> None:
        """
        Raises:
            NotLeader: less than `seconds` (absent: the client's timeout) are left of the lease.
        """
        needed = self.timeout if seconds is None else seconds
        remaining = self._remaining()
        if remaining <= 0:
            raise NotLeader("not the leader: nothing is written")
        if remaining < needed:
            raise NotLeader(f"{remaining:.1f} s left of the lease, a write may take {needed:g} s: not written")

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, subresource: str | None = None
    ) -> JsonObject:
        return await self._client.get(resource, name, namespace, subresource)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> ObjectList:
        return await self._client.list(resource, namespace, label_selector, field_selector)

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        *,
        resource_version: str,
        timeout_seconds: int,
        inactivity_seconds: float | None = None,
    ) -> AsyncIterator[WatchEvent]:
        return self._client.watch(
            resource,
            namespace,
            label_selector,
            field_selector,
            resource_version=resource_version,
            timeout_seconds=timeout_seconds,
            inactivity_seconds=inactivity_seconds,
        )

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        self.check()
        return await self._client.create(
            resource,
            body,
            namespace,
            name=name,
            subresource=subresource,
            field_manager=field_manager,
            dry_run=dry_run,
        )

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        field_manager: str,
        force: bool = False,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        self.check()
        return await self._client.apply(
            resource,
            body,
            field_manager=field_manager,
            force=force,
            subresource=subresource,
            dry_run=dry_run,
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        self.check()
        return await self._client.patch(
            resource,
            name,
            body,
            namespace,
            kind=kind,
            subresource=subresource,
            field_manager=field_manager,
            dry_run=dry_run,
        )

    async def replace(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> JsonObject:
        self.check()
        return await self._client.replace(resource, body, subresource=subresource, field_manager=field_manager)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation = "Background",
        grace_period_seconds: int | None = None,
    ) -> JsonObject:
        self.check()
        return await self._client.delete(
            resource,
            name,
            namespace,
            uid=uid,
            resource_version=resource_version,
            propagation=propagation,
            grace_period_seconds=grace_period_seconds,
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> JsonObject:
        if method.upper() not in ("GET", "HEAD"):
            self.check(timeout)
        return await self._client.request(
            method, path, body=body, query=query, content_type=content_type, timeout=timeout
        )
