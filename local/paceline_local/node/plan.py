"""From a pod to what is executed: what local mode refuses, and argv, environment and mounts of a container. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from paceline_crds.quantities import parse_quantity
from paceline_local.node.env import Pod, expand
from paceline_local.node.errors import ConfigError
from paceline_local.node.images import Image
from paceline_local.node.restart import Policy, Role
from paceline_local.node.volumes import SUPPORTED, volume_type

Namespaces = Literal["root", "user", "none"]
"""How a container gets its mounts: a mount namespace as root, one in a user namespace, or rewritten paths."""

_POD_REFUSALS = {
    "hostNetwork": "hostNetwork: pods have loopback addresses of their own; remove it",
    "hostPID": "hostPID: remove it",
    "hostIPC": "hostIPC: remove it",
    "hostAliases": "hostAliases: there is no name resolution per pod; use addresses",
}


@dataclass(frozen=True)
class ContainerSpec:
    """A container of a pod with its role and restart policy."""

    role: Role
    policy: Policy
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.body["name"])


@dataclass(frozen=True)
class MountPlan:
    """One mount: an absolute path on the host at an absolute path in the container."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True)
class ContainerPlan:
    """What is executed, where and with what. `memory_limit` in bytes."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    mounts: tuple[MountPlan, ...]
    memory_limit: int | None


def containers_of(pod: Pod) -> Iterator[ContainerSpec]:
    """Init containers and sidecars in their order, then the main containers."""
    spec = pod["spec"]
    policy: Policy = spec.get("restartPolicy") or "Always"
    for body in spec.get("initContainers") or ():
        if body.get("restartPolicy") == "Always":
            yield ContainerSpec("sidecar", "Always", body)
        else:
            yield ContainerSpec("init", "OnFailure" if policy == "Always" else policy, body)
    for body in spec["containers"]:
        yield ContainerSpec("main", body.get("restartPolicy") or policy, body)


def refusals(pod: Pod) -> list[str]:
    """What the pod asks for and local mode cannot give, as instructions; empty where it can be run."""
    spec = pod["spec"]
    found = [text for key, text in _POD_REFUSALS.items() if spec.get(key)]
    for volume in spec.get("volumes") or ():
        kind = volume_type(volume)
        if kind not in SUPPORTED:
            found.append(f"volume {volume['name']}: {kind} volumes; use one of {', '.join(SUPPORTED)}")
    for container in containers_of(pod):
        body = container.body
        security = body.get("securityContext") or {}
        if security.get("privileged"):
            found.append(f"container {container.name}: privileged; remove it")
        if (security.get("capabilities") or {}).get("add"):
            found.append(f"container {container.name}: added capabilities; remove them")
        if body.get("restartPolicyRules"):
            found.append(f"container {container.name}: restartPolicyRules; use restartPolicy")
        if body.get("volumeDevices"):
            found.append(f"container {container.name}: volumeDevices; use volumeMounts")
        for port in body.get("ports") or ():
            if port.get("hostPort"):
                found.append(f"container {container.name}: hostPort {port['hostPort']}; use a Service")
            if port.get("protocol", "TCP") == "SCTP":
                found.append(f"container {container.name}: SCTP ports")
    return found


def memory_limit(container: Mapping[str, Any]) -> int | None:
    """The container's memory limit in bytes, or None.

    Raises:
        ConfigError: It is written in a form that local mode does not read.
    """
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    try:
        return None if limit is None else int(parse_quantity(str(limit)))
    except ValueError as error:
        raise ConfigError(f"memory limit: {error}") from error


def mounts_of(
    container: Mapping[str, Any], volumes: Mapping[str, Path], env: Mapping[str, str]
) -> tuple[MountPlan, ...]:
    """The container's mounts, given where each volume lies on the host.

    Raises:
        ConfigError: A mount names no volume, or a subPath leads out of it.
    """
    found = []
    for mount in container.get("volumeMounts") or ():
        if mount["name"] not in volumes:
            raise ConfigError(f"volumeMount {mount['mountPath']} names the volume {mount['name']!r}; there is none")
        source = volumes[mount["name"]]
        sub = mount.get("subPath") or expand(mount.get("subPathExpr") or "", env)
        if sub:
            if sub.startswith("/") or ".." in PurePosixPath(sub).parts:
                raise ConfigError(f"subPath {sub!r} must be relative and without '..'")
            source = source / sub
        target = "/" + mount["mountPath"].strip("/")
        found.append(MountPlan(source, target, bool(mount.get("readOnly"))))
    return tuple(found)


def uncovered(mounts: Iterable[MountPlan], needed: Iterable[Path]) -> tuple[MountPlan, ...]:
    """Mounts that show again what of `needed` the given ones would cover.

    An image brings its own files; here the program lies on this machine, maybe under the very path (`/tmp`, often) that
    the container takes for itself.
    """
    targets = {mount.target for mount in mounts}
    found: dict[Path, MountPlan] = {}
    for path in sorted(set(needed)):
        covered = targets & {str(path), *map(str, path.parents)} - {"/"}
        if covered and not any(parent in found for parent in path.parents):
            found[path] = MountPlan(path, str(path), False)
    return tuple(found.values())


def rewrite_paths(text: str, mounts: tuple[MountPlan, ...]) -> str:
    """`text` with mount paths replaced by the host paths behind them, where they stand as whole path prefixes."""
    if not mounts:
        return text
    by_target = {mount.target: str(mount.source) for mount in mounts}
    ordered = sorted(by_target, key=len, reverse=True)
    pattern = re.compile(r"(?<![\w./-])(" + "|".join(re.escape(t) for t in ordered) + r")(?=$|[/\s:;,'\"&|)])")
    return pattern.sub(lambda match: by_target[match[1]], text)


def command_line(
    image: Image, container: Mapping[str, Any], env: Mapping[str, str], mounts: tuple[MountPlan, ...] = ()
) -> tuple[str, ...]:
    """argv as Kubernetes defines it: `command` replaces the entrypoint, `args` follow.

    What the pod says is rewritten for `mounts`; the image's own entrypoint is a path of this machine already.

    Raises:
        ConfigError: There is nothing to execute.
    """

    def said(key: str) -> tuple[str, ...]:
        return tuple(rewrite_paths(expand(part, env), mounts) for part in container.get(key) or ())

    argv = (said("command") or image.entrypoint or ()) + said("args")
    if not argv:
        raise ConfigError(f"no command specified: {image.reference} has no entrypoint, give the container a command")
    return argv


def container_plan(
    container: Mapping[str, Any],
    image: Image,
    env: Mapping[str, str],
    volumes: Mapping[str, Path],
    namespace: Namespaces,
    base: Mapping[str, str],
) -> ContainerPlan:
    """The plan of one container with its environment resolved.

    `base` is the part of the environment that comes from the node; its `HOME` is the working directory by default.

    Raises:
        ConfigError: See `mounts_of` and `command_line`.
    """
    mounts = mounts_of(container, volumes, env)
    rewritten = mounts if namespace == "none" else ()
    argv = command_line(image, container, env, rewritten)
    said = {name: value for name, value in env.items() if base.get(name) != value}
    env = {**env, **{name: rewrite_paths(value, rewritten) for name, value in said.items()}}
    cwd = rewrite_paths(container["workingDir"], rewritten) if container.get("workingDir") else base["HOME"]
    return ContainerPlan(argv, env, cwd, mounts, memory_limit(container))
