"""What may stand in a routes file. What it shares with an InferenceService is held to the rules of the CRD."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from paceline_crds.base import Model
from paceline_crds.names import DEFAULT_POOL
from paceline_crds.routing import RoutingSpec, ScalingSpec, Shape, SLOSpec
from paceline_crds.runtime_config import Isolation
from paceline_crds.status import ShadowTraffic
from paceline_crds.tenancy import IdentitySource, TenancySpec
from paceline_router.table.crd_rules import broken_rules

FULL_PERCENT = 100
MAX_POOL_NAME = 32

_NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")


def _is_name(value: str) -> str:
    if re.fullmatch(_NAME, value) is None:
        raise ValueError("write a name of at most 63 lower-case letters, digits and inner hyphens, for example chat-2")
    return value


def _is_key(value: str) -> str:
    namespace, slash, name = value.partition("/")
    if not slash or not re.fullmatch(_NAME, namespace) or not re.fullmatch(_NAME, name):
        raise ValueError("write NAMESPACE/NAME in lower-case letters, digits and hyphens, for example demo/chat")
    return value


Name = Annotated[str, AfterValidator(_is_name)]


def _is_pool_name(value: str) -> str:
    if len(value) > MAX_POOL_NAME:
        raise ValueError(f"write a pool's name of at most {MAX_POOL_NAME} characters, for example long")
    return _is_name(value)


PoolName = Annotated[str, AfterValidator(_is_pool_name)]


class FileReplica(Model):
    """One replica. `url` is its base address, for example http://127.0.0.1:8000."""

    url: str
    name: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    pool: PoolName = DEFAULT_POOL
    revision: Name | None = None
    ready: bool = True
    draining: bool = False


class FileShare(Model):
    """Whole percent of a pool's requests for one revision."""

    pool: PoolName = DEFAULT_POOL
    revision: Name
    weight: Annotated[int, Field(ge=0, le=FULL_PERCENT)]


class FileTraffic(Model):
    """Shares by revision; left out, every replica takes part."""

    generation: Annotated[int, Field(ge=1)] = 1
    entries: list[FileShare]
    shadow: ShadowTraffic | None = None
    """Written as in `status.traffic` of an InferenceService."""


class FilePool(Model):
    """What is said of a pool: the shapes that come to it, and what its replicas take."""

    name: PoolName
    shapes: list[Shape] = Field(default_factory=list)
    slo: SLOSpec | None = None
    max_model_len: Annotated[int | None, Field(ge=1)] = None
    max_num_seqs: Annotated[int | None, Field(ge=1)] = None
    prefix_isolation: Isolation = Isolation.PER_TENANT
    """None: tenants find each other's cached prefixes, as in most engines that are not ours."""


