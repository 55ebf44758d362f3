"""What Paceline writes into the status of an `InferenceService`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import Model
from .conditions import Condition
from .routing import Shape
from .tuning import TuningStatus


class PoolStatus(Model):
    """Where one pool stands."""

    name: Annotated[str, Field(description="Name of the pool.")]
    hash: Annotated[str, Field(description="Hash of the configuration asked for.")]
    desired: Annotated[int, Field(description="Replicas asked for.")]
    ready: Annotated[int, Field(description="Replicas of this hash that take traffic.")]
    draining: Annotated[int, Field(description="Replicas of other hashes that still finish requests.")] = 0


class TrafficEntry(Model):
    """A share of the traffic."""

    pool: Annotated[str, Field(description="Name of the pool.")]
    revision: Annotated[
        str, Field(description="Name of the InferenceRevision whose replicas of this pool get the share.")
    ]
    weight: Annotated[int, Field(ge=0, le=100, description="Whole percent of the pool's requests.")]


class ShadowTraffic(Model):
    """Copies of requests for a revision whose answers no client gets. Bounds count for each router process."""

    revision: Annotated[str, Field(description="Name of the InferenceRevision whose replicas get the copies.")]
    percent: Annotated[int, Field(ge=1, le=100, description="Whole percent of requests that are copied.")]
    shapes: Annotated[list[Shape] | None, Field(description="Shapes that are copied; absent: all.")] = None
    max_concurrent: Annotated[int, Field(ge=1, description="Copies at once; others wait shortly or are dropped.")] = 8
    max_prompt_tokens: Annotated[int, Field(ge=1, description="Longer prompts (estimated) are not copied.")] = 8192
    max_tokens: Annotated[int, Field(ge=1, description="Longer answers (allowed or expected) are not copied.")] = 1024
    opt_out_tenants: Annotated[list[str] | None, Field(description="Tenants of which nothing is copied.")] = None
    recorder: Annotated[
        str | None, Field(description="Base URL of the recorder that gets both answers; absent: nobody does.")
    ] = None


class TrafficStatus(Model):
    """Where routers send requests."""

    generation: Annotated[
        int, Field(description="Grows with each change of the entries or of shadow; routers acknowledge it.")
    ]
    entries: Annotated[list[TrafficEntry], Field(description="Shares by pool and revision.")]
    shadow: Annotated[
        ShadowTraffic | None, Field(description="Which requests are copied, and for whom; absent: none.")
    ] = None


class DriftItem(Model):
    """One value that is not as recorded."""

    pod: Annotated[str, Field(description="The pod, or the object in the form Kind/name where it is none.")]
    field: Annotated[str, Field(description="What differs, for example runtime.maxNumSeqs.")]
    desired: Annotated[str, Field(description="As the revision has it.")]
    actual: Annotated[str, Field(description="As it is.")]


class DriftStatus(Model):
    """How far what runs differs from what is recorded."""

    count: Annotated[int, Field(description="Values that differ, over all pods and objects.")]
    items: Annotated[
        list[DriftItem] | None, Field(max_length=10, description="The first ten; `paceline drift` shows all.")
    ] = None


class UpgradeStatus(Model):
    """What a newer operator would render, and `paceline upgrade` takes over."""

    image: Annotated[str, Field(description="Image of the runtime that the operator brings.")]
    hash_version: Annotated[int, Field(description="Version of the operator's defaults.")]


class ScalingStatus(Model):
    """How many replicas a pool should have, and what made it so many."""

    pool: Annotated[str, Field(description="Name of the pool.")]
    desired: Annotated[int, Field(description="Replicas that the load asks for, within the bounds.")]
    reason: Annotated[str, Field(description="One word for programs.")]
    message: Annotated[str, Field(description="A sentence for people, of the moment when it was decided so.")] = ""
    since: Annotated[str, Field(description="When desired or reason last changed (RFC 3339).")]
    sources: Annotated[list[str] | None, Field(description="Who was asked: replicas, routers, prometheus.")] = None
    inputs: Annotated[
        dict[str, str] | None, Field(description="The numbers of that moment; one that was not known is absent.")
    ] = None


class RolloutStatus(Model):
    """Where a rollout by steps is. Numbers of the gates are in the status of its InferenceRevision."""

    revision: Annotated[str, Field(description="The revision that is rolled out, or was refused or rolled back.")]
    phase: Annotated[
        str,
        Field(
            description="Blocked, Preparing, Shadow, Moving, Judging, Held, Finishing or RollingBack; Idle where the "
            "revision was rolled back and the spec still asks for it."
        ),
    ]
    step: Annotated[int | None, Field(description="Which of the steps, from 1; 0 is the shadow step.")] = None
    steps: Annotated[int | None, Field(description="How many steps there are.")] = None
    weight: Annotated[int, Field(description="Whole percent of the requests that the revision is to get.")] = 0
    since: Annotated[str | None, Field(description="When the phase began (RFC 3339).")] = None
    verdict: Annotated[
        str | None, Field(description="Pass, Fail or NotKnown, of this step; absent where nothing is judged.")
    ] = None
    prospect: Annotated[
        str | None,
        Field(description="What the step will hardly find out in its time, or else when it will know all of it."),
    ] = None
    waiting_pools: Annotated[
        list[str] | None,
        Field(description="Pools of rollout.lastPools: a further rollout brings them what all others run then."),
    ] = None
    reason: Annotated[str, Field(description="Why it is where it is, one word for programs.")]
    message: Annotated[str, Field(description="The same as a sentence, with the numbers of that moment.")] = ""


class AddressStatus(Model):
    """Where clients reach the service."""

    url: Annotated[str, Field(description="Base URL for OpenAI clients.")]


class InferenceServiceStatus(Model):
    """What Paceline saw; it can be rebuilt from the cluster at any moment."""

    observed_generation: Annotated[int | None, Field(description="Generation of the spec this status speaks of.")] = (
        None
    )
    conditions: Annotated[
        list[Condition] | None,
        Field(
            description="Ready, TrafficReady, RevisionReady, Progressing, ConfigInSync.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = None
    replicas: Annotated[int | None, Field(description="Pods of all pools that exist.")] = None
    ready_replicas: Annotated[int | None, Field(description="Pods of all pools that are ready.")] = None
    selector: Annotated[str | None, Field(description="Label selector of the pods, for the scale subresource.")] = None
    address: Annotated[AddressStatus | None, Field(description="Where clients reach the service.")] = None
    current_revision: Annotated[str | None, Field(description="Revision that serves.")] = None
    updated_revision: Annotated[str | None, Field(description="Revision of the spec.")] = None
    pools: Annotated[
        list[PoolStatus] | None,
        Field(
            description="Each pool's replicas.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    traffic: Annotated[TrafficStatus | None, Field(description="Where routers send requests.")] = None
    rollout: Annotated[RolloutStatus | None, Field(description="The rollout by steps; absent while there is none.")] = (
        None
    )
    scaling: Annotated[
        list[ScalingStatus] | None,
        Field(
            description="The pools whose count follows load.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pool"]},
        ),
    ] = None
    tuning: Annotated[
        list[TuningStatus] | None,
        Field(
            description="The pools whose knobs follow load.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pool"]},
        ),
    ] = None
    upgrade: Annotated[
        UpgradeStatus | None, Field(description="Newer defaults or a newer image, absent while there are none.")
    ] = None
    drift: Annotated[DriftStatus | None, Field(description="What runs otherwise than recorded.")] = None
