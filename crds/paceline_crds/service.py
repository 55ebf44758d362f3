"""`InferenceService`: what a user writes, and the status that Paceline writes back.

Only fields whose machinery exists are here: any other is refused by the API server by its name, never ignored.
"""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any, Self

from pydantic import Field

from .base import Model
from .fields import DeviceCount, Size, rule, rules, text
from .pod_options import PodOptions
from .rollout import ROLLOUT_RULES, RolloutSpec
from .routing import SCALING_RULES, TO_ZERO_RULES, PoolScalingSpec, RoutingSpec, ScalingSpec, Shape, SLOSpec
from .runtime_config import Isolation, KVQuantization, PressurePolicy, QueuePolicy, WeightType
from .status import InferenceServiceStatus
from .tenancy import TenancySpec
from .tuning import AT_TIMES_RULE, AUTO_RANGES_RULES, AutoRangesSpec

SOURCE_RULE = rule(
    r"self.matches('^(package://[A-Za-z0-9][A-Za-z0-9._-]*(/.+)?|file:///.+|"
    r"pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/.+)?|oci://[^\\s#@]+(@sha256:[0-9a-f]{64})?(#.+)?|"
    r"hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(/[^\\s@]+)?(@[^\\s@]+)?)$')",
    "write hf://ORG/NAME@REVISION for a model of a hub, pvc://CLAIM/PATH for files on a volume, oci://IMAGE for an "
    "image that holds the model, package://DISTRIBUTION for weights inside an installed Python distribution, or "
    "file:///PATH for a folder or a GGUF file in the pod",
)

MODEL_RULES = (
    rule(
        "!has(self.tokenSecretName) || self.source.startsWith('hf://')",
        "a token is for hf:// sources only: remove tokenSecretName",
        field_path=".tokenSecretName",
    ),
    rule(
        "!has(self.cacheVolumeName) || self.source.startsWith('hf://')",
        "only what comes from hf:// is kept in a cache: remove cacheVolumeName",
        field_path=".cacheVolumeName",
    ),
)


class ModelSpec(Model):
    """The weights to serve and the name clients ask for."""

    source: Annotated[
        str,
        text(
            "Where the weights are: hf://ORG/NAME@REVISION (fetched at the start; hf://ORG/NAME/FILE.gguf@REVISION for "
            "one file), pvc://CLAIM/PATH (a volume, read only), oci://IMAGE#PATH (an image volume), "
            "package://DISTRIBUTION (data inside an installed Python distribution) or file:///PATH (a folder with "
            "safetensors, or a GGUF file, visible in the pod).",
            SOURCE_RULE,
            max_length=1024,
        ),
    ]
    served_name: Annotated[
        str | None,
        text(
            "What clients send as `model`: free text, case-sensitive. Default: the name of the InferenceService.",
            rule(
                r"self.matches('^[^\\s\\x00-\\x1f\\x7f]([^\\x00-\\x1f\\x7f]*[^\\s\\x00-\\x1f\\x7f])?$')",
                "write the name on one line, without control characters and without blanks at its ends",
            ),
        ),
    ] = None
    token_secret_name: Annotated[
        str | None,
        text("For hf:// sources: the Secret whose key `token` holds an access token of the hub."),
    ] = None
    cache_volume_name: Annotated[
        str | None,
        text(
            "For hf:// sources: the name of a volume in spec.pod.volumes in which fetched files are kept. Default: an "
            "emptyDir, so that every new pod fetches them.",
            max_length=63,
        ),
    ] = None


class AcceleratorSpec(Model):
    """Devices for each replica. Leave the whole field out to run on the CPU."""

    resource: Annotated[
        str,
        text(
            "The extended resource to ask for, e.g. nvidia.com/gpu, or nvidia.com/mig-1g.10gb for a part of one.",
            rule(
                r"self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",
                "write the resource with its domain, for example nvidia.com/gpu",
            ),
        ),
    ]
    count: Annotated[
        DeviceCount,
        Field(description="Whole devices for each replica, 0 to 64; 0 means the CPU."),
    ] = 1


class KVCacheSpec(Model):
    """Memory for the paged KV cache of one replica."""

    memory: Annotated[Size | None, Field(description="Size of the KV cache, for example 20Gi.")] = None
    quantization: Annotated[
        KVQuantization | None,
        Field(
            description="FP8 or INT8: keys and values in 8 bits with a scale for each token and head, so that the same "
            "memory holds nearly twice (on a CPU nearly four times) the tokens; answers change a little. Default: None."
        ),
    ] = None
    host_memory: Annotated[
        Size | None,
        Field(
            description="Host memory for KV blocks that the cache lets go, for example 40Gi. Used while that costs "
            "less time than it saves, as measured. Absent or 0: none.",
        ),
    ] = None


