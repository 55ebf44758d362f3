"""A container's environment: `$(VAR)` expansion, references to fields, resources, ConfigMaps and Secrets. Pure."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from paceline_crds.quantities import parse_quantity
from paceline_local.node.errors import ConfigError

Pod = Mapping[str, Any]

_EXPANSION = re.compile(r"\$(\$|\(([^()]*)\))?")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


@dataclass(frozen=True)
class Ref:
    """A ConfigMap or Secret (`kind`) in the pod's namespace."""

    kind: str
    name: str


Objects = Mapping[Ref, Mapping[str, Any] | None]
"""The referenced objects as they are now; None for one that does not exist."""


@dataclass(frozen=True)
class Facts:
    """What a pod may be told about itself and its node. `allocatable`: the node's resources, as quantities."""

    pod_ip: str
    host_ip: str
    node_name: str
    allocatable: Mapping[str, str]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(VAR)`; `$$` is a literal `$`, and a reference to an unknown variable stays as it is."""

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        if match[2] is not None:
            return variables.get(match[2], match[0])
        return match[0]

    return _EXPANSION.sub(replace, text)


def data_of(ref: Ref, obj: Mapping[str, Any]) -> dict[str, bytes]:
    """All keys of a ConfigMap (text and binary) or Secret as bytes."""
    if ref.kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
    found = {key: str(value).encode() for key, value in (obj.get("data") or {}).items()}
    found.update({key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()})
    return found


def field_value(path: str, pod: Pod, facts: Facts) -> str:
    """The value of a downward-API field.

    Raises:
        ConfigError: There is no such field.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if match := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = metadata.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(entries.items()))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": facts.node_name,
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }
    if path not in values:
        raise ConfigError(f"fieldRef {path!r} is not supported; use one of {', '.join(sorted(values))}")
    return str(values[path])


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def resource_value(ref: Mapping[str, Any], container: Mapping[str, Any], facts: Facts) -> str:
    """The value of a `resourceFieldRef`: rounded up to whole divisors; a limit that is not set is the node's size.

    Raises:
        ConfigError: The resource is not one that can be asked for, or written in a form that local mode does not read.
    """
    kind, _, name = str(ref["resource"]).partition(".")
    if kind not in ("limits", "requests") or not name:
        raise ConfigError(f"resourceFieldRef {ref['resource']!r} is not supported; use for example limits.memory")
    given = (container.get("resources") or {}).get(kind) or {}
    fallback = facts.allocatable.get(name, "0") if kind == "limits" else "0"
    try:
        divisor = parse_quantity(str(ref.get("divisor") or "0")) or Decimal(1)
        return str(math.ceil(parse_quantity(str(given.get(name, fallback))) / divisor))
    except ValueError as error:
        raise ConfigError(f"resourceFieldRef {ref['resource']}: {error}") from error


def _containers(pod: Pod) -> Iterator[Mapping[str, Any]]:
    yield from pod["spec"].get("initContainers") or ()
    yield from pod["spec"].get("containers") or ()


def env_references(container: Mapping[str, Any]) -> set[Ref]:
    """ConfigMaps and Secrets that the container's environment names, optional ones included."""
    found: set[Ref] = set()
    for source in container.get("envFrom") or ():
        if "configMapRef" in source:
            found.add(Ref("ConfigMap", source["configMapRef"]["name"]))
        if "secretRef" in source:
            found.add(Ref("Secret", source["secretRef"]["name"]))
    for entry in container.get("env") or ():
        source = entry.get("valueFrom") or {}
        if "configMapKeyRef" in source:
            found.add(Ref("ConfigMap", source["configMapKeyRef"]["name"]))
        if "secretKeyRef" in source:
            found.add(Ref("Secret", source["secretKeyRef"]["name"]))
    return found


def resolve_env(
    container: Mapping[str, Any], pod: Pod, objects: Objects, facts: Facts, base: Mapping[str, str]
) -> dict[str, str]:
    """`base`, then `envFrom`, then `env` in order, later entries over earlier ones, with `$(VAR)` expanded.

    Raises:
        ConfigError: A reference that is not optional leads nowhere.
    """
    result = dict(base)
    for source in container.get("envFrom") or ():
        for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            if key in source:
                ref = Ref(kind, source[key]["name"])
                obj = objects.get(ref)
                if obj is None and not source[key].get("optional"):
                    raise ConfigError(f'{kind.lower()} "{ref.name}" not found')
                prefix = source.get("prefix", "")
                values = data_of(ref, obj) if obj is not None else {}
                result.update({prefix + name: value.decode(errors="replace") for name, value in values.items()})
    for entry in container.get("env") or ():
        value = _entry_value(entry, container, pod, objects, facts, result)
        if value is not None:
            result[entry["name"]] = value
    return result


def _entry_value(
    entry: Mapping[str, Any],
    container: Mapping[str, Any],
    pod: Pod,
    objects: Objects,
    facts: Facts,
    known: Mapping[str, str],
) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return expand(entry.get("value") or "", known)
    if "fieldRef" in source:
        return field_value(source["fieldRef"]["fieldPath"], pod, facts)
    if "resourceFieldRef" in source:
        ref = source["resourceFieldRef"]
        named = {c["name"]: c for c in _containers(pod)}
        return resource_value(ref, named.get(ref.get("containerName", ""), container), facts)
    for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if key in source:
            wanted = source[key]
            ref = Ref(kind, wanted["name"])
            obj = objects.get(ref)
            values = data_of(ref, obj) if obj is not None else {}
            if wanted["key"] in values:
                return values[wanted["key"]].decode(errors="replace")
            if wanted.get("optional"):
                return None
            if obj is None:
                raise ConfigError(f'{kind.lower()} "{ref.name}" not found')
            where = f"{pod['metadata']['namespace']}/{ref.name}"
            raise ConfigError(f"couldn't find key {wanted['key']} in {kind} {where}")
    raise ConfigError(f"env {entry['name']}: valueFrom {', '.join(source)} is not supported in local mode")
