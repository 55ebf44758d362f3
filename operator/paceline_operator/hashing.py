"""Hashes of a pool and of a revision: over what the configuration means, not over how it was spelled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from paceline_crds.quantities import parse_quantity
from paceline_crds.runtime_config import ADDED_LATER, RuntimeConfig, RuntimeParameters

HASH_LENGTH = 10
"""Hex digits. Forty bits are plenty within one service, and leave a name of 63 characters room for words."""


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces, in which a whole number is an integer however it was written.

    Raises:
        ValueError: for NaN and infinities, which JSON does not have.
    """
    return json.dumps(_whole_numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def short_hash(value: Any) -> str:
    """The first hex digits of SHA-256 over the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:HASH_LENGTH]


def pool_hash(*, hash_version: int, config: RuntimeConfig, image: str, pod_template: Mapping[str, Any]) -> str:
    """Hash of one pool as rendered.

    Origins are left out: to write a default down, or to move a value from a pool to the service, changes no replica and
    must restart none. Sizes and amounts count by their value.
    """
    parameters = _sizes_by_value(config.parameters)
    usual = _sizes_by_value(RuntimeParameters())
    for name in ADDED_LATER:
        alias = RuntimeParameters.model_fields[name].alias or name
        if parameters[alias] == usual[alias]:
            del parameters[alias]
    return short_hash(
        {
            "hashVersion": hash_version,
            "model": config.model.model_dump(mode="json"),
            "parameters": parameters,
            "image": image,
            "template": _amounts_by_value(pod_template),
        }
    )


def _sizes_by_value(parameters: RuntimeParameters) -> dict[str, Any]:
    return parameters.model_dump(mode="json") | {
        "kvCacheMemory": parameters.kv_cache_bytes,
        "kvHostMemory": parameters.kv_host_bytes,
        "kvDiskMemory": parameters.kv_disk_bytes,
    }


def revision_hash(pools: Mapping[str, str]) -> str:
    """Hash of a revision from its pools' hashes by pool name."""
    return short_hash({"pools": dict(pools)})


def _whole_numbers(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _whole_numbers(item) for key, item in value.items()}
        case list() | tuple():
            return [_whole_numbers(item) for item in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def _amounts_by_value(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with every resource amount as a plain decimal, so that `1000m` is `1`."""
    spec = dict(template["spec"])
    containers = []
    for container in spec["containers"]:
        resources = {
            kind: {name: _plain(amount) for name, amount in amounts.items()}
            for kind, amounts in (container.get("resources") or {}).items()
        }
        containers.append({**container, "resources": resources})
    return {**template, "spec": {**spec, "containers": containers}}


def _plain(amount: int | str) -> str:
    value = parse_quantity(str(amount))
    return format(value.normalize() + Decimal(0), "f")
