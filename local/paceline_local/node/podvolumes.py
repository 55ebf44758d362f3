"""The volumes of one pod on this machine: made before its containers start, refreshed while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline_kube import NotFound, Resource
from paceline_local.node.config import NodeContext
from paceline_local.node.env import Facts
from paceline_local.node.errors import VolumeError
from paceline_local.node.volumes import (
    CLAIM,
    CONTENT,
    claimed_path,
    host_path,
    token_references,
    volume_files,
    volume_references,
    volume_type,
    write_files,
)

CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)


class PodVolumes:
    """Where each volume of the pod lies, once `sync` has been called."""

    def __init__(self, context: NodeContext, directory: Path, facts: Facts) -> None:
        self._context, self._directory, self._facts = context, directory, facts
        self._due = 0.0
        self._seen: tuple[Any, ...] = ()
        self.paths: dict[str, Path] = {}

    @property
    def made(self) -> bool:
        """Whether all volumes have been made once."""
        return self._due > 0.0

    async def sync(self, pod: Mapping[str, Any], now: float) -> float | None:
        """Bring all volumes up to date if that is due; returns when it is due again (None: nothing can change).

        Raises:
            VolumeError: A volume cannot be made.
            KubeError: The API server does not answer.
        """
        volumes = pod["spec"].get("volumes") or ()
        shown = (pod["metadata"].get("labels"), pod["metadata"].get("annotations"))
        if self.paths.keys() == {v["name"] for v in volumes} and now < self._due and shown == self._seen:
            return self._due
        interval = self._context.config.volume_refresh
        refs = volume_references(pod)
        max_age = interval / 2 if self.paths else 1.0
        objects = await self._context.objects.get(pod["metadata"]["namespace"], refs, max_age)
        tokens = await self._context.tokens.get(pod, token_references(pod))

        claims = {
            volume["name"]: await self._claimed(pod["metadata"]["namespace"], volume[CLAIM]["claimName"])
            for volume in volumes
            if volume_type(volume) == CLAIM
        }

        def write() -> dict[str, Path]:
            found = {}
            for volume in volumes:
                kind, path = volume_type(volume), self._directory / volume["name"]
                if kind == "hostPath":
                    path = host_path(volume)
                elif kind == CLAIM:
                    path = claims[volume["name"]]
                elif kind == "emptyDir":
                    path.mkdir(parents=True, exist_ok=True)
                    path.chmod(0o777)
                elif kind in CONTENT:
                    write_files(path, volume_files(volume, pod, objects, tokens, self._facts))
                found[volume["name"]] = path
            return found

        self.paths = await asyncio.to_thread(write)
        self._seen = shown
        self._due = now + interval
        return self._due if any(volume_type(v) in CONTENT for v in volumes) else None

    async def _claimed(self, namespace: str, claim: str) -> Path:
        try:
            body = await self._context.client.get(CLAIMS, claim, namespace)
            name = body["spec"].get("volumeName")
            if not name or body.get("status", {}).get("phase") != "Bound":
                raise VolumeError(f"claim {claim!r} is not bound to a volume yet")
            return claimed_path(claim, await self._context.client.get(VOLUMES, name))
        except NotFound as error:
            raise VolumeError(error.message) from error