class PrefixCachingSpec(Model):
    """Reuse of KV blocks between requests that begin alike."""

    enabled: Annotated[bool | None, Field(description="Whether blocks of earlier requests are reused.")] = None
    isolation: Annotated[
        Isolation | None,
        Field(
            description="PerTenant: a tenant finds only its own blocks, so that no answer's speed tells what others "
            "sent. None: everyone's. Requests without a tenant count as one tenant."
        ),
    ] = None
    eviction_watermark_percent: Annotated[
        int | None,
        Field(
            ge=50,
            le=100,
            description="Share of the cache in use or cached from which cold blocks are let go; 100 waits until it is "
            "full.",
        ),
    ] = None


class SchedulingSpec(Model):
    """Which request goes first. At most two of the three may be on: more rules on one queue cannot be explained."""

    policy: Annotated[
        QueuePolicy | None,
        Field(description="FCFS: by arrival. Priority: by class (x-paceline-priority). Deadline: least slack first."),
    ] = None
    fair_share: Annotated[
        bool | None, Field(description="Whether tenants share the queue by the tokens they were served.")
    ] = None
    under_pressure: Annotated[
        PressurePolicy | None,
        Field(description="ShortestRemaining: while the KV cache is nearly full, who has least left to do goes first."),
    ] = None


SCHEDULING_RULES = (
    rule(
        "!(has(self.policy) && self.policy != 'FCFS' && has(self.fairShare) && self.fairShare && "
        "has(self.underPressure) && self.underPressure != 'None')",
        "three rules about the same queue cannot be explained to anyone who waits in it: keep at most two of policy, "
        "fairShare and underPressure",
    ),
)


