"""What a router follows besides its requests: the table, the API keys of tenants, and how many routers there are."""

from __future__ import annotations

import contextlib
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
from paceline_router.tenancy.keys_source import KeysSource

ENV_NAMESPACE = "POD_NAMESPACE"


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
        files = KeysSource(plane.use_keys)

        def use_file(table: Table, services: Set[str]) -> None:
            plane.use(table, services)
            files.use_table(table, services)

        file = FileSource(config, use_file)
        await file.load()
        await files.look()
        yield Sources(file, (file.run, files.run))
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