class FileService(Model):
    """One service. `routing`, `tenancy`, `slo` and `scaling` are written as in the spec of an InferenceService."""

    name: Annotated[str, AfterValidator(_is_key)]
    """`namespace/name`."""
    served_name: str | None = None
    replicas: list[FileReplica] = Field(default_factory=list)
    pools: list[FilePool] = Field(default_factory=list)
    traffic: FileTraffic | None = None
    routing: RoutingSpec | None = None
    tenancy: TenancySpec | None = None
    keys_file: Annotated[str | None, Field(min_length=1)] = None
    """For `tenancy.identity.from: APIKey`: a YAML file of tenant: SHA-256 of the key, where a cluster has a Secret."""
    slo: SLOSpec | None = None
    scaling: ScalingSpec | None = None


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a replica.

    Raises:
        ValueError: it is no address of a server; the message says what to write.
    """
    example = "write for example http://127.0.0.1:8000"
    try:
        parts = urlsplit(url)
        port = 80 if parts.port is None else parts.port
    except ValueError as exc:
        raise ValueError(f"{url} is no address ({exc}); {example}") from exc
    host = parts.hostname or ""
    if parts.scheme != "http":
        raise ValueError(f"{url}: a url begins with http:// (replicas are spoken to without TLS); {example}")
    if "@" in parts.netloc:
        raise ValueError(f"{url}: user and password are sent nowhere; {example}")
    if parts.path not in ("", "/") or "?" in url or "#" in url:
        raise ValueError(f"{url}: a url is a server's base, without a path, since /v1/… is added; {example}")
    if not _is_host(host) or parts.netloc.endswith(":"):
        raise ValueError(f"{url} has no host, or none that there can be; {example}")
    if port == 0:
        raise ValueError(f"{url}: port 0 is nobody's; write the port that the replica listens on, 1 to 65535")
    return host, port


def _is_host(host: str) -> bool:
    if ":" not in host and not re.fullmatch(r"[0-9.]+", host):
        return len(host) <= 253 and _HOST.fullmatch(host) is not None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def rules_broken(service: Mapping[str, Any]) -> Iterator[str]:
    """The rules of the CRD that an entry of `services`, as it stands in the file, does not keep: `path: words`."""
    spec = {part: service[part] for part in ("routing", "tenancy", "slo", "scaling") if part in service}
    pools = service.get("pools")
    if isinstance(pools, list):
        # The pool `default`, of which a spec says everything at its top, has an entry like the others here.
        spec["pools"] = [
            {part: pool[part] for part in ("name", "shapes", "slo") if part in pool}
            for pool in pools
            if isinstance(pool, dict) and pool.get("name") != DEFAULT_POOL
        ]
    if "servedName" in service:
        spec["model"] = {"servedName": service["servedName"]}
    if _is_by_key(spec):
        # Where the file names another file, a cluster has a Secret.
        tenancy = spec["tenancy"]
        spec["tenancy"] = {**tenancy, "identity": {"secretName": "keys", **tenancy["identity"]}}
    found: dict[str, Any] = {"spec": spec}
    key = service.get("name")
    if isinstance(key, str) and "/" in key:
        found["metadata"] = {"name": key.partition("/")[2]}
    for words in broken_rules(found):
        yield words.removeprefix("spec.")


def _is_by_key(spec: Mapping[str, Any]) -> bool:
    tenancy = spec.get("tenancy")
    identity = tenancy.get("identity") if isinstance(tenancy, dict) else None
    return isinstance(identity, dict) and identity.get("from") == IdentitySource.API_KEY.value


def contradictions(service: FileService) -> Iterator[str]:
    """What is wrong with a service in a file though each of its parts could be right: `path: words`."""
    identity = service.tenancy.identity if service.tenancy else None
    if identity is not None and identity.from_ is IdentitySource.API_KEY:
        if service.keys_file is None:
            yield "keysFile: identity.from: APIKey needs it; name a YAML file with lines of TENANT: SHA-256 of its key"
        if identity.secret_name is not None:
            yield "tenancy.identity.secretName: there are no Secrets outside Kubernetes; remove it and write keysFile"
    elif service.keys_file is not None:
        yield "keysFile: it is for tenancy.identity.from: APIKey; write that too, or remove keysFile"
    yield from _twice("pools", "pool", [pool.name for pool in service.pools])
    yield from _twice("replicas", "replica", [replica.name for replica in service.replicas if replica.name is not None])
    yield from _twice("replicas", "replica", [replica.url.rstrip("/") for replica in service.replicas])
    claims: dict[Shape, str] = {}
    for pool in service.pools:
        for shape in pool.shapes:
            other = claims.setdefault(shape, pool.name)
            # Of the other pools the rule of the CRD says it.
            if other != pool.name and DEFAULT_POOL in (other, pool.name):
                yield (
                    f"pools: the shape {shape.value} is claimed by the pools {other} and {pool.name}; each shape "
                    "belongs to one pool"
                )
    yield from _out_of_reach(service)
    if service.traffic is not None:
        yield from _wrong_shares(service.traffic)


def _out_of_reach(service: FileService) -> Iterator[str]:
    """Names that lead nowhere: a misspelt one would silently take replicas or requests out of service."""
    pools = {DEFAULT_POOL, *(pool.name for pool in service.pools)}
    for name in dict.fromkeys(replica.pool for replica in service.replicas):
        if name not in pools:
            yield (
                f"replicas: the pool {name} is not under pools, so that no request goes there; write it there "
                "with its shapes, or see to its spelling"
            )
    revisions = {replica.revision for replica in service.replicas}
    for share in service.traffic.entries if service.traffic is not None else ():
        if share.weight and service.replicas and share.revision not in revisions:
            yield (
                f"traffic.entries: no replica has the revision {share.revision}, which is to get {share.weight} %; "
                f"write `revision: {share.revision}` at the replicas that run it, or see to its spelling"
            )
    shadow = service.traffic.shadow if service.traffic is not None else None
    if shadow is not None and service.replicas and shadow.revision not in revisions:
        yield (
            f"traffic.shadow: no replica has the revision {shadow.revision}, which is to get copies; write "
            f"`revision: {shadow.revision}` at the replicas that run it, or see to its spelling"
        )


def _wrong_shares(traffic: FileTraffic) -> Iterator[str]:
    pools: dict[str, list[FileShare]] = {}
    for share in traffic.entries:
        pools.setdefault(share.pool, []).append(share)
    for pool, shares in pools.items():
        yield from _twice("traffic.entries", f"pool {pool}: the revision", [share.revision for share in shares])
        total = sum(share.weight for share in shares)
        if total != FULL_PERCENT:
            yield (
                f"traffic.entries: the weights of the pool {pool} add up to {total}; they are percents: make them "
                f"{FULL_PERCENT} together"
            )


def _twice(path: str, what: str, names: list[str]) -> Iterator[str]:
    for name in sorted(name for name, times in Counter(names).items() if times > 1):
        yield f"{path}: {what} {name} is there twice; write it once"
