"""`InferenceRevision`: the full rendered configuration of every pool of a service, which never changes."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import Field

from .base import Model
from .fields import OpenObject, rule
from .runtime_config import RuntimeConfig
from .service import ObjectMeta

HASH_VERSION = 3
"""Raised when the same input would hash to something else, so that old hashes are recognised as such.

1: the first. 2: pods are spread over nodes and zones, go on serving for a moment when they are asked to end, and are
given as long as the longest request. 3: sizes that the spec leaves out come from the ledger, where model and
accelerator are known.
"""


class RevisionPool(Model):
    """One pool as rendered: all a Deployment and a ConfigMap are made of."""

    name: Annotated[str, Field(description="Name of the pool.")]
    hash: Annotated[
        str,
        Field(description="Hash over image, config and podTemplate; Deployment and ConfigMap carry it in their names."),
    ]
    image: Annotated[str, Field(description="Container image of the runtime.")]
    image_origin: Annotated[str, Field(description="Where the image came from: spec, pool or operator.")]
    config: Annotated[RuntimeConfig, Field(description="The runtime's config file, each value with its origin.")]
    pod_template: Annotated[OpenObject, Field(description="The pod template of the Deployment.")]
    ledger: Annotated[
        str | None,
        Field(description="The sum behind values of origin ledger, or why there are none. In no hash."),
    ] = None


class InferenceRevisionSpec(Model):
    """Immutable."""

    service: Annotated[str, Field(description="Name of the InferenceService.")]
    hash_version: Annotated[int, Field(description="Version of the hash function.")] = HASH_VERSION
    pools: Annotated[
        list[RevisionPool],
        Field(
            description="Every pool of the service.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]


REVISION_RULES = (
    rule(
        "self == oldSelf",
        "the spec of an InferenceRevision never changes; edit the InferenceService, which makes a new one",
    ),
)


class StartUp(Model):
    """How long replicas took from a place on a node until they were ready, as far as it was seen."""

    fastest_seconds: Annotated[int, Field(ge=0, description="The fastest start.")]
    slowest_seconds: Annotated[int, Field(ge=0, description="The slowest start without a restart in between.")]


class Percentiles(Model):
    """Of the seconds that something took, as Go durations of two digits or more."""

    p50: Annotated[str, Field(description="Half took no longer.")]
    p90: Annotated[str, Field(description="Nine of ten took no longer.")]
    p99: Annotated[str, Field(description="99 of 100 took no longer.")]


class Baseline(Model):
    """What the routers measured of a revision's requests in one stretch of time while it served."""

    since: Annotated[str, Field(description="When the stretch begins (RFC 3339).")]
    until: Annotated[str, Field(description="When it ends (RFC 3339).")]
    requests: Annotated[int, Field(ge=1, description="Requests that ended in it.")]
    failed: Annotated[int, Field(ge=0, description="Of them, those that ended with 5xx or a broken stream.")]
    prompt_tokens: Annotated[int, Field(ge=0, description="Tokens of their prompts.")]
    output_tokens: Annotated[int, Field(ge=0, description="Tokens of their answers.")]
    ttft: Annotated[Percentiles | None, Field(description="Time to the first token; absent: none was timed.")] = None
    tpot: Annotated[Percentiles | None, Field(description="Time per further token; absent: none was timed.")] = None


class CanaryAnswer(Model):
    """What every replica of a pool says to the fixed question, as hashes."""

    prompt: Annotated[str, Field(description="Of the question's tokens.")]
    answer: Annotated[str, Field(description="Of the answer's tokens.")]
    text: Annotated[str, Field(description="Of the answer's text.")]


class RevisionPoolStatus(Model):
    """What was measured of one pool."""

    name: Annotated[str, Field(description="Name of the pool.")]
    hash: Annotated[str, Field(description="Its hash.")]
    start_up: Annotated[StartUp | None, Field(description="How long its replicas took to start.")] = None
    baseline: Annotated[
        Baseline | None, Field(description="Its requests while the revision served; absent: none were measured.")
    ] = None
    canary: Annotated[
        CanaryAnswer | None, Field(description="The answer to the fixed question that its replicas agreed upon.")
    ] = None


