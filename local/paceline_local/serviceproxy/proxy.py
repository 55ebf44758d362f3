"""Follows Services and pods, keeps a listener per Service port, and tells where each Service is to be found."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline_kube import (
    PODS,
    SERVICES,
    Change,
    Conflict,
    Forbidden,
    Informer,
    JsonObject,
    KubeClient,
    KubeError,
    NotFound,
    Resource,
    drop_managed_fields,
)
from paceline_kube.store import IndexFunction
from paceline_local.node.addresses import AddressesExhausted, AddressPool
from paceline_local.serviceproxy.relay import Relay
from paceline_local.serviceproxy.table import PortEntry, ServiceEntry, service_entry

log = logging.getLogger(__name__)

ANNOTATION = "local.paceline.io/url"
PRIVILEGED_OFFSET = 10_000
"""Added to a port below 1024 where this user may not bind those."""

SETTLE_SECONDS = 0.01
RETRY_SECONDS = 5.0


def read_addresses(path: Path) -> dict[str, str]:
    """Service → address, as an earlier run left it; empty where there was none."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {str(key): str(value) for key, value in found.items()}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    temporary.replace(path)


def _namespace(obj: JsonObject) -> tuple[str]:
    return (obj["metadata"]["namespace"],)


class ServiceProxy:
    """The proxy of one instance. `services.json` in `directory` says where each Service listens."""

    def __init__(self, client: KubeClient, directory: Path, network: str) -> None:
        self._client, self._directory = client, directory
        self._pool = AddressPool(network)
        self._relays: dict[tuple[str, int], tuple[Relay, int]] = {}
        self._told: dict[str, Any] | None = None
        self._may_annotate = True
        self._annotated: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._dirty: set[str] = set()
        self._services = self._informer(SERVICES, self._on_service)
        self._pods = self._informer(PODS, self._on_pod)

    def _informer(self, resource: Resource, on_change: Callable[[Change], None]) -> Informer:
        indexes: dict[str, IndexFunction] = {"namespace": _namespace}
        return Informer(self._client, resource, on_change=on_change, transform=drop_managed_fields, indexes=indexes)

    def _on_service(self, change: Change) -> None:
        self._dirty.add("/".join(change.key))
        self._changed.set()

    def _on_pod(self, change: Change) -> None:
        namespace = change.key[0]
        for service in self._services.store.by_index("namespace", namespace):
            self._dirty.add(f"{namespace}/{service['metadata']['name']}")
        self._changed.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for key, address in read_addresses(self._directory / "addresses.json").items():
            if not self._pool.claim(key, address):
                log.warning("%s was at %s, which is not of this range", key, address)
        informers = [asyncio.create_task(informer.run()) for informer in (self._services, self._pods)]
        try:
            await self._services.synced.wait()
            await self._pods.synced.wait()
            for key in self._pool.used:
                self._dirty.add(key)
            self._changed.set()
            while True:
                await self._changed.wait()
                await asyncio.sleep(SETTLE_SECONDS)  # a roll changes many pods at once
                self._changed.clear()
                await self._update()
        finally:
            for task in informers:
                task.cancel()
            for relay, _ in self._relays.values():
                relay.close()

    async def _update(self) -> None:
        dirty, self._dirty = self._dirty, set()
        told = dict(self._told or {})
        for key in sorted(dirty):
            namespace, _, name = key.partition("/")
            service = self._services.store.get(namespace, name)
            pods = self._pods.store.by_index("namespace", namespace)
            entry = service_entry(service, pods) if service is not None else None
            if entry is None:
                told.pop(key, None)
                self._drop(key, keep=set())
                self._pool.release(key)
                self._annotated.pop(key, None)
                continue
            try:
                told[key] = await self._serve(entry)
            except (AddressesExhausted, OSError) as error:
                log.error("%s: %s", key, error)
                told.pop(key, None)
                self._later(key)
        if told != self._told:
            self._told = told
            write_json(self._directory / "addresses.json", self._pool.used)
            write_json(self._directory / "services.json", told)
        for key in dirty & told.keys():
            await self._annotate(key, told[key]["url"])

    def _later(self, key: str) -> None:
        def again() -> None:
            self._dirty.add(key)
            self._changed.set()

        asyncio.get_running_loop().call_later(RETRY_SECONDS, again)

    async def _serve(self, entry: ServiceEntry) -> dict[str, Any]:
        address = self._pool.acquire(entry.key)
        self._drop(entry.key, keep={port.port for port in entry.ports})
        urls = {}
        for port in entry.ports:
            known = self._relays.get((entry.key, port.port))
            if known is None:
                relay = Relay(port.backends)
                known = relay, await self._listen(relay, address, port)
                self._relays[entry.key, port.port] = known
            known[0].backends = port.backends
            urls[port.name] = f"{port.scheme}://{address}:{known[1]}"
        return {"url": next(iter(urls.values())), "ports": urls}

    async def _listen(self, relay: Relay, address: str, port: PortEntry) -> int:
        try:
            return await relay.listen(address, port.port)
        except OSError as error:
            if error.errno != errno.EACCES:
                raise
            return await relay.listen(address, port.port + PRIVILEGED_OFFSET)

    def _drop(self, key: str, keep: set[int]) -> None:
        for known in [known for known in self._relays if known[0] == key and known[1] not in keep]:
            self._relays.pop(known)[0].close()

    async def _annotate(self, key: str, url: str) -> None:
        """Say on the Service itself where it is, where that is allowed; a help for readers, so never in the way."""
        if not self._may_annotate or self._annotated.get(key) == url:
            return
        namespace, _, name = key.partition("/")
        service = self._services.store.get(namespace, name)
        if service is None:
            return
        if (service["metadata"].get("annotations") or {}).get(ANNOTATION) != url:
            body = {"metadata": {"annotations": {ANNOTATION: url}}}
            try:
                await self._client.patch(SERVICES, name, body, namespace, field_manager="paceline-local")
            except Forbidden as error:
                log.info("Services are not annotated: %s", error)
                self._may_annotate = False
                return
            except (NotFound, Conflict):
                return
            except KubeError as error:
                log.info("%s not annotated: %s", key, error)
                self._later(key)
                return
        self._annotated[key] = url
