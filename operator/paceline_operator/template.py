"""The pod template of a pool, before its hash is known, and with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline_crds.names import (
    CONFIG_FILE_PATH,
    CONFIG_MOUNT_PATH,
    CONTAINER_RUNTIME,
    ENV_POOL_HASH,
    LABEL_MANAGED_BY,
    LABEL_POOL,
    LABEL_POOL_HASH,
    LABEL_SERVICE,
    MANAGED_BY,
    REPLICA_PORT,
    REPLICA_PORT_NAME,
    derived_name,
)
from paceline_crds.pod_options import EnvVar, PodOptions
from paceline_crds.service import AcceleratorSpec

from .defaults import Defaults
from .sources import VOLUME_MODEL, ModelStorage

VOLUME_CONFIG = "paceline-config"
VOLUME_SCRATCH = "paceline-scratch"
SCRATCH_PATH = "/tmp"
NON_ROOT = 65532


def pod_template(
    *,
    service: str,
    pool: str,
    image: str,
    storage: ModelStorage,
    options: PodOptions,
    accelerator: AcceleratorSpec | None,
    defaults: Defaults,
    longest_request: float | None = None,
) -> dict[str, Any]:
    """The template as a revision records it. What depends on the hash itself is added by `with_hash`.

    Args:
        longest_request: seconds that one request may take; None where the spec does not say.

    Raises:
        ValueError: the pod options take a volume or a path that Paceline needs itself.
    """
    mounts, volumes = _storage(options, storage)
    container: dict[str, Any] = {
        "name": CONTAINER_RUNTIME,
        "image": image,
        "args": ["--config", CONFIG_FILE_PATH],
        "ports": [{"name": REPLICA_PORT_NAME, "containerPort": REPLICA_PORT, "protocol": "TCP"}],
        "env": _environment(options.env or [], storage.env),
        "volumeMounts": mounts,
        "startupProbe": _probe("/health/ready", period=1, failures=defaults.startup_failures),
        "readinessProbe": _probe("/health/ready", period=defaults.readiness_period, failures=3),
        "livenessProbe": _probe("/health/live", period=defaults.liveness_period, failures=3),
        # The last lines of the log tell why a replica died; so they reach the status of the service.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    if resources := _resources(options, accelerator):
        container["resources"] = resources
    if defaults.pre_stop_seconds:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": defaults.pre_stop_seconds}}}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        # Service links would set PACELINE_… variables in a namespace with a Service of such a name.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace(options, defaults, longest_request),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NON_ROOT,
            "runAsGroup": NON_ROOT,
            "seccompProfile": {"type": "RuntimeDefault"},
            # Volumes belong to root as they are made; the runtime does not run as root.
            **({"fsGroup": NON_ROOT, "fsGroupChangePolicy": "OnRootMismatch"} if storage.shared else {}),
        },
        "containers": [container],
        "volumes": volumes,
    }
    passed_on = {
        "nodeSelector": options.node_selector,
        "tolerations": options.tolerations,
        "affinity": options.affinity,
        "imagePullSecrets": options.image_pull_secrets,
        "priorityClassName": options.priority_class_name,
        "serviceAccountName": options.service_account_name,
    }
    spec |= {name: value for name, value in passed_on.items() if value}
    labels = {LABEL_SERVICE: derived_name(service), LABEL_POOL: pool, LABEL_MANAGED_BY: MANAGED_BY}
    if options.topology_spread_constraints is not None:
        spread = options.topology_spread_constraints
    else:
        spread = _spread(labels) if defaults.spread else []
    if spread:
        spec["topologySpreadConstraints"] = spread
    return {"metadata": {"labels": labels}, "spec": spec}


def start_up_seconds(template: Mapping[str, Any]) -> int:
    """For how long the start-up probe of a template lets a replica load its model."""
    probe = template["spec"]["containers"][0]["startupProbe"]
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def with_start_up(template: Mapping[str, Any], seconds: int) -> dict[str, Any]:
    """The template with a start-up probe that lets a replica load its model for so long."""
    spec = template["spec"]
    runtime = spec["containers"][0]
    probe = {**runtime["startupProbe"], "failureThreshold": seconds // int(runtime["startupProbe"]["periodSeconds"])}
    return {**template, "spec": {**spec, "containers": [{**runtime, "startupProbe": probe}, *spec["containers"][1:]]}}


def with_hash(template: Mapping[str, Any], pool_hash: str, config_map: str) -> dict[str, Any]:
    """The template as the Deployment has it: labelled with the hash, and with the ConfigMap of that hash."""
    spec = dict(template["spec"])
    containers = []
    for container in spec["containers"]:
        if container["name"] == CONTAINER_RUNTIME:
            env = [{"name": ENV_POOL_HASH, "value": pool_hash}, *container["env"]]
            container = {**container, "env": env}
        containers.append(container)
    spec["containers"] = containers
    spec["volumes"] = [{"name": VOLUME_CONFIG, "configMap": {"name": config_map}}, *spec["volumes"]]
    labels = {**template["metadata"]["labels"], LABEL_POOL_HASH: pool_hash}
    return {"metadata": {"labels": labels}, "spec": spec}


def _grace(options: PodOptions, defaults: Defaults, longest_request: float | None) -> int:
    if options.termination_grace_period_seconds is not None:
        return options.termination_grace_period_seconds
    # Never less than the default: a shorter limit would restart replicas to no end.
    longest = math.ceil(longest_request) + defaults.grace_margin if longest_request and defaults.grace_margin else 0
    return max(defaults.termination_grace_period_seconds, longest)


def _spread(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Over nodes and zones, each revision by itself, and never so strictly that a pod has to wait."""
    selector = {"matchLabels": {LABEL_SERVICE: labels[LABEL_SERVICE], LABEL_POOL: labels[LABEL_POOL]}}
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector,
            "matchLabelKeys": [LABEL_POOL_HASH],
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": REPLICA_PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _environment(given: list[EnvVar], for_model: list[dict[str, Any]]) -> list[dict[str, Any]]:
    env = [variable.model_dump(mode="json", exclude_none=True) for variable in given]
    # What the user gives goes before what we would set: a token from elsewhere, a home of the cache.
    taken = {variable["name"] for variable in env}
    env += [variable for variable in for_model if variable["name"] not in taken]
    if all(variable["name"] != "HOME" for variable in env):
        # Libraries keep caches at home; the root file system is read-only.
        env.insert(0, {"name": "HOME", "value": SCRATCH_PATH})
    return env


