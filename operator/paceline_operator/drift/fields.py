"""Differences between a value as recorded and as it is: by meaning, not by spelling. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from paceline_crds.quantities import parse_quantity

ABSENT = "absent"
SHOWN_CHARACTERS = 120

KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
}
"""By what the entries of a list are told apart, as the API server merges them."""


class Difference(NamedTuple):
    """A field with what is recorded and what is there, as text for people."""

    field: str
    desired: str
    actual: str


def differences(
    desired: Any, actual: Any, path: str = "", extra: Callable[[str, str], bool] = lambda kind, name: True
) -> Iterator[Difference]:
    """Where `actual` is not what `desired` asks for.

    Fields that nobody asked for are passed over: the API server fills them in. Entries of a list that nobody asked for
    count, since a list such as `env` is a whole.

    Args:
        path: of the value, for the field's name.
        extra: whether an entry that nobody asked for counts, by the list's name and the entry's.
    """
    if desired == actual:
        # Nearly always, and by far the fastest way to find out.
        return
    if isinstance(desired, Mapping):
        there = actual if isinstance(actual, Mapping) else {}
        for key, value in desired.items():
            yield from differences(value, there.get(key), f"{path}.{key}" if path else str(key), extra)
    elif isinstance(desired, list):
        name = path.rpartition(".")[2]
        key = KEYS.get(name)
        if key is not None and all(isinstance(item, Mapping) for item in desired):
            yield from _entries(desired, actual, path, name, key, extra)
        elif desired != (actual or []):
            yield Difference(path, shown(desired), shown(actual))
    elif not same(desired, actual, path):
        yield Difference(path, shown(desired), shown(actual))


def _entries(
    desired: list[Any], actual: Any, path: str, name: str, key: str, extra: Callable[[str, str], bool]
) -> Iterator[Difference]:
    there = {str(item.get(key)): item for item in actual or () if isinstance(item, Mapping)}
    asked = {str(item.get(key)): item for item in desired}
    for entry, value in asked.items():
        where = f"{path}[{entry}]"
        if entry not in there:
            yield Difference(where, shown(value), ABSENT)
        else:
            yield from differences(value, there[entry], where, extra)
    for entry, value in there.items():
        if entry not in asked and extra(name, entry):
            yield Difference(f"{path}[{entry}]", ABSENT, shown(value))


def same(desired: Any, actual: Any, path: str) -> bool:
    """Whether two plain values mean the same."""
    if desired == actual:
        return True
    if ".resources." in path or path.endswith(("sizeLimit", "divisor")):
        try:
            return parse_quantity(str(desired)) == parse_quantity(str(actual))
        except ValueError:
            return False
    # Nothing and a zero value are one for the API server.
    return not desired and actual is None and desired not in (0,)


def shown(value: Any) -> str:
    """A value for people: short, on one line."""
    if value is None:
        return ABSENT
    if isinstance(value, Mapping) and set(value) <= {"name", "value"} and "value" in value:
        value = value["value"]
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