class RuntimeSpec(Model):
    """Parameters of the inference engine. A field left out is resolved, and recorded, when a revision is rendered."""

    image: Annotated[
        str | None,
        text(
            "Container image of the runtime. Left out: the operator's own at the first revision, then carried along.",
            max_length=512,
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Field(ge=16, le=10_000_000, description="Longest prompt plus output of one request, in tokens."),
    ] = None
    max_num_seqs: Annotated[int | None, Field(ge=1, le=4096, description="Most requests in one batch.")] = None
    max_batched_tokens: Annotated[
        int | None,
        Field(
            ge=16,
            le=1_000_000,
            description="Token budget of one engine step: decodes first, prefill the rest.",
        ),
    ] = None
    prefill_chunk_tokens: Annotated[
        int | None, Field(ge=16, le=1_000_000, description="Most prompt tokens of one request in one step.")
    ] = None
    block_size: Annotated[
        int | None,
        Field(
            ge=8,
            le=128,
            description="Tokens in one block of the KV cache: 8, 16, 32, 64 or 128.",
            json_schema_extra=rules(rule("self in [8, 16, 32, 64, 128]", "blockSize is one of 8, 16, 32, 64 or 128")),
        ),
    ] = None
    prefill_min_chunk_tokens: Annotated[
        int | None,
        Field(ge=1, le=4096, description="A piece of a prompt smaller than this waits for a step with more room."),
    ] = None
    max_step_share_percent: Annotated[
        int | None,
        Field(ge=1, le=100, description="Most of a step's tokens that one request takes while others want them."),
    ] = None
    max_queued_requests: Annotated[
        int | None,
        Field(ge=1, le=1_000_000, description="Requests that may wait in a replica; more are answered 503."),
    ] = None
    tenant_max_seqs: Annotated[
        int | None, Field(ge=1, le=4096, description="Most requests of one tenant in a batch.")
    ] = None
    dtype: Annotated[
        WeightType | None,
        Field(description="Type in which weights are held. Auto: bfloat16 on a GPU, float32 on a CPU."),
    ] = None
    scheduling: Annotated[
        SchedulingSpec | None,
        Field(description="Which request goes first.", json_schema_extra=rules(*SCHEDULING_RULES)),
    ] = None
    kv_cache: Annotated[KVCacheSpec | None, Field(description="Memory for the paged KV cache.")] = None
    prefix_caching: Annotated[PrefixCachingSpec | None, Field(description="Reuse of KV blocks between requests.")] = (
        None
    )
    auto_ranges: Annotated[
        AutoRangesSpec | None,
        Field(
            description="Knobs that follow load while replicas run, between what is given here. A change restarts "
            "nothing and makes no revision; a value inside is no drift. It needs an objective of slo.tpot.",
            json_schema_extra=rules(AT_TIMES_RULE),
        ),
    ] = None


RUNTIME_RULES = (
    *AUTO_RANGES_RULES,
    rule(
        "!has(self.prefillChunkTokens) || !has(self.maxBatchedTokens) || "
        "self.prefillChunkTokens <= self.maxBatchedTokens",
        message_expression="'prefillChunkTokens %d does not fit in maxBatchedTokens %d: lower the first or raise the "
        "second'.format([self.prefillChunkTokens, self.maxBatchedTokens])",
        field_path=".prefillChunkTokens",
    ),
    rule(
        "!has(self.maxNumSeqs) || !has(self.maxBatchedTokens) || self.maxNumSeqs <= self.maxBatchedTokens",
        message_expression="'maxNumSeqs %d is more than maxBatchedTokens %d; each running request needs one token of a "
        "step: lower the first or raise the second'.format([self.maxNumSeqs, self.maxBatchedTokens])",
        field_path=".maxNumSeqs",
    ),
    rule(
        "!has(self.prefillMinChunkTokens) || !has(self.prefillChunkTokens) || "
        "self.prefillMinChunkTokens <= self.prefillChunkTokens",
        message_expression="'prefillMinChunkTokens %d is more than prefillChunkTokens %d: lower the first or raise the "
        "second'.format([self.prefillMinChunkTokens, self.prefillChunkTokens])",
        field_path=".prefillMinChunkTokens",
    ),
)


class PoolSpec(Model):
    """A further group of replicas with parameters of its own: only the differences to the service are written here."""

    name: Annotated[
        str,
        text(
            "Name of the pool.",
            rule(
                "self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
                "a pool name has lower-case letters, digits and inner hyphens, for example long-context",
            ),
            rule(
                "self != 'default'",
                "the pool `default` always exists: set spec.runtime, spec.replicas and spec.pod instead",
            ),
            max_length=32,
        ),
    ]
    shapes: Annotated[
        list[Shape] | None,
        Field(
            max_length=5,
            description="Request shapes that come to this pool. Shapes that no pool claims come to `default`.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = None
    replicas: Annotated[int, Field(ge=0, le=1000, description="Replicas of this pool.")] = 1
    slo: Annotated[SLOSpec | None, Field(description="Objectives that differ from spec.slo.")] = None
    scaling: Annotated[
        PoolScalingSpec | None,
        Field(
            description="Scaling of this pool, in the place of spec.scaling as a whole.",
            json_schema_extra=rules(*SCALING_RULES),
        ),
    ] = None
    runtime: Annotated[
        RuntimeSpec | None,
        Field(
            description="Engine parameters that differ from spec.runtime.",
            json_schema_extra=rules(*RUNTIME_RULES),
        ),
    ] = None
    accelerator: Annotated[AcceleratorSpec | None, Field(description="Devices that differ from spec.accelerator.")] = (
        None
    )
    pod: Annotated[
        PodOptions | None,
        Field(description="Placement that differs from spec.pod; a field given here replaces the one there."),
    ] = None


class DriftPolicy(enum.StrEnum):
    """What happens when a replica is not configured as recorded."""

    REPORT = "Report"
    REPAIR = "Repair"


class InferenceServiceSpec(Model):
    """What is served, on what, and how many times."""

    model: Annotated[ModelSpec, Field(description="The weights to serve.", json_schema_extra=rules(*MODEL_RULES))]
    accelerator: Annotated[
        AcceleratorSpec | None, Field(description="Devices for each replica; left out: the CPU.")
    ] = None
    replicas: Annotated[int, Field(ge=0, le=1000, description="Replicas of the pool `default`.")] = 1
    runtime: Annotated[
        RuntimeSpec | None, Field(description="Engine parameters.", json_schema_extra=rules(*RUNTIME_RULES))
    ] = None
    pools: Annotated[
        list[PoolSpec] | None,
        Field(
            max_length=16,
            description="Further groups of replicas beside `default`, for the request shapes that each one claims.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    slo: Annotated[SLOSpec | None, Field(description="What users are promised, as seen at the router.")] = None
    scaling: Annotated[
        ScalingSpec | None,
        Field(
            description="How the number of replicas follows load, of `default` and of every pool without its own.",
            json_schema_extra=rules(*SCALING_RULES, *TO_ZERO_RULES),
        ),
    ] = None
    rollout: Annotated[
        RolloutSpec | None,
        Field(description="How a new revision takes over.", json_schema_extra=rules(*ROLLOUT_RULES)),
    ] = None
    tenancy: Annotated[
        TenancySpec | None, Field(description="Whose requests these are, and how tenants share the service.")
    ] = None
    routing: Annotated[RoutingSpec | None, Field(description="How requests find replicas.")] = None
    drift_policy: Annotated[
        DriftPolicy,
        Field(
            description="Report: a replica or an object that differs from its revision is told in the status. "
            "Repair: it is also put right, a few at a time."
        ),
    ] = DriftPolicy.REPORT
    revision_history_limit: Annotated[
        int, Field(ge=0, le=100, description="Old revisions to keep beside those that run.")
    ] = 10
    suspend: Annotated[
        bool, Field(description="While true Paceline changes nothing of this service; what runs goes on.")
    ] = False
    pod: Annotated[PodOptions | None, Field(description="How the pods are placed and equipped.")] = None


def _devices_in_resources(pod: str, device: str) -> str:
    """CEL: whether the resources of `pod` name `device`."""
    return (
        f"has({pod}.resources) && ((has({pod}.resources.limits) && {device} in {pod}.resources.limits) || "
        f"(has({pod}.resources.requests) && {device} in {pod}.resources.requests))"
    )


SPEC_RULES = (
    rule(
        "!has(self.accelerator) || !has(self.pod) || "
        f"!({_devices_in_resources('self.pod', 'self.accelerator.resource')})",
        "devices are asked for in spec.accelerator only; remove the resource from spec.pod.resources",
        field_path=".pod.resources",
    ),
    rule(
        "!has(self.pools) || self.pools.all(p, !has(p.pod) || "
        "!(has(p.accelerator) ? [p.accelerator.resource] : has(self.accelerator) ? [self.accelerator.resource] : [])"
        f".exists(r, {_devices_in_resources('p.pod', 'r')}))",
        "devices are asked for in accelerator only; remove the resource from the pool's pod.resources",
        field_path=".pools",
    ),
    rule(
        "!has(self.pools) || self.pools.all(p, !has(p.shapes) || p.shapes.all(s, "
        "self.pools.filter(q, has(q.shapes) && s in q.shapes).size() == 1))",
        "each shape belongs to one pool: name it under shapes of one pool only",
        field_path=".pools",
    ),
    rule(
        "!has(self.scaling) || !has(self.scaling.scaleToZero) || !has(self.scaling.scaleToZero.after) || "
        "!has(self.pools) || self.pools.all(p, !has(p.scaling) || ((!has(p.scaling.mode) || p.scaling.mode == "
        "'Automatic') && has(p.scaling.maxReplicas) && (!has(p.scaling.minReplicas) || p.scaling.minReplicas == 1)))",
        "a service goes to zero as a whole: let every pool follow load down to one replica (maxReplicas, and "
        "minReplicas 1 or left out), or leave scaling.scaleToZero.after out",
        field_path=".pools",
    ),
    rule(
        "!has(self.scaling) || !has(self.scaling.mode) || self.scaling.mode != 'External' || "
        "!has(self.pools) || self.pools.size() == 0",
        "an HPA or KEDA can set one count only: with scaling.mode External leave the pools out, or make each one a "
        "service of its own",
        field_path=".scaling.mode",
    ),
    rule(
        "!has(self.pools) || self.pools.all(p, !has(p.scaling) || !has(p.scaling.mode) || "
        "p.scaling.mode != 'External')",
        "the count of a pool is in no scale subresource: write Automatic or Fixed as its scaling.mode",
        field_path=".pools",
    ),
    rule(
        "!has(self.routing) || !has(self.routing.overLong) || !has(self.routing.overLong.pool) || "
        "self.routing.overLong.pool == 'default' || "
        "(has(self.pools) && self.pools.exists(p, p.name == self.routing.overLong.pool))",
        "routing.overLong.pool names no pool of this service; write the name of an entry of spec.pools, or default",
        field_path=".routing.overLong.pool",
    ),
    rule(
        "!has(self.rollout) || !has(self.rollout.lastPools) || self.rollout.lastPools.all(n, n == 'default' || "
        "(has(self.pools) && self.pools.exists(p, p.name == n)))",
        "rollout.lastPools names a pool that this service has not; write names of entries of spec.pools, or default",
        field_path=".rollout",
    ),
)


class ObjectMeta(Model):
    """The part of Kubernetes metadata that Paceline reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class InferenceService(Model):
    """A model served by replicas of the Paceline runtime."""

    metadata: ObjectMeta
    spec: InferenceServiceSpec
    status: InferenceServiceStatus | None = None

    @classmethod
    def from_object(cls, obj: dict[str, Any]) -> Self:
        """Read an object from the API server. Unknown stored fields are passed over: a newer release may write them.

        Raises:
            pydantic.ValidationError: when a known field has a value this release cannot take.
        """
        return cls.model_validate_json(json.dumps(obj), extra="ignore")

    @property
    def served_name(self) -> str:
        """What clients send as `model`."""
        return self.spec.model.served_name or self.metadata.name
