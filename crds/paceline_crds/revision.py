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


class RevisionPoolStatus(Model):
    """What was measured of one pool."""

    name: Annotated[str, Field(description="Name of the pool.")]
    hash: Annotated[str, Field(description="Its hash.")]
    start_up: Annotated[StartUp | None, Field(description="How long its replicas took to start.")] = None


class InferenceRevisionStatus(Model):
    """What was measured while it ran. Nothing is decided by it that could not be decided without."""

    pools: Annotated[
        list[RevisionPoolStatus] | None,
        Field(
            description="Pools of which something was measured.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None


class InferenceRevision(Model):
    """A configuration of a service that was asked for at some time."""

    metadata: ObjectMeta
    spec: InferenceRevisionSpec

    @classmethod
    def from_object(cls, obj: dict[str, Any]) -> Self:
        """Read an object from the API server; unknown stored fields are passed over."""
        return cls.model_validate_json(json.dumps(obj), extra="ignore")
