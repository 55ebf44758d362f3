"""Manifests of the objects that the operator owns: exactly the fields it claims, for server-side apply. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_crds.names import (
    ANNOTATION_ORDER_CAUSE,
    ANNOTATION_POOLS,
    ANNOTATION_ROLLOUT,
    API_VERSION,
    CONFIG_FILE_NAME,
    LABEL_MANAGED_BY,
    LABEL_POOL,
    LABEL_POOL_HASH,
    LABEL_SERVICE,
    MANAGED_BY,
    derived_name,
)
from paceline_crds.revision import InferenceRevisionSpec, RevisionPool
from paceline_crds.runtime_config import NOT_IN_OLDER_CRDS, Origin, RuntimeParameters
from paceline_kube import JsonObject

from .hashing import short_hash
from .observed import Observed, Traffic
from .render import Desired
from .template import start_up_seconds, with_hash

PROGRESS_MARGIN_SECONDS = 300
"""Beyond what the start-up probe allows a model to load."""


def owner_reference(observed: Observed) -> dict[str, Any]:
    """The service as controller. It owns every child itself, so that a revision may go while its pools go on.

    `blockOwnerDeletion` is off: a child never holds up the deletion of its service.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceService",
        "name": observed.name,
        "uid": observed.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def revision(observed: Observed, desired: Desired, annotations: Mapping[str, str] | None = None) -> JsonObject:
    """The InferenceRevision of what was rendered. `annotations` say who asked for it, and why."""
    pools = ", ".join(f"{pool.name} {pool.hash}" for pool in desired.pools)
    spec = InferenceRevisionSpec(service=observed.name, hash_version=desired.hash_version, pools=list(desired.pools))
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceRevision",
        "metadata": {
            "name": desired.revision,
            "namespace": observed.namespace,
            "labels": _service_labels(observed),
            "ownerReferences": [owner_reference(observed)],
            "annotations": {ANNOTATION_POOLS: pools, **(annotations or {})},
        },
        "spec": _as_recorded(spec),
    }


def _as_recorded(spec: InferenceRevisionSpec) -> JsonObject:
    recorded: JsonObject = spec.model_dump(mode="json", exclude_none=True)
    for pool in recorded["pools"]:
        parameters, origins = pool["config"]["parameters"], pool["config"]["origins"]
        for name in NOT_IN_OLDER_CRDS:
            alias = RuntimeParameters.model_fields[name].alias or name
            if origins[alias] == Origin.DEFAULT:
                del parameters[alias], origins[alias]
    return recorded


def config_map(observed: Observed, name: str, pool: RevisionPool) -> JsonObject:
    """The immutable ConfigMap with the runtime's config file."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(observed, name, pool),
        "immutable": True,
        "data": {CONFIG_FILE_NAME: pool.config.model_dump_json(indent=2) + "\n"},
    }


def deployment(observed: Observed, name: str, pool: RevisionPool, replicas: int) -> JsonObject:
    """The Deployment of a pool hash. Its template and selector never change: another template is another hash."""
    labels = pool_labels(observed.name, pool.name, pool.hash)
    selector = {key: labels[key] for key in (LABEL_SERVICE, LABEL_POOL, LABEL_POOL_HASH)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(observed, name, pool),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": start_up_seconds(pool.pod_template) + PROGRESS_MARGIN_SECONDS,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": selector},
            "template": with_hash(pool.pod_template, pool.hash, name),
        },
    }


def budget_name(service: str, pool: str) -> str:
    """Name of the PodDisruptionBudget of a pool. The hash tells `a-b` and `c` from `a` and `b-c`."""
    return derived_name(service, pool, short_hash([service, pool]))


def budget(observed: Observed, name: str, pool: str) -> JsonObject:
    """The PodDisruptionBudget of a pool, over all its revisions.

    A tenth may go at a time, and always one: a share is rounded up. So a node can be drained under a fleet of one, and
    replicas that are not ready hold up nobody.
    """
    labels = {LABEL_SERVICE: derived_name(observed.name), LABEL_POOL: pool}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": name,
            "namespace": observed.namespace,
            "labels": {**labels, LABEL_MANAGED_BY: MANAGED_BY},
            "ownerReferences": [owner_reference(observed)],
        },
        "spec": {
            "maxUnavailable": "10%",
            "selector": {"matchLabels": labels},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def traffic_patch(traffic: Traffic, resource_version: str, cause: str | None = None) -> JsonObject:
    """Merge patch that records the traffic, only over the state it was decided on.

    Args:
        cause: of the order that moves it; None where no order does, or it states none: then an earlier one goes.
    """
    return {
        "metadata": {
            "resourceVersion": resource_version,
            "annotations": {ANNOTATION_ROLLOUT: traffic.to_json(), ANNOTATION_ORDER_CAUSE: cause},
        }
    }


def rollout_patch(traffic: Traffic, resource_version: str) -> JsonObject:
    """Merge patch that records where a rollout is, only over the state it was decided on."""
    return {"metadata": {"resourceVersion": resource_version, "annotations": {ANNOTATION_ROLLOUT: traffic.to_json()}}}


def pool_labels(service: str, pool: str, pool_hash: str) -> dict[str, str]:
    """Labels of the children of a pool hash."""
    return {
        LABEL_SERVICE: derived_name(service),
        LABEL_POOL: pool,
        LABEL_POOL_HASH: pool_hash,
        LABEL_MANAGED_BY: MANAGED_BY,
    }


def _metadata(observed: Observed, name: str, pool: RevisionPool) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": observed.namespace,
        "labels": pool_labels(observed.name, pool.name, pool.hash),
        "ownerReferences": [owner_reference(observed)],
    }


def _service_labels(observed: Observed) -> dict[str, str]:
    return {LABEL_SERVICE: derived_name(observed.name), LABEL_MANAGED_BY: MANAGED_BY}
