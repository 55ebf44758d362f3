"""What the router knows of the cluster: services, revisions and replicas, as one frozen value.

Pure: objects of the Kubernetes API (or entries of a file) become records, records make the next table. Objects are
read field by field instead of through the strict models, because one object that a newer release wrote must not hide
the others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from pydantic import ValidationError

from paceline_crds import names
from paceline_crds.runtime_config import Isolation
from paceline_crds.status import ShadowTraffic
from paceline_router.table.policy import Policy, policy_from_spec

log = logging.getLogger(__name__)

JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrafficShare:
    """Whole percent of a pool's requests that go to the replicas of one revision."""

    pool: str
    revision: str
    weight: int


@dataclass(frozen=True, slots=True)
class Shadow:
    """Which requests of a service are copied, and for whom: `status.traffic.shadow`. Bounds count for this process.

    Attributes:
        revision: whose replicas get the copies.
        percent: of requests, 1 to 100.
        shapes: those that are copied; None: all.
        max_concurrent: copies at once.
        max_prompt_tokens, max_tokens: longer prompts (estimated) and answers (allowed or expected) are not copied.
        opt_out_tenants: of whom nothing is copied.
        recorder: base URL of what gets both answers; None: nobody does.
    """

    revision: str
    percent: int
    shapes: frozenset[str] | None = None
    max_concurrent: int = 8
    max_prompt_tokens: int = 8192
    max_tokens: int = 1024
    opt_out_tenants: frozenset[str] = frozenset()
    recorder: str | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """One InferenceService.

    Attributes:
        key: `namespace/name`.
        served_name: as the spec has it now. What runs may still be called otherwise: see `Revision.served`.
        order: creation time and uid; the lowest keeps a served name that several ask for.
        generation: of `status.traffic`; 0 when there is none yet.
        traffic: empty when any ready replica may serve.
        wanted: replicas asked for over all pools; None when not known.
        trouble: the reason of a `Ready` condition that is not true, for the words of a 503.
        policy: how its requests are to be handled.
    """

    key: str
    served_name: str
    order: tuple[str, str] = ("", "")
    generation: int = 0
    traffic: tuple[TrafficShare, ...] = ()
    wanted: int | None = None
    trouble: str | None = None
    policy: Policy = field(default_factory=Policy)
    keys_file: str | None = None
    """Only where the table is read from a file: where the hashes of its API keys are."""
    shadow: Shadow | None = None

    @property
    def created(self) -> int:
        """When the service was made, seconds since 1970; 0 when not known."""
        try:
            return int(datetime.fromisoformat(self.order[0]).timestamp())
        except ValueError:
            return 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one replica of a pool takes: tokens of one request, and requests in one batch. None: not known.

    Attributes:
        shared_prefixes: its tenants find each other's cached prefixes; where that is not known they do not.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    shared_prefixes: bool = False


