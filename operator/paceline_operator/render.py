"""From a spec to the full configuration of every pool. Pure: the same input gives the same hashes for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from paceline_crds.conditions import Reason
from paceline_crds.durations import parse_duration
from paceline_crds.names import DEFAULT_POOL, derived_name
from paceline_crds.pod_options import PodOptions
from paceline_crds.revision import HASH_VERSION, InferenceRevision, RevisionPool
from paceline_crds.rollout import RolloutStrategy
from paceline_crds.runtime_config import ADDED_LATER, ModelIdentity, Origin, RuntimeConfig, RuntimeParameters
from paceline_crds.service import (
    DriftPolicy,
    InferenceService,
    InferenceServiceSpec,
    PoolSpec,
    RuntimeSpec,
)
from paceline_planner.defaults import DoesNotFit

from .defaults import TABLES, Defaults
from .hashing import pool_hash, revision_hash
from .rollout.rules import Rules, rules_of
from .sizing import Sizes, Value, inputs, sizes
from .sources import storage_of
from .template import pod_template, start_up_seconds, with_start_up


class InvalidSpec(Exception):
    """A spec that no configuration can be made of; the message says what to write instead."""

    reason = Reason.INVALID_SPEC


class CannotFit(InvalidSpec):
    """A spec that asks for more than its accelerator has; the message has the arithmetic."""

    reason = Reason.DOES_NOT_FIT


@dataclass(frozen=True, slots=True)
class Carried:
    """What later revisions take over from earlier ones.

    Attributes:
        hash_version: of the newest revision: its defaults and its way of rendering stay.
        images: pool → image that once came from the operator; under `""` the newest of any pool, for pools yet unseen.
        pools: of the kept revisions of this hash version, the newest first: what was counted for them stays.
        start_ups: pool → seconds that its replicas may take to start, where what was measured asks for more than the
            default.
    """

    hash_version: int = HASH_VERSION
    images: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pools: tuple[RevisionPool, ...] = ()
    start_ups: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Desired:
    """What the spec asks for, rendered.

    Attributes:
        replicas: pool → replicas. Not part of any hash.
        pinned: the revision is one that a manual order names, not what the rest of the spec renders to.
        out_of_reach: pools that are too short for their shapes, in words; see `reach`.
        rules: of a rollout by steps; None where the strategy is another.
        waiting: pools that are as they were until the others have changed; see `rollout.inorder`.
    """

    revision: str
    hash_version: int
    pools: tuple[RevisionPool, ...]
    replicas: Mapping[str, int]
    strategy: RolloutStrategy
    history_limit: int
    suspended: bool
    drift_policy: DriftPolicy = DriftPolicy.REPORT
    pinned: bool = False
    out_of_reach: str = ""
    rules: Rules | None = None
    waiting: tuple[str, ...] = ()


def carried_from(revisions: Sequence[InferenceRevision]) -> Carried:
    """What to carry on, from all revisions that are kept, in any order."""
    ordered = sorted(revisions, key=lambda r: (r.metadata.creation_timestamp or "", r.metadata.name))
    if not ordered:
        return Carried()
    images: dict[str, str] = {}
    for revision in ordered:
        for pool in revision.spec.pools:
            if pool.image_origin == Origin.OPERATOR:
                images[pool.name] = pool.image
                images[""] = pool.image
    # A table that this release does not know was written by a newer one.
    known = [r.spec.hash_version for r in ordered if r.spec.hash_version in TABLES]
    version = known[-1] if known else HASH_VERSION
    return Carried(version, MappingProxyType(images), pools_of(ordered, version))


def pools_of(revisions: Sequence[InferenceRevision], hash_version: int) -> tuple[RevisionPool, ...]:
    """The pools of those revisions, given in order of age, that are of a hash version; the newest first."""
    return tuple(
        pool
        for revision in reversed(revisions)
        if revision.spec.hash_version == hash_version
        for pool in revision.spec.pools
    )


def render(service: InferenceService, carried: Carried, operator_image: str) -> Desired:
    """Render every pool.

    Args:
        service: as read from the API server.
        carried: from the revisions that are kept.
        operator_image: the runtime's image where neither spec nor an earlier revision names one.

    Raises:
        InvalidSpec: values that cannot go together, or (`CannotFit`) more than the accelerator has.
    """
    rendered = tuple(_render_pool(service, pool, carried, operator_image) for pool in _pools(service.spec))
    return replace(
        asked(service),
        revision=derived_name(service.metadata.name, revision_hash({pool.name: pool.hash for pool in rendered})),
        hash_version=carried.hash_version,
        pools=rendered,
    )


def asked(service: InferenceService) -> Desired:
    """What the spec asks for beside the configuration of its pools: no revision, no pools.

    Raises:
        ValueError: steps or gates of a rollout that the API server should have refused.
    """
    spec = service.spec
    return Desired(
        revision="",
        hash_version=HASH_VERSION,
        pools=(),
        replicas=MappingProxyType({pool.name: pool.replicas for pool in _pools(spec)}),
        strategy=spec.rollout.strategy if spec.rollout else RolloutStrategy.ROLLING,
        history_limit=spec.revision_history_limit,
        suspended=spec.suspend,
        drift_policy=spec.drift_policy,
        rules=rules_of(spec.rollout, spec.slo is not None or any(pool.slo for pool in spec.pools or ())),
    )


def _pools(spec: InferenceServiceSpec) -> list[PoolSpec]:
    return [PoolSpec.model_construct(name=DEFAULT_POOL, replicas=spec.replicas), *(spec.pools or ())]


def pinned(desired: Desired, revision: InferenceRevision) -> Desired:
    """What is asked for while an order pins a kept revision: its pools as they were rendered then.

    The rest of the spec need not be one that can be rendered. Counts stay those of the spec, since they belong to no
    revision; a pool that the spec no longer has gets one replica.
    """
    return replace(
        desired,
        revision=revision.metadata.name,
        hash_version=revision.spec.hash_version,
        pools=tuple(revision.spec.pools),
        replicas=MappingProxyType({pool.name: desired.replicas.get(pool.name, 1) for pool in revision.spec.pools}),
        pinned=True,
    )


def _render_pool(service: InferenceService, pool: PoolSpec, carried: Carried, operator_image: str) -> RevisionPool:
    spec = service.spec
    defaults = TABLES[carried.hash_version]
    layers = ((Origin.POOL, pool.runtime), (Origin.SPEC, spec.runtime))
    options = _options(spec.pod, pool.pod)
    image = _image(layers, carried, pool.name, operator_image)
    accelerator = pool.accelerator or spec.accelerator
    try:
        storage = storage_of(spec.model, {str(volume.get("name")) for volume in options.volumes or ()})
        template = pod_template(
            service=service.metadata.name,
            pool=pool.name,
            image=image.value,
            storage=storage,
            options=options,
            accelerator=accelerator,
            defaults=defaults,
            longest_request=_longest_request(spec),
        )
        given = _given(layers)
        counted = Sizes()
        if defaults.ledger:
            asked = inputs(storage.source, {name: value.value for name, value in given.items()}, template)
            device = accelerator.resource if accelerator is not None and accelerator.count else None
            counted = sizes(asked, device, defaults, pool.name, carried.pools)
        values = _parameters({**given, **counted.values}, defaults)
        config = RuntimeConfig(
            model=ModelIdentity(source=storage.source, served_name=service.served_name),
            parameters=RuntimeParameters(**{name: value.value for name, value in values.items()}),
            origins={_alias(name): value.origin for name, value in values.items()},
        )
        made = [
            (pool_hash(hash_version=carried.hash_version, config=config, image=image.value, pod_template=one), one)
            for one in _templates(template, pool.name, defaults, carried)
        ]
        hashes = {before.hash for before in carried.pools}
        digest, template = next((one for one in made if one[0] in hashes), made[-1])
    except ValidationError as exc:
        words = "; ".join(error["msg"].removeprefix("Value error, ") for error in exc.errors())
        raise InvalidSpec(f"pool {pool.name}: {words}") from exc
    except DoesNotFit as exc:
        raise CannotFit(f"pool {pool.name}: {exc}") from exc
    except ValueError as exc:
        raise InvalidSpec(f"pool {pool.name}: {exc}") from exc
    return RevisionPool(
        name=pool.name,
        hash=digest,
        image=image.value,
        image_origin=image.origin.value,
        config=config,
        pod_template=template,
        ledger=counted.words,
    )


def _templates(template: dict[str, Any], pool: str, defaults: Defaults, carried: Carried) -> Iterator[dict[str, Any]]:
    """The template with each start-up time that kept revisions have, and last with the one to take for a new one.

    So what was measured lengthens the probe of replicas that are new anyway, and makes none new.
    """
    wanted = carried.start_ups.get(pool, defaults.startup_failures)
    known = [seconds for seconds in map(start_up_seconds, (p.pod_template for p in carried.pools)) if seconds != wanted]
    for seconds in (*dict.fromkeys(known), wanted):
        yield with_start_up(template, seconds)


def _longest_request(spec: InferenceServiceSpec) -> float | None:
    """Seconds, where the spec says."""
    limit = spec.routing.max_request_duration if spec.routing else None
    return parse_duration(limit) if limit is not None else None


Layers = Sequence[tuple[Origin, RuntimeSpec | None]]


def _image(layers: Layers, carried: Carried, pool: str, operator_image: str) -> Value:
    for origin, runtime in layers:
        if runtime is not None and runtime.image is not None:
            return Value(runtime.image, origin)
    return Value(carried.images.get(pool) or carried.images.get("") or operator_image, Origin.OPERATOR)


def _given(layers: Layers) -> dict[str, Value]:
    """The parameters that are written down: the pool's value, else the service's."""
    given: dict[str, Value] = {}
    for origin, runtime in layers:
        if runtime is None:
            continue
        written: dict[str, Any] = {
            "max_model_len": runtime.max_model_len,
            "max_num_seqs": runtime.max_num_seqs,
            "max_batched_tokens": runtime.max_batched_tokens,
            "prefill_chunk_tokens": runtime.prefill_chunk_tokens,
            "block_size": runtime.block_size,
            "dtype": runtime.dtype,
            "prefill_min_chunk_tokens": runtime.prefill_min_chunk_tokens,
            "max_step_share_percent": runtime.max_step_share_percent,
            "max_queued_requests": runtime.max_queued_requests,
            "tenant_max_seqs": runtime.tenant_max_seqs,
        }
        if (cache := runtime.kv_cache) is not None:
            written |= {
                "kv_cache_memory": cache.memory,
                "kv_cache_quantization": cache.quantization,
                "kv_host_memory": cache.host_memory,
            }
        if (prefix := runtime.prefix_caching) is not None:
            written |= {
                "prefix_caching": prefix.enabled,
                "prefix_isolation": prefix.isolation,
                "eviction_watermark_percent": prefix.eviction_watermark_percent,
            }
        if (scheduling := runtime.scheduling) is not None:
            written |= {
                "scheduling_policy": scheduling.policy,
                "scheduling_fair_share": scheduling.fair_share,
                "scheduling_under_pressure": scheduling.under_pressure,
            }
        for name, value in written.items():
            if value is not None:
                given.setdefault(name, Value(value, origin))
    return given


def _parameters(given: Mapping[str, Value], defaults: Defaults) -> dict[str, Value]:
    """Every parameter: what is given, else the default that fits the others."""

    def or_default(name: str, default: Any) -> Value:
        return given.get(name) or Value(default, Origin.DEFAULT)

    wanted = [given[name].value for name in ("max_num_seqs", "prefill_chunk_tokens") if name in given]
    budget = or_default("max_batched_tokens", max(defaults.max_batched_tokens, *wanted, 0))
    chunk = or_default("prefill_chunk_tokens", min(defaults.prefill_chunk_tokens, budget.value))
    later = {name: or_default(name, RuntimeParameters.model_fields[name].default) for name in ADDED_LATER}
    if later["prefill_min_chunk_tokens"].origin is Origin.DEFAULT:
        least = min(later["prefill_min_chunk_tokens"].value, chunk.value)
        later["prefill_min_chunk_tokens"] = Value(least, Origin.DEFAULT)
    return {
        **later,
        "max_model_len": or_default("max_model_len", defaults.max_model_len),
        "max_num_seqs": or_default("max_num_seqs", min(defaults.max_num_seqs, budget.value)),
        "max_batched_tokens": budget,
        "prefill_chunk_tokens": chunk,
        "block_size": or_default("block_size", defaults.block_size),
        "kv_cache_memory": or_default("kv_cache_memory", defaults.kv_cache_memory),
        "prefix_caching": or_default("prefix_caching", defaults.prefix_caching),
    }


def _options(service: PodOptions | None, pool: PodOptions | None) -> PodOptions:
    """A field that the pool gives replaces the service's."""
    base = service or PodOptions()
    if pool is None:
        return base
    return base.model_copy(update={name: getattr(pool, name) for name in pool.model_fields_set})


def _alias(name: str) -> str:
    return RuntimeParameters.model_fields[name].alias or name
