"""The table from a YAML or JSON file: the router without Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from paceline_crds.routing import RoutingSpec
from paceline_crds.runtime_config import Isolation
from paceline_router.table.file_form import (
    FileReplica,
    FileService,
    address_of,
    contradictions,
    rules_broken,
)
from paceline_router.table.policy import make_policy
from paceline_router.table.records import Limits, Replica, Service, Table, TrafficShare, shadow_from
from paceline_router.table.yaml_file import FileFault, read_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


NO_SUCH_FIELD = "there is no such field; remove it, or see to its spelling"

WORDS = {
    "extra_forbidden": NO_SUCH_FIELD,
    "missing": "is missing; write it",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "string_type": "write a text, in quotes where it looks like a number",
    "list_type": "write a list, each of its entries in a line that begins with `-`",
    "dict_type": "write fields, each as `name: value`",
    "model_type": "write fields, each as `name: value`",
    "model_attributes_type": "write fields, each as `name: value`",
    "greater_than_equal": "write {ge} or more",
    "greater_than": "write more than {gt}",
    "less_than_equal": "write {le} or less",
    "less_than": "write less than {lt}",
    "string_too_short": "write at least {min_length} characters",
    "string_too_long": "write at most {max_length} characters",
}
"""What to write instead, by pydantic's name of the fault; of others its own words are told."""


class RoutesFileError(ValueError):
    """The file cannot be read; the message says where and why."""


def read_table(path: Path) -> Table:
    """Read the file into a table.

    Raises:
        RoutesFileError: it is missing, not YAML (see `read_yaml`), has not the form of a list of `FileService`, or
            breaks a rule of the CRD; the message has every fault with its place and what to write, a line for each.
    """
    try:
        raw: Any = read_yaml(path)
    except FileFault as exc:
        raise RoutesFileError(f"{path}: {exc}") from exc
    except OSError as exc:
        raise RoutesFileError(f"cannot read {path}: {exc.strerror}") from exc
    services: dict[str, Service] = {}
    replicas: dict[str, Replica] = {}
    faults: list[str] = []
    for position, given in enumerate(_entries(path, raw)):
        place = _place(position, given)
        entry, wrong = _read_entry(given)
        if entry is not None:
            if entry.name in services:
                wrong.append("the service is there twice; write it once")
            services[entry.name] = _service(entry, position)
            for replica in _replicas(entry, wrong):
                replicas[replica.uid] = replica
        faults += [f"{place}: {words}" for words in wrong]
    if faults:
        raise _refusal(path, faults)
    return Table(services=services, replicas=replicas)


def _entries(path: Path, raw: Any) -> list[Any]:
    """What stands under `services`, whatever each of it is."""
    if not isinstance(raw, dict):
        raise RoutesFileError(
            f"{path}: write `services:` and under it a list, a line with `- name: demo/chat` for each"
        )
    faults = [f"{name}: {NO_SUCH_FIELD}" for name in map(str, raw) if name != "services"]
    if "services" not in raw:
        faults.append("services: is missing; write it, with a list of services under it (`[]` for none)")
    entries = raw.get("services", [])
    if not isinstance(entries, list):
        faults.append(f"services: {WORDS['list_type']}")
    if faults:
        raise _refusal(path, faults)
    return list(entries)


def _read_entry(given: Any) -> tuple[FileService | None, list[str]]:
    """A service, None where it has not the form of one; and all that is wrong with it."""
    wrong = list(rules_broken(given)) if isinstance(given, dict) else []
    try:
        # As JSON, so that enumerations are written as text, as everywhere.
        entry = FileService.model_validate_json(json.dumps(given, default=str))
    except ValidationError as exc:
        # Of a text in a wrong form the rule has the better words.
        wrong += [_in_words(e) for e in exc.errors() if not wrong or e["type"] != "string_pattern_mismatch"]
        return None, wrong
    except (ValueError, TypeError, RecursionError) as exc:
        return None, [*wrong, f"it is nothing that JSON could say: {exc}"]
    return entry, wrong + list(contradictions(entry))


def _replicas(entry: FileService, wrong: list[str]) -> Iterator[Replica]:
    limits = {
        pool.name: Limits(pool.max_model_len, pool.max_num_seqs, pool.prefix_isolation is Isolation.NONE)
        for pool in entry.pools
    }
    for replica in entry.replicas:
        try:
            yield _replica(entry.name, replica, limits)
        except ValueError as exc:
            wrong.append(f"replicas: {exc}")


def _refusal(path: Path, faults: list[str]) -> RoutesFileError:
    faults = list(dict.fromkeys(faults))
    if len(faults) == 1:
        return RoutesFileError(f"{path}: {faults[0]}")
    return RoutesFileError("\n  - ".join([f"{path} has {len(faults)} faults:", *faults]))


def _place(number: int, entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) and name else f"services.{number}"


def _in_words(error: ErrorDetails) -> str:
    words = WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
    words = (
        words.format(**error.get("ctx", {})) if error["type"] in WORDS else words.replace("Input should be", "write")
    )
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {words}" if place else words


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
        shadow=shadow_from(traffic.shadow) if traffic is not None and traffic.shadow is not None else None,
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
