"""Starting one container of a pod: image, environment, mounts, process."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline_local.node.container import Container
from paceline_local.node.env import resolve_env
from paceline_local.node.errors import ConfigError, ContainerWaiting, ImageError
from paceline_local.node.gpus import gpus_asked
from paceline_local.node.images import Image, resolve_image
from paceline_local.node.plan import ContainerPlan, MountPlan, container_plan, uncovered
from paceline_local.node.probes import KINDS, probe_spec
from paceline_local.node.restart import next_backoff
from paceline_local.paths import checkout_root, runtime_root

if TYPE_CHECKING:
    from paceline_local.node.pod import PodWorker

HOME, TMP = "/paceline/home", "/paceline/tmp"
"""Where a container finds its home and temporary directory: short, since sockets lie there too."""

RETRY_SECONDS = 5.0
SHOW_ERROR_SECONDS = 2.0
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


async def start_container(worker: PodWorker, container: Container, now: float) -> float | None:
    """Start the next attempt. None when that was tried; else when to try again, with `container.error` saying why."""
    try:
        image = _pull(worker, container, now)
        if image is None:
            return container.retry_at
        plan = await _plan(worker, container, image)
    except ContainerWaiting as error:
        if container.error is None or container.error.message != error.message:
            worker.event("Warning", "Failed", f"Error: {error.message}", container)
        container.error = error
        return now + RETRY_SECONDS
    attempt = container.next_attempt()
    if worker.context.namespace != "none":
        path = container.spec.body.get("terminationMessagePath") or "/dev/termination-log"
        message = MountPlan(attempt.directory / "termination-log", path, False)
        plan = ContainerPlan(plan.argv, plan.env, plan.cwd, (*plan.mounts, message), plan.memory_limit)
    worker.event("Normal", "Created", f"Container created: {container.spec.name}", container)
    await attempt.launch(plan, worker.context.namespace, worker.context.instance, worker.wake)
    return None


def _pull(worker: PodWorker, container: Container, now: float) -> Image | None:
    """The container's image, or None while it waits after a failed try: ErrImagePull first, then ImagePullBackOff."""
    reference = str(container.spec.body["image"])
    due = 0.0
    if container.image_backoff is not None:
        due = container.image_backoff.updated + container.image_backoff.delay
    try:
        if container.image_backoff is None or now >= due:
            image = resolve_image(reference)
            container.image_backoff = None
            worker.event("Normal", "Pulled", f"Container image {reference!r} is part of this machine", container)
            return image
    except ImageError as error:
        container.image_backoff = next_backoff(container.image_backoff, now, worker.context.config.max_backoff)
        worker.event("Warning", "Failed", f"Failed to pull image {reference!r}: {error.message}", container)
        container.error = error
        container.retry_at = now + SHOW_ERROR_SECONDS
        return None
    words = container.error.message if container.error else ""
    if container.error is None or container.error.reason != "ImagePullBackOff":
        worker.event("Normal", "BackOff", f"Back-off pulling image {reference!r}", container)
        container.error = ContainerWaiting("ImagePullBackOff", f"Back-off pulling image {reference!r}: {words}")
    container.retry_at = due
    return None


async def _plan(worker: PodWorker, container: Container, image: Image) -> ContainerPlan:
    body, context = container.spec.body, worker.context
    for kind in KINDS:
        probe_spec(kind, body)
    home, tmp = _own_directories(worker, container)
    isolated = context.namespace != "none"
    gpus = worker.gpus_for(container, gpus_asked(body))
    shown = (HOME, TMP) if isolated else (str(home), str(tmp))
    base = context.base_env(worker.address, worker.name, *shown, gpus)
    env = resolve_env(body, worker.pod, await worker.objects_of(container), worker.facts, base)
    plan = container_plan(body, image, env, worker.volumes.paths, context.namespace, base)
    for mount, volume_mount in zip(plan.mounts, body.get("volumeMounts") or (), strict=True):
        _check_source(mount, volume_mount.get("subPath") or volume_mount.get("subPathExpr") or "")
    if isolated:
        own = (MountPlan(home, HOME, False), MountPlan(tmp, TMP, False))
        mounts = (*plan.mounts, *uncovered(plan.mounts, needed_paths(plan.argv)), *own)
        return ContainerPlan(plan.argv, plan.env, plan.cwd, mounts, plan.memory_limit)
    tokens = [str(m.source) for m in plan.mounts if m.target == TOKEN_PATH]
    extra = {"PACELINE_SERVICEACCOUNT_DIR": tokens[0]} if tokens else {}
    return ContainerPlan(plan.argv, {**plan.env, **extra}, plan.cwd, plan.mounts, plan.memory_limit)


def needed_paths(argv: tuple[str, ...]) -> list[Path]:
    """What a container has to see of this machine whatever it mounts: the interpreter, the checkout, its program."""
    program = Path(argv[0])
    found = [Path(sys.prefix), Path(sys.base_prefix), checkout_root(), *([program] if program.is_absolute() else [])]
    return [path for path in found if path.exists()]


def _own_directories(worker: PodWorker, container: Container) -> tuple[Path, Path]:
    home = worker.directory / "home" / container.spec.name
    tmp = worker.directory / "tmp" / container.spec.name
    if worker.context.namespace == "none":
        tmp = short_tmp(worker.uid) / container.spec.name  # a socket's path may have 107 bytes at most
    for path in (home, tmp):
        path.mkdir(parents=True, exist_ok=True)
    return home, tmp


def short_tmp(uid: str) -> Path:
    """The temporary directory of a pod on a machine without mount namespaces."""
    return runtime_root() / "pods" / uid[:13]


def remove_short_tmp(uid: str) -> None:
    """Remove it, if there is one."""
    shutil.rmtree(short_tmp(uid), ignore_errors=True)


def _check_source(mount: MountPlan, sub_path: str) -> None:
    if mount.source.exists():
        return
    if not sub_path:
        raise ConfigError(f"volume for {mount.target} is not there: {mount.source}")
    try:
        mount.source.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"subPath {sub_path!r} for {mount.target} cannot be made: {error.strerror}") from error