class GateStatus(Model):
    """What one gate says of one pool and shape of requests."""

    place: Annotated[str, Field(description="Pool and shape, as pool/shape; or pool; or service.")]
    signal: Annotated[str, Field(description="What was looked at.")]
    outcome: Annotated[str, Field(description="Better, NoWorse, Worse or NotKnown.")]
    reason: Annotated[str, Field(description="Why, one word for programs.")]
    message: Annotated[str, Field(description="The same as a sentence, with numbers and interval.")]


class ProspectStatus(Model):
    """What one gate can say of one place by the end of a step, as computed before it."""

    place: Annotated[str, Field(description="Pool and shape, as pool/shape; or pool; or service.")]
    signal: Annotated[str, Field(description="What is looked at.")]
    seconds: Annotated[
        int | None,
        Field(description="Until an unchanged revision is called no worse; absent: it cannot be, or is not known."),
    ] = None
    detectable: Annotated[
        str | None,
        Field(
            description="The smallest regression that is called worse by the end, in percent or points as the gate's "
            "margin is; absent: none is, or that is not known."
        ),
    ] = None
    message: Annotated[str, Field(description="The same as a sentence.")]


class VerdictStatus(Model):
    """Whether the revision is worse than the one before it, as far as its last step shows."""

    verdict: Annotated[str, Field(description="Pass, Fail or NotKnown.")]
    message: Annotated[str, Field(description="A sentence that names what decided.")]
    base: Annotated[str, Field(description="The revision it was held against.")]
    generation: Annotated[int, Field(description="Of the traffic that was judged.")]
    step: Annotated[int, Field(description="Which of the steps, from 1; 0 is the shadow step.")]
    weight: Annotated[int, Field(description="Its whole percent of the requests.")]
    since: Annotated[str, Field(description="Begin of the evidence (RFC 3339).")]
    at: Annotated[str, Field(description="When it was judged (RFC 3339).")]
    gates: Annotated[list[GateStatus] | None, Field(description="By gate and place, at most 64.")] = None
    prospects: Annotated[list[ProspectStatus] | None, Field(description="What the step can find out, at most 64.")] = (
        None
    )


class RolloutEvent(Model):
    """A decision of a rollout."""

    at: Annotated[str, Field(description="When (RFC 3339).")]
    phase: Annotated[str, Field(description="The phase it led to.")]
    weight: Annotated[int, Field(description="Whole percent of the requests for this revision then.")]
    by: Annotated[str, Field(description="Who: paceline, or who gave the order.")]
    reason: Annotated[str, Field(description="One word for programs.")]
    message: Annotated[str, Field(description="A sentence, with numbers.")] = ""


class RevisionRollout(Model):
    """How its rollout by steps went."""

    verdict: Annotated[VerdictStatus | None, Field(description="The last verdict.")] = None
    timeline: Annotated[list[RolloutEvent] | None, Field(description="Its decisions, the last forty.")] = None


class InferenceRevisionStatus(Model):
    """What was measured while it ran. Nothing is decided by it that could not be decided without."""

    pools: Annotated[
        list[RevisionPoolStatus] | None,
        Field(
            description="Pools of which something was measured.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    rollout: Annotated[RevisionRollout | None, Field(description="How its rollout by steps went.")] = None


class InferenceRevision(Model):
    """A configuration of a service that was asked for at some time."""

    metadata: ObjectMeta
    spec: InferenceRevisionSpec

    @classmethod
    def from_object(cls, obj: dict[str, Any]) -> Self:
        """Read an object from the API server; unknown stored fields are passed over."""
        return cls.model_validate_json(json.dumps(obj), extra="ignore")
