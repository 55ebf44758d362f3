"""What a router follows besides its requests: the table, the API keys of tenants, and how many routers there are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline_crds.tenancy import IdentitySource
from paceline_router.flow.dataplane import DataPlane
from paceline_router.report.admin import Source
from paceline_router.table.file_source import FileSource
from paceline_router.table.records import Service, Table
from paceline_router.tenancy.keys import KeysFile

log = logging.getLogger(__name__)

ENV_NAMESPACE = "POD_NAMESPACE"
KEYS_SECONDS = 1.0


class TableSource(Source, Protocol):
    """Gives tables to the data path for ever."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """What is followed.

    Attributes:
        table: where the table comes from.
        followers: what runs for ever, the table's source among it.
    """

    table: TableSource
    followers: tuple[Callable[[], Coroutine[Any, Any, None]], ...]


@contextlib.asynccontextmanager
async def sources(plane: DataPlane, config: Path | None) -> AsyncIterator[Sources]:
    """Those of a routes file, or of the Kubernetes API at hand.

    Raises:
        RoutesFileError: the file cannot be used.
        FileNotFoundError: neither a file nor a cluster.
    """
    plane.use_peers(plane.settings.processes)
    if config is not None:
        keys = KeyFiles(plane)
        file = FileSource(config, keys.use_table)
        await file.load()
        yield Sources(file, (file.run, keys.run))
        return
    # Half of a router's start-up time, which one with a file need not spend.
    from paceline_kube import connect
    from paceline_router.table.cluster import KubeSource
    from paceline_router.table.peers import Peers
    from paceline_router.tenancy.watch import SecretWatcher

    async with connect() as client:
        secrets: SecretWatcher
        wanted: dict[str, tuple[str, str]] = {}

        def tell(service: str) -> None:
            plane.use_keys(service, secrets.keys(*wanted[service]))

        def changed(name: tuple[str, str]) -> None:
            for service, secret in wanted.items():
                if secret == name:
                    tell(service)

        def use(table: Table, services: Set[str] | None) -> None:
            plane.use(table, services)
            before = dict(wanted)
            wanted.clear()
            wanted.update(secrets_of(table.services.values()))
            secrets.want(frozenset(wanted.values()))
            for service, secret in wanted.items():
                if before.get(service) != secret:
                    tell(service)

        async with SecretWatcher(client, changed) as secrets:
            source = KubeSource(client, use)
            followers = [source.run]
            namespace = os.environ.get(ENV_NAMESPACE)
            if namespace:
                peers = Peers(client, namespace, lambda routers: plane.use_peers(routers * plane.settings.processes))
                followers.append(peers.run)
            yield Sources(source, tuple(followers))


def secrets_of(services: Collection[Service]) -> dict[str, tuple[str, str]]:
    """The Secret (namespace, name) with the keys of each service that tells its tenants by them."""
    found: dict[str, tuple[str, str]] = {}
    for service in services:
        tenancy = service.policy.tenancy
        identity = None if tenancy is None else tenancy.identity
        if identity is not None and identity.from_ is IdentitySource.API_KEY and identity.secret_name:
            found[service.key] = (service.key.partition("/")[0], identity.secret_name)
    return found


class KeyFiles:
    """Follows the files with the keys of the services in a table."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._files: dict[str, KeysFile] = {}

    def use_table(self, table: Table, changed: Set[str]) -> None:
        """Route by this table, in which these services differ, and go by the keys that they name."""
        self._plane.use(table, changed)
        for key in changed:
            service = table.services.get(key)
            if service is None or not service.keys_file:
                self._files.pop(key, None)
                continue
            file = self._files.get(key)
            if file is None or file.path != Path(service.keys_file):
                file = self._files[key] = KeysFile(Path(service.keys_file))
            self._refresh(key, file)

    def refresh(self) -> None:
        """Read the files that have changed."""
        for service, file in self._files.items():
            self._refresh(service, file)

    def _refresh(self, service: str, file: KeysFile) -> None:
        if file.refresh():
            if file.keys.trouble:
                log.warning("tenancy of %s: %s", service, file.keys.trouble)
            for problem in file.keys.problems:
                log.warning("tenancy of %s: %s, entry %s", service, file.path, problem)
            self._plane.use_keys(service, file.keys)

    async def run(self) -> None:
        """Follow the files for ever."""
        while True:
            await asyncio.sleep(KEYS_SECONDS)
            self.refresh()
