"""From pydantic models to the structural OpenAPI schema that a CRD accepts.

Pydantic writes JSON Schema; Kubernetes takes a smaller language (no `$ref`, no `type: null`, no `const`, no `title`).
What cannot be said in it is an error here, at generation, and not a field that the API server drops without a word.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from .fields import VALIDATIONS

_PASSED_ON = {
    "type",
    "description",
    "enum",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "minItems",
    "pattern",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    VALIDATIONS,
}
_DROPPED = {"title", "$defs", "additionalProperties", "maxProperties"}
_INT32_MAX = 2**31 - 1


class SchemaError(Exception):
    """A model says something that a CRD cannot."""


def structural_schema(model: type[BaseModel], *, defaults: bool = True) -> dict[str, Any]:
    """The structural schema of `model`.

    Args:
        model: the pydantic model; aliases are the names on the wire.
        defaults: whether non-null defaults are API semantics and go into the schema (spec), or Python's own (status).

    Raises:
        SchemaError: when a field has no description, or uses what a CRD cannot say.
    """
    root = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(root, root.get("$defs", {}), model.__name__, defaults)


def _convert(node: dict[str, Any], definitions: dict[str, Any], path: str, defaults: bool) -> dict[str, Any]:
    node = _resolve(node, definitions, path)
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in _PASSED_ON:
            out[key] = value
        elif key == "default":
            if defaults and value is not None:
                out["default"] = value
        elif key == "properties":
            out["properties"] = {
                name: _property(child, definitions, f"{path}.{name}", defaults) for name, child in value.items()
            }
        elif key == "required":
            out["required"] = sorted(value)
        elif key == "items":
            # No defaults within lists: tools that compare a list as one whole would find it changed for ever.
            out["items"] = _convert(value, definitions, f"{path}[]", False)
        elif key not in _DROPPED:
            raise SchemaError(f"{path}: a CRD schema has no {key!r}")
    extra = node.get("additionalProperties")
    if isinstance(extra, dict) and "properties" not in out:
        out["additionalProperties"] = _convert(extra, definitions, f"{path}{{}}", defaults)
        if "maxProperties" in node:
            out["maxProperties"] = node["maxProperties"]
    if "type" not in out and "x-kubernetes-int-or-string" not in out:
        raise SchemaError(f"{path}: every node of a structural schema has a type")
    if out.get("type") == "integer":
        # A value past int32 wraps around in clients that read it into a narrow integer.
        out["format"] = "int32" if out.get("maximum", _INT32_MAX) <= _INT32_MAX else "int64"
    return out


def _property(node: dict[str, Any], definitions: dict[str, Any], path: str, defaults: bool) -> dict[str, Any]:
    out = _convert(node, definitions, path, defaults)
    if not out.get("description"):
        raise SchemaError(f"{path}: a field without a description leaves `kubectl explain` empty")
    return out


def _resolve(node: dict[str, Any], definitions: dict[str, Any], path: str) -> dict[str, Any]:
    """Inline `$ref`, and fold `anyOf: [X, null]` into X: a field left out and a field set to null mean the same."""
    own = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return {**_resolve(target, definitions, path), **own}
    if "anyOf" in node:
        branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
        if len(branches) != 1:
            raise SchemaError(f"{path}: a CRD field has one type, not {len(branches)}")
        return {**_resolve(branches[0], definitions, path), **own}
    return own