def _storage(options: PodOptions, model: ModelStorage) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volume mounts and volumes, the ConfigMap's volume not among the latter."""
    mounts = list(options.volume_mounts or ())
    volumes = list(options.volumes or ())
    taken = {str(volume.get("name")) for volume in volumes} & {VOLUME_CONFIG, VOLUME_SCRATCH, VOLUME_MODEL}
    if taken:
        raise ValueError(f"the volume name {taken.pop()} belongs to Paceline; give the volume in spec.pod another name")
    paths = {str(mount.get("mountPath", "")).rstrip("/") for mount in mounts}
    if CONFIG_MOUNT_PATH in paths:
        raise ValueError(f"{CONFIG_MOUNT_PATH} holds the runtime's config file; mount the volume in spec.pod elsewhere")
    for mount in model.mounts:
        if mount["mountPath"] in paths:
            raise ValueError(f"{mount['mountPath']} is where the model is; mount the volume in spec.pod elsewhere")
    ours = [{"name": VOLUME_CONFIG, "mountPath": CONFIG_MOUNT_PATH, "readOnly": True}]
    if SCRATCH_PATH not in paths:
        ours.append({"name": VOLUME_SCRATCH, "mountPath": SCRATCH_PATH})
        volumes.insert(0, {"name": VOLUME_SCRATCH, "emptyDir": {}})
    return ours + model.mounts + mounts, model.volumes + volumes


def _resources(options: PodOptions, accelerator: AcceleratorSpec | None) -> dict[str, Any]:
    given = options.resources
    requests: dict[str, int | str] = dict((given.requests if given else None) or {})
    limits: dict[str, int | str] = dict((given.limits if given else None) or {})
    if accelerator is not None and accelerator.count:
        # Extended resources want both, and equal.
        requests[accelerator.resource] = limits[accelerator.resource] = accelerator.count
    return {kind: amounts for kind, amounts in (("requests", requests), ("limits", limits)) if amounts}
