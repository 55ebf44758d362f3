"""The table from a YAML or JSON file: the router without Kubernetes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml
from pydantic import Field, ValidationError

from paceline_crds.base import Model
from paceline_crds.names import DEFAULT_POOL
from paceline_crds.routing import RoutingSpec, ScalingSpec, Shape, SLOSpec
from paceline_crds.tenancy import TenancySpec
from paceline_router.table.policy import Policy, make_policy
from paceline_router.table.records import Limits, Replica, Service, Table, TrafficShare

log = logging.getLogger(__name__)

RELOAD_SECONDS = 1.0

_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Name = Annotated[str, Field(pattern=_NAME)]


class FileReplica(Model):
    """One replica. `url` is its base address, for example http://127.0.0.1:8000."""

    url: Annotated[str, Field(pattern=r"^http://[^/]+/?$")]
    name: str | None = None
    pool: Name = DEFAULT_POOL
    revision: Name | None = None
    ready: bool = True
    draining: bool = False


class FileShare(Model):
    """Whole percent of a pool's requests for one revision."""

    pool: Name = DEFAULT_POOL
    revision: Name
    weight: Annotated[int, Field(ge=0, le=100)]


class FileTraffic(Model):
    """Shares by revision; left out, every replica takes part."""

    generation: int = 1
    entries: list[FileShare]


class FilePool(Model):
    """What is said of a pool: the shapes that come to it, and what its replicas take."""

    name: Name
    shapes: list[Shape] = Field(default_factory=list)
    slo: SLOSpec | None = None
    max_model_len: Annotated[int | None, Field(ge=1)] = None
    max_num_seqs: Annotated[int | None, Field(ge=1)] = None


class FileService(Model):
    """One service. `routing`, `tenancy`, `slo` and `scaling` are written as in the spec of an InferenceService."""

    name: Annotated[str, Field(pattern=_NAME.replace("$", "/") + _NAME[1:])]
    """`namespace/name`."""
    served_name: str | None = None
    replicas: list[FileReplica] = Field(default_factory=list)
    pools: list[FilePool] = Field(default_factory=list)
    traffic: FileTraffic | None = None
    routing: RoutingSpec | None = None
    tenancy: TenancySpec | None = None
    keys_file: str | None = None
    """For `tenancy.identity.from: APIKey`: a YAML file of tenant: SHA-256 of the key, where a cluster has a Secret."""
    slo: SLOSpec | None = None
    scaling: ScalingSpec | None = None


class RoutesFile(Model):
    """The file."""

    services: list[FileService]


class RoutesFileError(ValueError):
    """The file cannot be read; the message says where and why."""


def read_table(path: Path) -> Table:
    """Read the file into a table.

    Raises:
        RoutesFileError: it is missing, not YAML, or does not have the form of `RoutesFile`.
    """
    try:
        raw: Any = yaml.safe_load(path.read_text())
    except OSError as exc:
        raise RoutesFileError(f"cannot read {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        # Dates and numbers that there are not are a ValueError.
        raise RoutesFileError(f"{path} is not YAML: {exc}") from exc
    try:
        # As JSON, so that enumerations are written as text, as everywhere.
        text = json.dumps(raw, default=str)
    except (ValueError, TypeError, RecursionError) as exc:
        raise RoutesFileError(f"{path} is nothing that JSON could say: {exc}") from exc
    try:
        file = RoutesFile.model_validate_json(text)
    except ValidationError as exc:
        lines = [f"{'.'.join(map(str, error['loc'])) or 'the file'}: {error['msg']}" for error in exc.errors()]
        raise RoutesFileError(f"{path}: {'; '.join(lines)}") from exc
    services: dict[str, Service] = {}
    replicas: dict[str, Replica] = {}
    for position, entry in enumerate(file.services):
        if entry.name in services:
            raise RoutesFileError(f"{path}: the service {entry.name} is there twice")
        services[entry.name] = _service(entry, position, path)
        limits = {pool.name: Limits(pool.max_model_len, pool.max_num_seqs) for pool in entry.pools}
        for replica in entry.replicas:
            record = _replica(entry.name, replica, limits)
            if record.uid in replicas:
                raise RoutesFileError(f"{path}: {entry.name} has the replica {replica.url} twice")
            replicas[record.uid] = record
    return Table(services=services, replicas=replicas)


def _service(entry: FileService, position: int, path: Path) -> Service:
    traffic = entry.traffic
    claims: dict[str, str] = {}
    for pool in entry.pools:
        for shape in pool.shapes:
            if shape.value in claims:
                raise RoutesFileError(
                    f"{path}: {entry.name}: the shape {shape.value} is claimed by the pools {claims[shape.value]} and "
                    f"{pool.name}; each shape belongs to one pool"
                )
            claims[shape.value] = pool.name
    return Service(
        key=entry.name,
        served_name=entry.served_name or entry.name.partition("/")[2],
        order=(f"{position:08d}", ""),
        generation=traffic.generation if traffic else 0,
        traffic=tuple(TrafficShare(e.pool, e.revision, e.weight) for e in traffic.entries) if traffic else (),
        wanted=len(entry.replicas),
        policy=_policy(entry, claims),
        keys_file=entry.keys_file,
    )


def _policy(entry: FileService, claims: dict[str, str]) -> Policy:
    pool_slo = {pool.name: pool.slo for pool in entry.pools if pool.slo is not None}
    return make_policy(entry.routing or RoutingSpec(), entry.tenancy, entry.slo, entry.scaling, claims, pool_slo)


def _replica(service: str, entry: FileReplica, limits: dict[str, Limits]) -> Replica:
    try:
        address = urlsplit(entry.url)
        host, port = address.hostname, address.port or 80
    except ValueError as exc:
        raise RoutesFileError(f"{service}: {entry.url} is no address ({exc}); write http://127.0.0.1:8000") from exc
    if not host:
        raise RoutesFileError(f"{service}: {entry.url} has no host; write for example http://127.0.0.1:8000")
    return Replica(
        uid=f"{service}@{host}:{port}",
        name=entry.name or f"{host}:{port}",
        service=service,
        pool=entry.pool,
        pool_hash="",
        host=host,
        port=port,
        ready=entry.ready and not entry.draining,
        draining=entry.draining,
        limits=limits.get(entry.pool, Limits()),
        revision=entry.revision,
    )


class FileSource:
    """Gives the table of a file to `use`, and again whenever the file changes. A file that turns bad keeps the
    last good table.
    """

    def __init__(self, path: Path, use: Callable[[Table], None]) -> None:
        self.path = path
        self.error: str | None = None
        """Why the file as it is now is not in use."""
        self._use = use
        self._seen: tuple[int, int, int] | None = None

    def load(self) -> None:
        """Read the file if it has changed.

        Raises:
            RoutesFileError: see `read_table`.
        """
        seen = self._stat()
        if seen == self._seen and seen is not None:
            return
        self._seen = seen
        self._use(read_table(self.path))
        self.error = None

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    async def run(self) -> None:
        """Follow the file for ever."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                self.load()
            except RoutesFileError as exc:
                self._keep(str(exc))
            except Exception as exc:
                # Whatever a file can do, traffic goes on.
                self._keep(f"{self.path} cannot be read: {exc!r}")

    def _keep(self, why: str) -> None:
        if why != self.error:
            log.warning("keeping the last table: %s", why)
        self.error = why

    def age(self) -> float | None:
        """Zero: the file is looked at every second, and what is in it is in use unless `error` says otherwise."""
        return 0.0
