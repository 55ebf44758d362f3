"""What the router would make of one request, without sending it: for `paceline route explain`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from paceline_crds.headers import PROMPT_VERSION, TENANT
from paceline_crds.names import DEFAULT_POOL
from paceline_crds.tenancy import IdentitySource, LimitsSpec, TenancySpec
from paceline_router.shape.asked import COMPLETIONS, text_of
from paceline_router.shape.classes import reason
from paceline_router.shape.output_length import BASIS_WORDS, Basis
from paceline_router.shape.over_long import Cut, Pass, Refuse, Route, over_long
from paceline_router.shape.shaper import Shaped, Shaper
from paceline_router.table.file import RoutesFileError, read_table
from paceline_router.table.policy import SHAPES, Policy, policy_from_spec
from paceline_router.wire.heads import fault_of
from paceline_router.wire.requests import Body

CHAT = b"/v1/chat/completions"


class WrongUse(ValueError):
    """A file is not what it should be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as a file has it. Header names are lower case."""

    headers: Mapping[str, bytes]
    body: bytes
    path: bytes | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What is known of the service that gets the request.

    Attributes:
        source: where the rules are from, for people.
        limits: longest request of each pool, in tokens; None where it is not known.
    """

    source: str
    service: str | None = None
    served_name: str | None = None
    policy: Policy = field(default_factory=Policy)
    limits: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer. None is "not known". `taken` is False where the router would refuse the request."""

    taken: bool
    service: str | None
    rules: str
    shape: str
    reason: str
    prompt_tokens: int
    prompt_tokens_low: int
    prompt_tokens_high: int
    prompt_origin: str
    output_tokens: int
    output_tokens_high: int
    output_origin: str
    turns: int | None
    pool: str
    over_long: str
    over_long_words: str
    max_tokens: int | None
    tenant: str | None
    tenant_tokens: int
    tenant_words: str

    def as_json(self) -> dict[str, Any]:
        """In camel case, as everything Paceline writes."""
        return {_camel(name): value for name, value in asdict(self).items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def read_request(raw: bytes) -> Asked:
    """A request file: a JSON body alone, or lines `name: value`, an empty line, and the body, as on the wire; a request
    line before them is read for its path.

    Raises:
        WrongUse: a header line is none, or is not what the router lets through.
    """
    if raw.lstrip()[:1] in (b"{", b"[", b""):
        return Asked({}, raw)
    head, _, body = raw.replace(b"\r\n", b"\n").partition(b"\n\n")
    headers: dict[str, bytes] = {}
    path = None
    for number, line in enumerate(head.split(b"\n")):
        parts = line.split(b" ")
        if number == 0 and len(parts) >= 2 and parts[0].isalpha() and parts[1].startswith(b"/"):
            path = parts[1].partition(b"?")[0]
            continue
        name, colon, value = line.partition(b":")
        if not colon or not name.strip():
            raise WrongUse(
                f"line {number + 1} of the request is no header: write a JSON body alone, or lines `name: value`, "
                "an empty line and the body"
            )
        headers[name.strip().lower().decode("latin-1")] = value.strip()
    fault = fault_of(headers)
    if fault is not None:
        raise WrongUse(str(fault))
    return Asked(headers, body, path)


def rules_from_routes(path: Path, service: str | None, model: str | None) -> Rules:
    """The rules of a service in a routes file: the named one, else the one of the model, else the only one.

    Raises:
        WrongUse: the file is wrong, or which service is meant cannot be told.
    """
    try:
        table = read_table(path)
    except RoutesFileError as exc:
        raise WrongUse(str(exc)) from exc
    services = table.services
    found = None
    if service is not None:
        found = services.get(service)
    elif model is not None:
        found = next((entry for entry in services.values() if model in (entry.served_name, entry.key)), None)
    elif len(services) == 1:
        found = next(iter(services.values()))
    if found is None:
        wanted = (
            f"no service {service}" if service else f"no service for the model {model}" if model else "no one service"
        )
        names = ", ".join(f"{entry.key} (model {entry.served_name})" for entry in services.values()) or "none"
        raise WrongUse(f"{path} has {wanted}; it has: {names}. Name one with --service")
    limits: dict[str, int | None] = dict.fromkeys(found.policy.pool_of_shape)
    for replica in table.replicas.values():
        if replica.service == found.key:
            limits[replica.pool] = replica.limits.max_model_len
    return Rules(str(path), found.key, found.served_name, found.policy, limits)


def rules_from_spec(path: Path) -> Rules:
    """The rules of an InferenceService manifest; of several documents the first InferenceService counts.

    Raises:
        WrongUse: there is none.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as exc:
        raise WrongUse(f"cannot read {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise WrongUse(f"{path} is not YAML: {exc}") from exc
    found = next(
        (doc for doc in documents if isinstance(doc, dict) and doc.get("kind") == "InferenceService"),
        None,
    )
    if found is None:
        raise WrongUse(f"{path} has no InferenceService; for a routes file use --config")
    spec = _mapping(found.get("spec"))
    metadata = _mapping(found.get("metadata"))
    policy = policy_from_spec(spec)
    if policy.problems:
        raise WrongUse(f"{path}: {'; '.join(policy.problems)}")
    own = _integer(_mapping(spec.get("runtime")).get("maxModelLen"))
    limits: dict[str, int | None] = {DEFAULT_POOL: own}
    for pool in map(_mapping, spec.get("pools") or ()):
        named = _integer(_mapping(pool.get("runtime")).get("maxModelLen"))
        limits[str(pool.get("name"))] = own if named is None else named
    name = str(metadata.get("name"))
    served = _mapping(spec.get("model")).get("servedName")
    return Rules(
        str(path),
        f"{metadata.get('namespace') or 'default'}/{name}",
        served if isinstance(served, str) else name,
        policy,
        limits,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def explain(
    asked: Asked, body: Body, rules: Rules, path: bytes | None = None, tenant: str | None = None
) -> Explanation:
    """What a router with these rules, freshly started, makes of the request.

    Args:
        asked: the request.
        body: of it.
        rules: of its service.
        path: the endpoint; None: of the request line, else by the body.
        tenant: whose request it is; None: by the headers.
    """
    policy = rules.policy
    at = path or asked.path or (CHAT if body.messages or not body.prompt else COMPLETIONS)
    text = text_of(body, at)
    whose = tenant if tenant is not None else _tenant(asked.headers, policy.tenancy)
    version = asked.headers.get(PROMPT_VERSION, b"").decode("latin-1")
    shaper = Shaper(policy.routing)
    shaped = shaper.shape(body, text, whose or "", at, version)
    pool = policy.pool_of_shape[shaped.shape]
    limit = rules.limits.get(pool)
    outcome = over_long(policy.routing.over_long, limit, shaped, shaped.max_tokens, _longest(rules.limits))
    max_tokens = shaped.max_tokens
    words = "" if isinstance(outcome, Pass) else outcome.words
    if isinstance(outcome, Pass):
        known = limit is not None or (policy.routing.over_long and policy.routing.over_long.above_tokens is not None)
        words = (
            "not longer than what is taken here" if known else "the longest request that the pool takes is not known"
        )
    elif isinstance(outcome, Route):
        pool = outcome.pool
    elif isinstance(outcome, Cut):
        max_tokens = outcome.max_tokens
    tokens = shaped.prompt_tokens + shaped.output_tokens
    return Explanation(
        taken=not isinstance(outcome, Refuse),
        service=rules.service,
        rules=rules.source,
        shape=SHAPES[shaped.shape].value,
        reason=reason(
            shaped.prompt_tokens, shaped.output_tokens, shaped.turns, shaped.structure, shaped.n, shaper.thresholds
        ),
        prompt_tokens=shaped.prompt_tokens,
        prompt_tokens_low=shaped.prompt_low,
        prompt_tokens_high=shaped.prompt_high,
        prompt_origin=_origin(shaped),
        output_tokens=shaped.output_tokens,
        output_tokens_high=shaped.output_high,
        output_origin=BASIS_WORDS[Basis(shaped.basis)],
        turns=shaped.turns or None,
        pool=pool,
        over_long=type(outcome).__name__,
        over_long_words=words,
        max_tokens=max_tokens,
        tenant=whose,
        tenant_tokens=tokens,
        tenant_words=_cost(whose, tokens, policy.tenancy),
    )


def _longest(limits: Mapping[str, int | None]) -> tuple[str, int | None] | None:
    if not limits:
        return None
    best = max(limits, key=lambda pool: float("inf") if limits[pool] is None else float(limits[pool] or 0))
    return best, limits[best]


def _origin(shaped: Shaped) -> str:
    if not shaped.text_bytes:
        return "counted: the prompt is token ids"
    others = f" and {shaped.other_tokens:.0f} tokens of tools and images" if shaped.other_tokens else ""
    return f"estimated from {shaped.text_bytes} bytes{others}, by rates that no replica has corrected yet"


def _tenant(headers: Mapping[str, bytes], spec: TenancySpec | None) -> str | None:
    identity = spec.identity if spec is not None else None
    if identity is not None and identity.from_ is IdentitySource.API_KEY:
        return None
    name = (identity.header if identity is not None else None) or TENANT
    value = headers.get(name.lower())
    return None if value is None else value.decode("latin-1")


def _cost(tenant: str | None, tokens: int, spec: TenancySpec | None) -> str:
    if spec is None:
        return f"{tokens} tokens are expected; the service has no limits for tenants"
    own = next((entry for entry in spec.tenants or () if entry.name == tenant), None)
    per_minute = _limit(own, spec.default, "tokens_per_minute")
    requests = _limit(own, spec.default, "requests_per_minute")
    if per_minute is None and requests is None:
        return f"{tokens} tokens are expected; no limit per minute binds this tenant"
    parts = []
    if per_minute is not None:
        parts.append(f"{tokens} of {per_minute} tokens a minute ({tokens / per_minute:.1%})")
    if requests is not None:
        parts.append(f"1 of {requests} requests a minute")
    return " and ".join(parts) + " are reserved on entry; tokens are settled when it ends"


def _limit(own: LimitsSpec | None, default: LimitsSpec | None, name: str) -> int | None:
    for limits in (own, default):
        value = getattr(limits, name, None)
        if value is not None:
            return int(value)
    return None
