"""Fields of an object by their managers, read from `metadata.managedFields`, and what a refused apply says. Pure.

A server-side apply takes away what its manager had and does not name any more. So whoever changes one field has to send
all the others along that the same manager owns already.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline_kube import Conflict, JsonObject

_MANAGER = re.compile(r'conflict with "([^"]+)"')


def owned_by(obj: JsonObject, manager: str) -> JsonObject:
    """The part of `obj` that `manager` has applied, without its identity; empty where there is none."""
    mine: Mapping[str, Any] = {}
    others = []
    for entry in obj["metadata"].get("managedFields") or ():
        fields = entry.get("fieldsV1") or {}
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            mine = fields
        else:
            others.append(fields)
    found = _extract(obj, mine, others) if mine else {}
    return found if isinstance(found, dict) else {}


def owners(obj: JsonObject, path: Sequence[str]) -> list[str]:
    """Managers that own the field at `path`, or something below it, in order of their names."""
    found = set()
    for entry in obj["metadata"].get("managedFields") or ():
        fields: Any = entry.get("fieldsV1") or {}
        for part in path:
            fields = fields.get(f"f:{part}") if isinstance(fields, Mapping) else None
        if fields is not None and not entry.get("subresource"):
            found.add(str(entry.get("manager") or ""))
    return sorted(found)


def merged(base: JsonObject, over: Mapping[str, Any]) -> JsonObject:
    """`base` with the values of `over`, maps merged in depth. Neither is changed."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def without(obj: JsonObject, path: Sequence[str]) -> JsonObject:
    """`obj` without the field at `path`, and without maps that are empty then. It is not changed itself."""
    result = copy.deepcopy(obj)
    first, *rest = path
    if not rest:
        result.pop(first, None)
    elif isinstance(result.get(first), dict):
        result[first] = without(result[first], rest)
        if not result[first]:
            del result[first]
    return result


def conflicts(error: Conflict) -> dict[str, list[str]]:
    """Fields that others own, by manager, from a refused apply; empty where it was refused for another reason."""
    found: dict[str, list[str]] = {}
    for cause in error.causes:
        match = _MANAGER.search(str(cause.get("message") or ""))
        if match is not None:
            found.setdefault(match[1], []).append(str(cause.get("field") or ""))
    return found


def _extract(value: Any, fields: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Any:
    """The part of a value that a set of fields names.

    An empty set names a value as a whole; or a map that was empty, and this shows where others own parts of it.
    """
    names = [name for name in fields if name != "."]
    if not names:
        in_parts = isinstance(value, Mapping) and any(others)
        return {} if in_parts else copy.deepcopy(value)
    if isinstance(value, list):
        parts = (_item(value, name, fields[name], _below(others, name)) for name in names)
        return [part for part in parts if part is not None]
    if not isinstance(value, Mapping):
        return copy.deepcopy(value)
    found = {}
    for name in names:
        key = name.removeprefix("f:")
        if name.startswith("f:") and key in value:
            found[key] = _extract(value[key], fields[name], _below(others, name))
    return found


def _below(others: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [fields[name] for fields in others if name in fields]


def _item(items: Iterable[Any], name: str, fields: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Any:
    """The item of a list that `k:{…}` or `v:…` names, with what is owned of it; None where it is not there."""
    kind, _, text = name.partition(":")
    wanted = json.loads(text)
    if kind == "v":
        return wanted if wanted in items else None
    for item in items:
        if isinstance(item, Mapping) and all(item.get(key) == value for key, value in wanted.items()):
            part = _extract(item, fields, others)
            return {**wanted, **part} if isinstance(part, Mapping) else part
    return None
