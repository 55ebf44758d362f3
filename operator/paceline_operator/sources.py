"""What a pod needs so that the runtime finds its model. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from paceline_crds.service import ModelSpec

VOLUME_MODEL = "paceline-model"
MODEL_PATH = "/var/lib/paceline/model"
CACHE_PATH = "/var/lib/paceline/hub"
TOKEN_KEY = "token"


@dataclass(frozen=True, slots=True)
class ModelStorage:
    """Pieces of a pod template.

    Attributes:
        source: as the runtime is told it.
        shared: the runtime writes to a volume of the user's.
    """

    source: str
    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    env: list[dict[str, Any]] = field(default_factory=list)
    shared: bool = False


def storage_of(model: ModelSpec, volumes: Collection[str]) -> ModelStorage:
    """Where a model comes from, for one pool.

    Args:
        volumes: names of the user's volumes.

    Raises:
        ValueError: the volume for the cache is none of these.
    """
    scheme, _, rest = model.source.partition("://")
    match scheme:
        case "pvc":
            claim, _, path = rest.partition("/")
            # Read only, so that several nodes may attach what allows it.
            return _mounted({"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}, path)
        case "oci":
            reference, _, path = rest.partition("#")
            return _mounted({"image": {"reference": reference, "pullPolicy": "IfNotPresent"}}, path)
        case "hf":
            return _fetched(model, volumes)
        case _:
            return ModelStorage(model.source)


def _mounted(volume: dict[str, Any], path: str) -> ModelStorage:
    return ModelStorage(
        f"file://{MODEL_PATH}/{quote(path.strip('/'))}".rstrip("/"),
        [{"name": VOLUME_MODEL, **volume}],
        [{"name": VOLUME_MODEL, "mountPath": MODEL_PATH, "readOnly": True}],
    )


def _fetched(model: ModelSpec, volumes: Collection[str]) -> ModelStorage:
    named = model.cache_volume_name
    if named is not None and named not in volumes:
        raise ValueError(
            f"spec.model.cacheVolumeName {named} is no volume of the pod; add a volume of this name to spec.pod.volumes"
        )
    env: list[dict[str, Any]] = [{"name": "HF_HOME", "value": CACHE_PATH}]
    if model.token_secret_name is not None:
        secret = {"name": model.token_secret_name, "key": TOKEN_KEY}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    return ModelStorage(
        model.source,
        [] if named else [{"name": VOLUME_MODEL, "emptyDir": {}}],
        [{"name": named or VOLUME_MODEL, "mountPath": CACHE_PATH}],
        env,
        shared=named is not None,
    )
