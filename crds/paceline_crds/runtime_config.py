"""The runtime's config file: every effective parameter of one replica with the place each value came from.

The operator writes it into the ConfigMap of a pool hash; `paceline serve` makes the same from flags. A replica reports
it back at `GET /v1/paceline/config`, which is what drift is measured against.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from .base import Model
from .quantities import SIZE_PATTERN, parse_size


class Origin(enum.StrEnum):
    """Where a value came from."""

    DEFAULT = "default"
    LEDGER = "ledger"
    SPEC = "spec"
    POOL = "pool"
    OPERATOR = "operator"
    FLAG = "flag"
    """Given on the command line of `paceline serve`."""
    MODEL = "model"
    """Read from the model's own files by the runtime."""
    ENVIRONMENT = "environment"


class ModelIdentity(Model):
    """Which weights are served, and under which name."""

    source: str = Field(description="package://DISTRIBUTION, file:///PATH or hf://ORG/NAME@REVISION")
    served_name: str = Field(
        min_length=1, description="What clients send as `model`; free text, compared byte for byte."
    )


class WeightType(enum.StrEnum):
    """How weights are held; sums are always made in float32 on a CPU."""

    AUTO = "Auto"
    """bfloat16 on a GPU, float32 on a CPU."""
    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"


class KVQuantization(enum.StrEnum):
    """How keys and values are kept in the KV cache; in 8 bits each head of a token has a float32 scale of its own."""

    NONE = "None"
    """In the type of the activations: bfloat16 on a GPU, float32 on a CPU."""
    FP8 = "FP8"
    """e4m3."""
    INT8 = "INT8"


class Isolation(enum.StrEnum):
    """Who may find whose cached prompts."""

    NONE = "None"
    PER_TENANT = "PerTenant"
    """A tenant finds its own only, so that no answer's speed tells what others sent."""


class QueuePolicy(enum.StrEnum):
    """The order in which requests are taken from the queue."""

    FCFS = "FCFS"
    PRIORITY = "Priority"
    """By class, first come first served within one; a class that waits for long is let through."""
    DEADLINE = "Deadline"
    """Least slack first: what remains until the deadline, less the work ahead."""


class PressurePolicy(enum.StrEnum):
    """What changes while the KV cache is nearly full."""

    NONE = "None"
    SHORTEST_REMAINING = "ShortestRemaining"
    """The request with the least left to do is taken first."""