@dataclass(frozen=True, slots=True)
class Revision:
    """One InferenceRevision: which pool hash and which served name each pool has in it."""

    key: str
    """`namespace/name`."""
    name: str
    service: str
    """The service's key."""
    created: str
    hashes: Mapping[str, str]
    """By pool."""
    served: Mapping[str, str] = field(default_factory=dict)
    """By pool, the only name of the model that its replicas know; a pool is absent where it cannot be read."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """By pool; absent where it cannot be read."""
    start_up: Mapping[str, float] = field(default_factory=dict)
    """By pool, seconds of its slowest start; absent where none was measured."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod of a service. `ready` says that it takes new requests: draining ones do not."""

    uid: str
    name: str
    service: str
    pool: str
    pool_hash: str
    host: str
    port: int
    ready: bool
    draining: bool
    limits: Limits = field(default_factory=Limits)
    """Only where the table is read from a file."""
    revision: str | None = None
    """Only where the table is read from a file: a pod's revision is found through its pool hash."""

    @property
    def address(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Record: TypeAlias = Service | Revision | Replica


@dataclass(frozen=True, slots=True)
class Table:
    """Everything known. Services and revisions by key, replicas by uid."""

    services: Mapping[str, Service] = field(default_factory=dict)
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    replicas: Mapping[str, Replica] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Removal:
    """A record that is gone: its type, and its key or uid."""

    kind: type[Service] | type[Revision] | type[Replica]
    key: str


def updated(table: Table, changes: Iterable[Record | Removal]) -> Table:
    """The table after these changes, in order."""
    services, revisions, replicas = dict(table.services), dict(table.revisions), dict(table.replicas)
    for change in changes:
        match change:
            case Service():
                services[change.key] = change
            case Revision():
                revisions[change.key] = change
            case Replica():
                replicas[change.uid] = change
            case Removal():
                if change.kind is Service:
                    services.pop(change.key, None)
                elif change.kind is Revision:
                    revisions.pop(change.key, None)
                else:
                    replicas.pop(change.key, None)
    return replace(table, services=services, revisions=revisions, replicas=replicas)


def service_from_object(obj: JsonObject) -> Service:
    """Read an InferenceService."""
    metadata = obj["metadata"]
    spec = _mapping(obj.get("spec"))
    status = _mapping(obj.get("status"))
    traffic = _mapping(status.get("traffic"))
    served_name = _mapping(spec.get("model")).get("servedName")
    return Service(
        key=f"{metadata.get('namespace') or 'default'}/{metadata['name']}",
        served_name=served_name if isinstance(served_name, str) and served_name else metadata["name"],
        order=(str(metadata.get("creationTimestamp") or ""), str(metadata.get("uid") or "")),
        generation=_integer(traffic.get("generation")) or 0,
        traffic=tuple(
            TrafficShare(str(entry.get("pool", "")), str(entry.get("revision", "")), _integer(entry.get("weight")) or 0)
            for entry in map(_mapping, traffic.get("entries") or ())
        ),
        wanted=_wanted(spec),
        trouble=_trouble(status),
        policy=policy_from_spec(spec),
        shadow=_shadow(_mapping(traffic.get("shadow"))),
    )


def _shadow(entry: JsonObject) -> Shadow | None:
    """What `status.traffic.shadow` asks for; None, so no copies at all, where that cannot be read in full."""
    if not entry:
        return None
    try:
        it = ShadowTraffic.model_validate_json(json.dumps(entry))
    except (ValidationError, TypeError, ValueError) as exc:
        log.warning("nothing is copied: status.traffic.shadow cannot be read: %s", exc)
        return None
    return shadow_from(it)


def shadow_from(it: ShadowTraffic) -> Shadow:
    """The same as the data path has it."""
    return Shadow(
        it.revision,
        it.percent,
        None if it.shapes is None else frozenset(shape.value for shape in it.shapes),
        it.max_concurrent,
        it.max_prompt_tokens,
        it.max_tokens,
        frozenset(it.opt_out_tenants or ()),
        it.recorder,
    )


def revision_from_object(obj: JsonObject) -> Revision:
    """Read an InferenceRevision."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace") or "default"
    spec = _mapping(obj.get("spec"))
    pools = [pool for pool in map(_mapping, spec.get("pools") or ()) if "name" in pool and "hash" in pool]
    served = {
        str(pool["name"]): _mapping(_mapping(pool.get("config")).get("model")).get("servedName") for pool in pools
    }
    return Revision(
        key=f"{namespace}/{metadata['name']}",
        name=metadata["name"],
        service=f"{namespace}/{spec.get('service', '')}",
        created=str(metadata.get("creationTimestamp") or ""),
        hashes={str(pool["name"]): str(pool["hash"]) for pool in pools},
        served={pool: name for pool, name in served.items() if isinstance(name, str) and name},
        limits={str(pool["name"]): limits for pool in pools if (limits := _limits(pool)) != Limits()},
        start_up=dict(_start_ups(_mapping(obj.get("status")).get("pools"))),
    )


def _start_ups(pools: Any) -> Iterator[tuple[str, float]]:
    for pool in map(_mapping, pools if isinstance(pools, list) else ()):
        took = _mapping(pool.get("startUp")).get("slowestSeconds")
        if isinstance(took, int) and took >= 0:
            yield str(pool.get("name")), float(took)


def _limits(pool: JsonObject) -> Limits:
    parameters = _mapping(_mapping(pool.get("config")).get("parameters"))
    return Limits(
        _integer(parameters.get("maxModelLen")),
        _integer(parameters.get("maxNumSeqs")),
        parameters.get("prefixIsolation") == Isolation.NONE.value,
    )


def replica_from_pod(pod: JsonObject) -> Replica | None:
    """Read a pod; None when there is nothing to send a request to: no address, ended, or not of a service.

    An evicted pod is one that keeps its name and loses its address, so that is a removal like a deletion.
    """
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    status = _mapping(pod.get("status"))
    service = labels.get(names.LABEL_SERVICE)
    host = status.get("podIP")
    if not service or not host or status.get("phase") in ("Failed", "Succeeded"):
        return None
    draining = bool(metadata.get("deletionTimestamp")) or names.ANNOTATION_DRAINING in (
        metadata.get("annotations") or {}
    )
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in map(_mapping, status.get("conditions") or ())
    )
    return Replica(
        uid=metadata["uid"],
        name=metadata["name"],
        service=f"{metadata.get('namespace') or 'default'}/{service}",
        pool=labels.get(names.LABEL_POOL) or names.DEFAULT_POOL,
        pool_hash=labels.get(names.LABEL_POOL_HASH) or "",
        host=host,
        port=_port(pod),
        ready=ready and not draining,
        draining=draining,
    )


def _port(pod: JsonObject) -> int:
    for container in map(_mapping, _mapping(pod.get("spec")).get("containers") or ()):
        for port in map(_mapping, container.get("ports") or ()):
            if port.get("name") == names.REPLICA_PORT_NAME and isinstance(port.get("containerPort"), int):
                return int(port["containerPort"])
    return names.REPLICA_PORT


def _wanted(spec: JsonObject) -> int | None:
    counts = [_integer(spec.get("replicas", 1))]
    counts += [_integer(_mapping(pool).get("replicas", 1)) for pool in spec.get("pools") or ()]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _trouble(status: JsonObject) -> str | None:
    for condition in map(_mapping, status.get("conditions") or ()):
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            reason = condition.get("reason")
            return reason if isinstance(reason, str) and reason.isalnum() else None
    return None


def _mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
