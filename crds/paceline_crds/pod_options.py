"""How the pods of the runtime are placed and equipped."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import Model
from .fields import OpenObject, Quantity, rule, text


class ResourcesSpec(Model):
    """Compute resources of the runtime container, as in a pod."""

    requests: Annotated[
        dict[str, Quantity] | None,
        Field(max_length=16, description="Amounts the scheduler sets aside, e.g. cpu: 2, memory: 4Gi."),
    ] = None
    limits: Annotated[
        dict[str, Quantity] | None,
        Field(max_length=16, description="Amounts the container may not pass, e.g. memory: 8Gi."),
    ] = None


class EnvVar(Model):
    """One environment variable of the runtime container."""

    name: Annotated[
        str,
        text(
            "Name of the variable.",
            rule(
                "!self.startsWith('PACELINE_')",
                "variables that begin with PACELINE_ belong to Paceline; set the field under spec.runtime instead",
            ),
        ),
    ]
    value: Annotated[str | None, Field(max_length=32768, description="Its value.")] = None
    value_from: Annotated[
        OpenObject | None,
        Field(description="A source for the value, as in a pod: configMapKeyRef, secretKeyRef, fieldRef."),
    ] = None


class PodOptions(Model):
    """How the pods of the runtime are placed and equipped. Pieces of the Pod API keep their Kubernetes names."""

    node_selector: Annotated[dict[str, str] | None, Field(max_length=32, description="Labels a node must have.")] = None
    tolerations: Annotated[
        list[OpenObject] | None, Field(max_length=32, description="Taints the pods put up with.")
    ] = None
    topology_spread_constraints: Annotated[
        list[OpenObject] | None,
        Field(
            max_length=8,
            description="How the pods of a pool are spread. Default: over nodes and zones as far as they go; an empty "
            "list leaves it to the scheduler.",
        ),
    ] = None
    affinity: Annotated[OpenObject | None, Field(description="Affinity rules of the pods.")] = None
    resources: Annotated[ResourcesSpec | None, Field(description="CPU and memory of the runtime container.")] = None
    env: Annotated[
        list[EnvVar] | None,
        Field(
            max_length=100,
            description="Additional environment of the runtime container.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    volumes: Annotated[
        list[OpenObject] | None,
        Field(max_length=32, description="Additional volumes, for example with model files."),
    ] = None
    volume_mounts: Annotated[
        list[OpenObject] | None,
        Field(max_length=32, description="Where the runtime container sees these volumes."),
    ] = None
    image_pull_secrets: Annotated[
        list[OpenObject] | None, Field(max_length=16, description="Secrets for pulling the runtime image.")
    ] = None
    priority_class_name: Annotated[str | None, text("Priority class of the pods.")] = None
    service_account_name: Annotated[str | None, text("Service account of the pods. Default: the namespace's own.")] = (
        None
    )
    termination_grace_period_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=86400,
            description="How long a replica may finish running requests when it is stopped. Default 630, or 30 more "
            "than spec.routing.maxRequestDuration where that is longer.",
        ),
    ] = None