class RuntimeParameters(Model):
    """Engine parameters, all resolved. Token counts are tokens, sizes Kubernetes quantities in bytes."""

    max_model_len: Annotated[
        int, Field(ge=16, le=10_000_000, description="Longest prompt plus output of one request, in tokens.")
    ] = 2048
    max_num_seqs: Annotated[int, Field(ge=1, le=4096, description="Most requests in one batch.")] = 32
    max_batched_tokens: Annotated[
        int, Field(ge=16, le=1_000_000, description="Token budget of one engine step: decodes first, prefill the rest.")
    ] = 2048
    prefill_chunk_tokens: Annotated[
        int, Field(ge=16, le=1_000_000, description="Most prompt tokens of one request in one step.")
    ] = 512
    block_size: Annotated[int, Field(ge=8, le=128, description="Tokens in one block of the KV cache.")] = 16
    kv_cache_memory: Annotated[str, Field(pattern=SIZE_PATTERN, description="Size of the KV cache in bytes.")] = "1Gi"
    prefix_caching: Annotated[bool, Field(description="Whether KV blocks of earlier requests are reused.")] = True
    prefix_isolation: Annotated[
        Isolation, Field(description="Whether a tenant may reuse KV blocks that another one's prompts made.")
    ] = Isolation.PER_TENANT
    eviction_watermark_percent: Annotated[
        int,
        Field(ge=50, le=100, description="Share of the KV cache in use or cached from which cold blocks are let go."),
    ] = 75
    kv_host_memory: Annotated[
        str, Field(pattern=SIZE_PATTERN, description="Host memory for KV blocks that were let go; 0 keeps none.")
    ] = "0"
    kv_disk_memory: Annotated[
        str, Field(pattern=SIZE_PATTERN, description="Disk for KV blocks that left host memory; 0 keeps none.")
    ] = "0"
    kv_cache_quantization: Annotated[
        KVQuantization, Field(description="How keys and values are kept in the KV cache.")
    ] = KVQuantization.NONE
    dtype: Annotated[WeightType, Field(description="Type in which weights are held.")] = WeightType.AUTO
    prefill_min_chunk_tokens: Annotated[
        int,
        Field(ge=1, le=4096, description="A piece of a prompt smaller than this waits for a step with more room."),
    ] = 32
    max_step_share_percent: Annotated[
        int,
        Field(ge=1, le=100, description="Most of a step's tokens that one request takes while others want them."),
    ] = 50
    max_queued_requests: Annotated[
        int, Field(ge=0, le=1_000_000, description="Requests that may wait; 0 is eight batches, at least 256.")
    ] = 0
    tenant_max_seqs: Annotated[
        int, Field(ge=0, le=4096, description="Most requests of one tenant in a batch; 0 sets no bound.")
    ] = 0
    scheduling_policy: Annotated[QueuePolicy, Field(description="The order of the queue.")] = QueuePolicy.FCFS
    scheduling_fair_share: Annotated[
        bool, Field(description="Whether tenants share the queue by the tokens they were served.")
    ] = False
    scheduling_under_pressure: Annotated[
        PressurePolicy, Field(description="What changes while the KV cache is nearly full.")
    ] = PressurePolicy.NONE

    @property
    def kv_cache_bytes(self) -> int:
        """`kv_cache_memory` in bytes."""
        return parse_size(self.kv_cache_memory)

    @property
    def kv_host_bytes(self) -> int:
        """`kv_host_memory` in bytes."""
        return parse_size(self.kv_host_memory)

    @property
    def kv_disk_bytes(self) -> int:
        """`kv_disk_memory` in bytes."""
        return parse_size(self.kv_disk_memory)

    @model_validator(mode="after")
    def _consistent(self) -> RuntimeParameters:
        if self.prefill_chunk_tokens > self.max_batched_tokens:
            raise ValueError(
                f"prefillChunkTokens {self.prefill_chunk_tokens} is more than maxBatchedTokens "
                f"{self.max_batched_tokens}; a chunk has to fit in a step: lower the first or raise the second"
            )
        if self.max_num_seqs > self.max_batched_tokens:
            raise ValueError(
                f"maxNumSeqs {self.max_num_seqs} is more than maxBatchedTokens {self.max_batched_tokens}; each running "
                "sequence needs one token of a step: lower the first or raise the second"
            )
        if self.prefill_min_chunk_tokens > self.prefill_chunk_tokens:
            raise ValueError(
                f"prefillMinChunkTokens {self.prefill_min_chunk_tokens} is more than prefillChunkTokens "
                f"{self.prefill_chunk_tokens}; no piece could ever be both: lower the first or raise the second"
            )
        layers = [
            name
            for name, on in (
                (f"schedulingPolicy {self.scheduling_policy}", self.scheduling_policy is not QueuePolicy.FCFS),
                ("schedulingFairShare", self.scheduling_fair_share),
                (
                    f"schedulingUnderPressure {self.scheduling_under_pressure}",
                    self.scheduling_under_pressure is not PressurePolicy.NONE,
                ),
            )
            if on
        ]
        if len(layers) > 2:
            raise ValueError(
                f"{', '.join(layers)}: three rules about the same queue cannot be explained to anyone who waits in it; "
                "keep at most two of them"
            )
        return self


ADDED_LATER: Final = frozenset(RuntimeParameters.model_fields) - {
    "max_model_len",
    "max_num_seqs",
    "max_batched_tokens",
    "prefill_chunk_tokens",
    "block_size",
    "kv_cache_memory",
    "prefix_caching",
}
"""Parameters that the first format did not have. Their defaults say how an engine without them behaves, so they are
never changed, and a pool's hash leaves them out where they are at their defaults: a release that adds one restarts
nothing."""

NOT_IN_OLDER_CRDS: Final = frozenset({"kv_cache_quantization"})
"""Of these, the ones that the CRD of the release before lacks. A record leaves them out while nobody asks for another
value, so that over CRDs that were not brought up edits go on; read back they are at their defaults all the same."""


def _alias(name: str) -> str:
    return RuntimeParameters.model_fields[name].alias or name


class RuntimeConfig(Model):
    """The file at `/etc/paceline/config.json`.

    `origins` has one entry for each parameter of `parameters`, by its camelCase name. A file of an older release does
    not know the newer parameters: these then have the value that the older engine behaved by, which is their default.
    """

    model: Annotated[ModelIdentity, Field(description="Weights and served name.")]
    parameters: Annotated[RuntimeParameters, Field(description="Every engine parameter, resolved.")]
    origins: Annotated[dict[str, Origin], Field(description="Where each parameter came from.")]

    @field_validator("origins", mode="after")
    @classmethod
    def _newer_parameters_are_defaults(cls, origins: dict[str, Origin]) -> dict[str, Origin]:
        return {**{_alias(name): Origin.DEFAULT for name in ADDED_LATER}, **origins}

    @model_validator(mode="after")
    def _every_value_has_an_origin(self) -> RuntimeConfig:
        names = {field.alias or name for name, field in RuntimeParameters.model_fields.items()}
        if set(self.origins) != names:
            wrong = sorted(names ^ set(self.origins))
            raise ValueError(
                f"origins must name exactly the parameters; these are missing or unknown: {', '.join(wrong)}"
            )
        return self
