"""The table from a YAML or JSON file: the router without Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from paceline_crds.routing import RoutingSpec
from paceline_crds.runtime_config import Isolation
from paceline_router.table.file_form import (
    FileReplica,
    FileService,
    RoutesFile,
    address_of,
    contradictions,
    rules_broken,
)
from paceline_router.table.policy import make_policy
from paceline_router.table.records import Limits, Replica, Service, Table, TrafficShare
from paceline_router.table.yaml_file import FileFault, read_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class RoutesFileError(ValueError):
    """The file cannot be read; the message says where and why."""


def read_table(path: Path) -> Table:
    """Read the file into a table.

    Raises:
        RoutesFileError: it is missing, not YAML (see `read_yaml`), does not have the form of `RoutesFile`, or breaks a
            rule of the CRD; the message has every fault with its place and what to write.
    """
    try:
        raw: Any = read_yaml(path)
    except FileFault as exc:
        raise RoutesFileError(f"{path}: {exc}") from exc
    except OSError as exc:
        raise RoutesFileError(f"cannot read {path}: {exc.strerror}") from exc
    try:
        # As JSON, so that enumerations are written as text, as everywhere.
        text = json.dumps(raw, default=str)
    except (ValueError, TypeError, RecursionError) as exc:
        raise RoutesFileError(f"{path} is nothing that JSON could say: {exc}") from exc
    entries = raw.get("services") if isinstance(raw, dict) else None
    broken = [
        f"{_place(number, entry)}: {words}"
        for number, entry in enumerate(entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
        for words in rules_broken(entry)
    ]
    try:
        file = RoutesFile.model_validate_json(text)
    except ValidationError as exc:
        # Of a text in a wrong form the rule has the better words.
        broken += [_in_words(e) for e in exc.errors() if not broken or e["type"] != "string_pattern_mismatch"]
        raise RoutesFileError(f"{path}: {'; '.join(broken)}") from exc
    broken += [f"{entry.name}: {words}" for entry in file.services for words in contradictions(entry)]
    services: dict[str, Service] = {}
    replicas: dict[str, Replica] = {}
    for position, entry in enumerate(file.services):
        if entry.name in services:
            broken.append(f"the service {entry.name} is there twice; write it once")
        services[entry.name] = _service(entry, position)
        limits = {
            pool.name: Limits(pool.max_model_len, pool.max_num_seqs, pool.prefix_isolation is Isolation.NONE)
            for pool in entry.pools
        }
        for replica in entry.replicas:
            try:
                record = _replica(entry.name, replica, limits)
            except ValueError as exc:
                broken.append(f"{entry.name}: replicas: {exc}")
            else:
                replicas[record.uid] = record
    if broken:
        raise RoutesFileError(f"{path}: {'; '.join(dict.fromkeys(broken))}")
    return Table(services=services, replicas=replicas)


def _place(number: int, entry: dict[str, Any]) -> str:
    name = entry.get("name")
    return name if isinstance(name, str) and name else f"services.{number}"


def _in_words(error: ErrorDetails) -> str:
    place = ".".join(map(str, error["loc"])) or "the file"
    if error["type"] == "extra_forbidden":
        return f"{place}: there is no such field; remove it, or see to its spelling"
    return f"{place}: {error['msg'].removeprefix('Value error, ')}"


def _service(entry: FileService, position: int) -> Service:
    traffic = entry.traffic
    claims = {shape.value: pool.name for pool in entry.pools for shape in pool.shapes}
    pool_slo = {pool.name: pool.slo for pool in entry.pools if pool.slo is not None}
    return Service(
        key=entry.name,
        served_name=entry.served_name or entry.name.partition("/")[2],
        order=(f"{position:08d}", ""),
        generation=traffic.generation if traffic else 0,
        traffic=tuple(TrafficShare(e.pool, e.revision, e.weight) for e in traffic.entries) if traffic else (),
        wanted=len(entry.replicas),
        policy=make_policy(entry.routing or RoutingSpec(), entry.tenancy, entry.slo, entry.scaling, claims, pool_slo),
        keys_file=entry.keys_file,
    )


def _replica(service: str, entry: FileReplica, limits: dict[str, Limits]) -> Replica:
    host, port = address_of(entry.url)
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
