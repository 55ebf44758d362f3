"""An informer's memory: objects by key and by uid, with indexes kept up to date change by change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from paceline_kube.client import JsonObject

Key: TypeAlias = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is empty."""

Objects: TypeAlias = list[JsonObject]
IndexFunction: TypeAlias = Callable[[JsonObject], Iterable[str]]


def key_of(obj: JsonObject) -> Key:
    """(namespace, name) of an object."""
    metadata = obj["metadata"]
    return (metadata.get("namespace") or "", metadata["name"])


def uid_of(obj: JsonObject) -> str:
    """The object's uid; empty where the server gave none."""
    return str(obj["metadata"].get("uid") or "")


def by_label(label: str) -> IndexFunction:
    """An index function: objects under the value of one label; objects without the label are not in it."""

    def values(obj: JsonObject) -> tuple[str, ...]:
        value = (obj["metadata"].get("labels") or {}).get(label)
        return () if value is None else (value,)

    return values


def by_namespaced_label(label: str) -> IndexFunction:
    """Like `by_label`, with entries `namespace/value`."""

    def values(obj: JsonObject) -> tuple[str, ...]:
        value = (obj["metadata"].get("labels") or {}).get(label)
        return () if value is None else (f"{obj['metadata'].get('namespace') or ''}/{value}",)

    return values


def by_owner(obj: JsonObject) -> tuple[str, ...]:
    """An index function: objects under the uid of each of their owners."""
    return tuple(ref["uid"] for ref in obj["metadata"].get("ownerReferences") or () if "uid" in ref)


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object.

    `added` has only `new`, `deleted` only `old` (the last state seen), `modified` both.
    `relisted` is set when the change was found by comparing with a list instead of being told by the watch:
    states in between may have been missed.
    """

    type: Literal["added", "modified", "deleted"]
    key: Key
    old: JsonObject | None
    new: JsonObject | None
    relisted: bool = False

    @property
    def object(self) -> JsonObject:
        """The newest state known."""
        obj = self.new if self.new is not None else self.old
        assert obj is not None
        return obj


# `Store.list` hides the built-in name from the annotations of its class.
Changes: TypeAlias = list[Change]
Values: TypeAlias = list[str]
Keys: TypeAlias = list[Key]


class Store:
    """Objects of one kind. They are shared with every reader: copy before changing one."""

    def __init__(self, indexes: dict[str, IndexFunction] | None = None) -> None:
        self._objects: dict[Key, JsonObject] = {}
        self._by_uid: dict[str, JsonObject] = {}
        self._functions = dict(indexes or {})
        # Dictionaries as ordered sets, so that readers see a stable order.
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._functions}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[JsonObject]:
        return iter(list(self._objects.values()))

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def keys(self) -> Keys:
        """All keys, in the order their objects were first seen."""
        return list(self._objects)

    def get(self, namespace: str, name: str) -> JsonObject | None:
        """The object of that name, or None."""
        return self._objects.get((namespace, name))

    def by_uid(self, uid: str) -> JsonObject | None:
        """The object with that uid, or None."""
        return self._by_uid.get(uid)

    def list(self, namespace: str | None = None) -> Objects:
        """All objects, or those of one namespace."""
        if namespace is None:
            return list(self._objects.values())
        return [obj for (ns, _), obj in self._objects.items() if ns == namespace]

    def by_index(self, index: str, value: str) -> Objects:
        """The objects that the index function put under `value`.

        Raises:
            KeyError: no index of that name.
        """
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def index_values(self, index: str) -> Values:
        """Values of the index under which there is at least one object."""
        return list(self._indexes[index])

    def put(self, obj: JsonObject, *, relisted: bool = False) -> Changes:
        """Take the state of one object, and say what changed.

        Another uid under a known name is two changes, since the old object is gone.
        """
        key = key_of(obj)
        old = self._objects.get(key)
        if old is not None and uid_of(old) != uid_of(obj):
            return [*self.remove(key, relisted=relisted), *self.put(obj, relisted=relisted)]
        if old is not None and _version(old) == _version(obj) != "":
            return []
        self._unindex(key, old)
        self._objects[key] = obj
        if uid := uid_of(obj):
            self._by_uid[uid] = obj
        for name, function in self._functions.items():
            for value in function(obj):
                self._indexes[name].setdefault(value, {})[key] = None
        return [Change("added" if old is None else "modified", key, old, obj, relisted)]

    def remove(self, key: Key, last: JsonObject | None = None, *, relisted: bool = False) -> Changes:
        """Forget one object. `last` is its final state, where the server told it."""
        old = self._objects.get(key)
        if old is None:
            return []
        self._unindex(key, old)
        del self._objects[key]
        self._by_uid.pop(uid_of(old), None)
        return [Change("deleted", key, last if last is not None else old, None, relisted)]

    def replace(self, objects: Iterable[JsonObject], namespace: str | None = None) -> Changes:
        """Take a full list (of one namespace): what it lacks has been deleted, whether or not anybody said so."""
        listed = {key_of(obj): obj for obj in objects}
        changes: Changes = []
        for key in [key for key in self._objects if key not in listed and namespace in (None, key[0])]:
            changes += self.remove(key, relisted=True)
        for obj in listed.values():
            changes += self.put(obj, relisted=True)
        return changes

    def _unindex(self, key: Key, obj: JsonObject | None) -> None:
        if obj is None:
            return
        for name, function in self._functions.items():
            index = self._indexes[name]
            for value in function(obj):
                entries = index.get(value)
                if entries is not None:
                    entries.pop(key, None)
                    if not entries:
                        del index[value]


def _version(obj: JsonObject) -> str:
    return str(obj["metadata"].get("resourceVersion") or "")
