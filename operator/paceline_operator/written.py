"""Reading one's own writes: what the API server answered to a write counts until the informer has caught up.

Without it the pass after a write could decide on the state before it: count the generation of the traffic again, or
make an object twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paceline_kube import JsonObject, Key, Resource, key_of, uid_of

KEEP_SECONDS = 10.0
"""After this long the informer is right even where it does not show the write: somebody undid it."""


@dataclass(frozen=True, slots=True)
class _Write:
    object: JsonObject
    deleted: bool
    at: float


class Written:
    """Writes of late, by service."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds; it only has to move forward."""
        self._clock = clock
        self._writes: dict[Key, dict[tuple[Resource, Key], _Write]] = {}

    def put(self, service: Key, resource: Resource, obj: JsonObject) -> None:
        """The answer to a create, apply or patch."""
        self._note(service, resource, obj, deleted=False)

    def remove(self, service: Key, resource: Resource, obj: JsonObject) -> None:
        """`obj` (with its uid) was deleted."""
        self._note(service, resource, obj, deleted=True)

    def forget(self, service: Key) -> None:
        """The service is gone."""
        self._writes.pop(service, None)

    def knows(self, service: Key, resource: Resource, obj: JsonObject) -> bool:
        """Whether what an informer shows is our own write, or a state before it: passes have seen that already."""
        write = self._writes.get(service, {}).get((resource, key_of(obj)))
        if write is None or write.deleted or uid_of(write.object) != uid_of(obj):
            return False
        return version_of(obj) <= version_of(write.object)

    def gone(self, service: Key, resource: Resource, obj: JsonObject) -> None:
        """An informer has seen the object deleted: what was written to it counts no more."""
        writes = self._writes.get(service, {})
        write = writes.get((resource, key_of(obj)))
        if write is not None and not write.deleted and uid_of(write.object) == uid_of(obj):
            del writes[(resource, key_of(obj))]

    def pending(self, service: Key) -> bool:
        """Whether the last views still lean on a write that the informers have not shown."""
        return bool(self._writes.get(service))

    def view(self, service: Key, resource: Resource, cached: Iterable[JsonObject]) -> list[JsonObject]:
        """The cached objects of one kind of a service as they are with the writes."""
        objects = {key_of(obj): obj for obj in cached}
        writes = self._writes.get(service, {})
        for of, write in list(writes.items()):
            if of[0] != resource:
                continue
            key = of[1]
            seen = objects.get(key)
            if self._clock() - write.at > KEEP_SECONDS or _caught_up(seen, write):
                del writes[of]
            elif write.deleted:
                objects.pop(key, None)
            else:
                objects[key] = write.object
        return list(objects.values())

    def _note(self, service: Key, resource: Resource, obj: JsonObject, *, deleted: bool) -> None:
        write = _Write(obj, deleted, self._clock())
        self._writes.setdefault(service, {})[(resource, key_of(obj))] = write


def _caught_up(seen: JsonObject | None, write: _Write) -> bool:
    if write.deleted:
        return seen is None or uid_of(seen) != uid_of(write.object)
    return seen is not None and version_of(seen) >= version_of(write.object)


def version_of(obj: JsonObject) -> int:
    """Resource versions of one kind are ordered numbers (KEP-5504); -1 where there is none."""
    version = str(obj["metadata"].get("resourceVersion") or "")
    return int(version) if version.isdigit() else -1
