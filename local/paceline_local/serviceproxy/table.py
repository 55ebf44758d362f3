"""Which address serves what: from Services and pods to listeners with their backends. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

JsonObject = Mapping[str, Any]
Backend = tuple[str, int]
"""Address and port of a pod."""


@dataclass(frozen=True)
class PortEntry:
    """One port of a Service. `name` is the port's name, or its number where it has none."""

    name: str
    port: int
    scheme: str
    backends: tuple[Backend, ...]


@dataclass(frozen=True)
class ServiceEntry:
    """One Service that the proxy serves; `key` is `namespace/name`."""

    key: str
    ports: tuple[PortEntry, ...]


def is_serving(pod: JsonObject) -> bool:
    """Whether the pod is ready, has an address and is not on its way out."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") != "Running" or not status.get("podIP"):
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())


def target_port(service_port: JsonObject, pod: JsonObject) -> int | None:
    """The pod's port behind a Service's port; None where the pod has none of that name."""
    target = service_port.get("targetPort") or service_port["port"]
    if isinstance(target, int):
        return target
    for container in pod["spec"].get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == target and port.get("protocol", "TCP") == "TCP":
                return int(port["containerPort"])
    return None


def _scheme(port: JsonObject) -> str:
    secure = port.get("appProtocol") == "https" or port.get("name") == "https" or port["port"] == 443
    return "https" if secure else "http"


def service_entry(service: JsonObject, pods: Iterable[JsonObject]) -> ServiceEntry | None:
    """The entry of one Service, given the pods of its namespace; None where it has no selector or no TCP port."""
    spec, metadata = service["spec"], service["metadata"]
    selector = spec.get("selector") or {}
    if not selector or spec.get("type") == "ExternalName":
        return None
    chosen = [
        pod for pod in pods if is_serving(pod) and selector.items() <= (pod["metadata"].get("labels") or {}).items()
    ]
    ports = []
    for port in spec.get("ports") or ():
        if port.get("protocol", "TCP") != "TCP":
            continue
        found = ((pod["status"]["podIP"], target_port(port, pod)) for pod in chosen)
        backends = tuple(sorted((address, number) for address, number in found if number is not None))
        ports.append(PortEntry(port.get("name") or str(port["port"]), port["port"], _scheme(port), backends))
    return ServiceEntry(f"{metadata['namespace']}/{metadata['name']}", tuple(ports)) if ports else None
