"""What the API server would say of a service: the rules of the CRD, for one that is written in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from paceline_crds.crd import inference_service_crd
from paceline_crds.fields import VALIDATIONS
from paceline_router.table.cel import CelValueError, Evaluation, compile_cel

_compiled = lru_cache(maxsize=None)(compile_cel)


@lru_cache(maxsize=1)
def service_schema() -> Mapping[str, Any]:
    """The structural schema of an InferenceService."""
    schema: Mapping[str, Any] = inference_service_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def broken_rules(service: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with an InferenceService, as `path: what to write`.

    Of the schema only the rules and what lists may not have twice are looked at: types, bounds and names of fields are
    for the models, and a part left out is not missed.

    Raises:
        CelError: a rule of the schema uses more of CEL than is read here.
    """
    yield from _broken(service_schema(), service, "")


def _broken(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        properties: Mapping[str, Any] = schema.get("properties", {})
        # As the API server does it: a field set to null is one left out, and rules see defaults.
        defaults = {name: child["default"] for name, child in properties.items() if "default" in child}
        value = defaults | {name: item for name, item in value.items() if item is not None}
        for name, child in properties.items():
            if name in value:
                yield from _broken(child, value[name], f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _broken(schema.get("items", {}), item, f"{path}[{number}]")
        yield from _repeated(schema, value, path)
    for entry in schema.get(VALIDATIONS, ()):
        try:
            if not _compiled(entry["rule"])({"self": value}):
                yield f"{path}{entry.get('fieldPath', '')}: {_words(entry, value)}".removeprefix(": ")
        except CelValueError:
            pass  # a value of a wrong type, which the models refuse, or a rule on a part that a file does not have


def _words(entry: Mapping[str, str], value: Any) -> str:
    expression = entry.get("messageExpression")
    if expression is None:
        return entry["message"]
    message: Evaluation = _compiled(expression)
    return str(message({"self": value}))


def _repeated(schema: Mapping[str, Any], items: list[Any], path: str) -> Iterator[str]:
    kind = schema.get("x-kubernetes-list-type")
    keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])
    seen: list[Any] = []
    for item in items:
        if kind == "set":
            key, named = item, f"{item}"
        elif kind == "map" and isinstance(item, Mapping):
            key = [item.get(name) for name in keys]
            named = ", ".join(f"{name}: {value}" for name, value in zip(keys, key, strict=True))
        else:
            continue
        if key in seen:
            yield f"{path}: {named} is there twice; write it once"
        seen.append(key)
