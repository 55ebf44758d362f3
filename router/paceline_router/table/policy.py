"""What a service's spec says of its requests, made ready for the data path: numbers resolved, pools by shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from paceline_crds.durations import parse_duration
from paceline_crds.names import DEFAULT_POOL
from paceline_crds.routing import RoutingSpec, ScalingSpec, Shape, SLOSpec, Stickiness
from paceline_crds.tenancy import TenancySpec

SHAPES: tuple[Shape, ...] = tuple(Shape)
"""Shapes by the small number that the data path has for each."""

HOLD_SECONDS = 10.0
MAX_REQUEST_SECONDS = 600.0
RETRY_PERCENT = 10
SLOW_SECONDS = 5.0
SPILL_TIMES_SEQS = 2
"""A pool is over its bound when every replica has this many times its batch: one batch runs, one waits."""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Policy:
    """Durations are seconds.

    Attributes:
        hold: how long a request may wait while no replica is ready but some are expected, or all are full.
        hold_at_zero: the same for a service that has no replica by design; None: such a request is refused at once.
        spill_above: requests at each replica from which a pool is over its bound; None: from `runtime.maxNumSeqs`.
        pool_of_shape: by index into `SHAPES`.
        pool_slo: objectives of pools that have their own.
        problems: parts of the spec that this release cannot read, in words; their defaults hold.
    """

    routing: RoutingSpec = field(default_factory=RoutingSpec)
    tenancy: TenancySpec | None = None
    slo: SLOSpec | None = None
    hold: float = HOLD_SECONDS
    hold_at_zero: float | None = None
    max_request: float = MAX_REQUEST_SECONDS
    retry_percent: int = RETRY_PERCENT
    slow: float = SLOW_SECONDS
    stickiness: Stickiness = Stickiness.SESSION
    spill_above: int | None = None
    pool_of_shape: tuple[str, ...] = (DEFAULT_POOL,) * len(SHAPES)
    pool_slo: Mapping[str, SLOSpec] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def slo_of(self, pool: str) -> SLOSpec | None:
        """The objectives of a pool's requests."""
        return self.pool_slo.get(pool, self.slo)


def policy_from_spec(spec: Mapping[str, Any]) -> Policy:
    """Read the parts of an InferenceService's spec that routers act on.

    A part that cannot be read has its default, and is named in `problems`: one field that a newer release wrote must
    not stop the service.
    """
    problems: list[str] = []

    def read(model: type[M], value: Any, path: str) -> M | None:
        if value is None:
            return None
        try:
            return model.model_validate_json(json.dumps(value), extra="ignore")
        except (ValidationError, TypeError, ValueError) as exc:
            words = exc.errors()[0]["msg"] if isinstance(exc, ValidationError) else str(exc)
            problems.append(f"spec.{path} cannot be read ({words}): its default holds")
            return None

    routing = read(RoutingSpec, spec.get("routing"), "routing") or RoutingSpec()
    tenancy = read(TenancySpec, spec.get("tenancy"), "tenancy")
    slo = read(SLOSpec, spec.get("slo"), "slo")
    scaling = read(ScalingSpec, spec.get("scaling"), "scaling")
    claims: dict[str, str] = {}
    pool_slo: dict[str, SLOSpec] = {}
    pools = spec.get("pools")
    for pool in pools if isinstance(pools, list | tuple) else ():
        name = pool.get("name") if isinstance(pool, dict) else None
        if not isinstance(name, str):
            continue
        shapes = pool.get("shapes")
        for shape in shapes if isinstance(shapes, list | tuple) else ():
            claims.setdefault(str(shape), name)
        own = read(SLOSpec, pool.get("slo"), f"pools[{name}].slo")
        if own is not None:
            pool_slo[name] = own
    return make_policy(routing, tenancy, slo, scaling, claims, pool_slo, tuple(problems))


def make_policy(
    routing: RoutingSpec,
    tenancy: TenancySpec | None = None,
    slo: SLOSpec | None = None,
    scaling: ScalingSpec | None = None,
    claims: Mapping[str, str] | None = None,
    pool_slo: Mapping[str, SLOSpec] | None = None,
    problems: tuple[str, ...] = (),
) -> Policy:
    """A policy of models that were read. `claims` has the pool of each shape that one claims."""
    to_zero = scaling.scale_to_zero if scaling else None
    return Policy(
        routing=routing,
        tenancy=tenancy,
        slo=slo,
        hold=_seconds(routing.hold_requests_for, HOLD_SECONDS),
        hold_at_zero=None if to_zero is None else parse_duration(to_zero.hold_requests_for),
        max_request=_seconds(routing.max_request_duration, MAX_REQUEST_SECONDS),
        retry_percent=RETRY_PERCENT if routing.retry_budget_percent is None else routing.retry_budget_percent,
        slow=_seconds(routing.slow_request_threshold, SLOW_SECONDS),
        stickiness=routing.version_stickiness or Stickiness.SESSION,
        spill_above=routing.spill_above_per_replica,
        pool_of_shape=tuple((claims or {}).get(shape.value, DEFAULT_POOL) for shape in SHAPES),
        pool_slo=pool_slo or {},
        problems=problems,
    )


def _seconds(text: str | None, default: float) -> float:
    return default if text is None else parse_duration(text)
