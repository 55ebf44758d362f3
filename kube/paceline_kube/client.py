"""`KubeClient`: the one door to the API server. Objects are plain JSON dictionaries, errors are typed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from paceline_kube.resources import Resource

JsonObject: TypeAlias = dict[str, Any]
PatchKind: TypeAlias = Literal["merge", "json", "strategic"]
Propagation: TypeAlias = Literal["Background", "Foreground", "Orphan"]
WatchType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A consistent list. `resource_version` is where a watch may start."""

    items: list[JsonObject]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch. A BOOKMARK's object carries only `metadata.resourceVersion`."""

    type: WatchType
    object: JsonObject

    @property
    def resource_version(self) -> str:
        """Where a later watch may resume."""
        return str(self.object.get("metadata", {}).get("resourceVersion", ""))


class KubeClient(Protocol):
    """What the rest of Paceline may do with an API server.

    Every call ends within `timeout` seconds unless it takes its own; every call raises `ApiError` (or a
    subclass) for an answer that is no success and `Unreachable` when there was none. All writes are
    validated strictly: a field the server does not know is refused instead of dropped.
    """

    @property
    def timeout(self) -> float:
        """Seconds after which a call without its own timeout gives up."""
        ...

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, subresource: str | None = None
    ) -> JsonObject:
        """One object."""
        ...

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> ObjectList:
        """All objects, page by page. Items get `apiVersion` and `kind`, which the server omits in lists."""
        ...

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
        """Changes after `resource_version`, until the server ends the watch after about `timeout_seconds`.

        Close the iterator (`contextlib.aclosing`) to drop the connection early. `inactivity_seconds` without
        a byte, bookmarks included, raise `Unreachable`; an ERROR event raises its typed error (`Gone` for
        410).
        """
        ...

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
        """POST an object, or (with `name` and `subresource`) its TokenRequest, Eviction or Binding."""
        ...

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
        """Server-side apply; name and namespace come from the body. `Conflict` names the other managers."""
        ...

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
        """Merge patch (RFC 7386), JSON patch (RFC 6902) or strategic merge patch (built-in kinds only)."""
        ...

    async def replace(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> JsonObject:
        """PUT a whole object; with `metadata.resourceVersion` in it only over that version (else `Conflict`)."""
        ...

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
        """Delete one object; with `uid` or `resource_version` only if it still is that (else `Conflict`)."""
        ...

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
        """Anything else, by path. `timeout` in seconds, by default the client's."""
        ...
