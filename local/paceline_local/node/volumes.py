"""Volumes: what their files contain (pure), and how they come to a directory in one step, as the kubelet does it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline_local.node.env import Facts, Objects, Pod, Ref, data_of, field_value, resource_value
from paceline_local.node.errors import ConfigError, VolumeError

CLAIM = "persistentVolumeClaim"
SUPPORTED = ("configMap", "secret", "emptyDir", "hostPath", "projected", "downwardAPI", CLAIM)
CONTENT = ("configMap", "secret", "projected", "downwardAPI")
"""Volume types whose files the node writes, and writes again when they change."""


@dataclass(frozen=True)
class TokenRef:
    """A service account token that a volume asks for."""

    audience: str | None
    expiration_seconds: int


@dataclass(frozen=True)
class FileContent:
    """One file of a volume; `mode` are its permission bits."""

    data: bytes
    mode: int


def volume_type(volume: Mapping[str, Any]) -> str:
    """The key that says what the volume is; `emptyDir` where nothing is said, as in the API."""
    kinds = [key for key in volume if key != "name"]
    return kinds[0] if kinds else "emptyDir"


def _sources(volume: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    kind = volume_type(volume)
    if kind == "projected":
        for source in volume["projected"].get("sources") or ():
            yield from source.items()
    elif kind in CONTENT:
        yield kind, volume[kind] or {}


def _object_ref(kind: str, source: Mapping[str, Any]) -> Ref | None:
    if kind == "configMap":
        return Ref("ConfigMap", source["name"])
    if kind == "secret":
        return Ref("Secret", source.get("secretName") or source["name"])
    return None


def volume_references(pod: Pod) -> set[Ref]:
    """ConfigMaps and Secrets that the pod's volumes name."""
    found = set()
    for volume in pod["spec"].get("volumes") or ():
        for kind, source in _sources(volume):
            if (ref := _object_ref(kind, source)) is not None:
                found.add(ref)
    return found


def _token_ref(source: Mapping[str, Any]) -> TokenRef:
    return TokenRef(source.get("audience") or None, int(source.get("expirationSeconds") or 3600))


def token_references(pod: Pod) -> set[TokenRef]:
    """Service account tokens that the pod's volumes ask for."""
    return {
        _token_ref(source)
        for volume in pod["spec"].get("volumes") or ()
        for kind, source in _sources(volume)
        if kind == "serviceAccountToken"
    }


def volume_files(
    volume: Mapping[str, Any], pod: Pod, objects: Objects, tokens: Mapping[TokenRef, str], facts: Facts
) -> dict[str, FileContent]:
    """Relative path → content of a configMap, secret, projected or downwardAPI volume.

    Raises:
        VolumeError: A reference that is not optional leads nowhere.
    """
    body = volume[volume_type(volume)] or {}
    default_mode = int(body.get("defaultMode") or 0o644)
    files: dict[str, FileContent] = {}
    for kind, source in _sources(volume):
        files.update(_source_files(kind, source, pod, objects, tokens, facts, default_mode))
    for path in files:
        if path.startswith("/") or ".." in Path(path).parts:
            raise VolumeError(f"volume {volume['name']}: {path!r} leads out of the volume")
    return files


def _source_files(
    kind: str,
    source: Mapping[str, Any],
    pod: Pod,
    objects: Objects,
    tokens: Mapping[TokenRef, str],
    facts: Facts,
    default_mode: int,
) -> dict[str, FileContent]:
    if kind == "serviceAccountToken":
        return {source["path"]: FileContent(tokens[_token_ref(source)].encode(), default_mode)}
    if kind == "downwardAPI":
        return {
            item["path"]: FileContent(_downward(item, pod, facts), int(item.get("mode") or default_mode))
            for item in source.get("items") or ()
        }
    ref = _object_ref(kind, source)
    if ref is None:
        raise VolumeError(f"a projected source of type {kind} is not supported in local mode")
    obj, optional = objects.get(ref), bool(source.get("optional"))
    if obj is None:
        if optional:
            return {}
        raise VolumeError(f'{ref.kind.lower()} "{ref.name}" not found')
    values = data_of(ref, obj)
    if not source.get("items"):
        return {key: FileContent(value, default_mode) for key, value in values.items()}
    files = {}
    for item in source["items"]:
        if item["key"] in values:
            files[item["path"]] = FileContent(values[item["key"]], int(item.get("mode") or default_mode))
        elif not optional:
            raise VolumeError(f"{ref.kind.lower()} {ref.name!r} has no key {item['key']!r}")
    return files


def _downward(item: Mapping[str, Any], pod: Pod, facts: Facts) -> bytes:
    try:
        if "fieldRef" in item:
            return field_value(item["fieldRef"]["fieldPath"], pod, facts).encode()
        ref = item["resourceFieldRef"]
        named = {c["name"]: c for c in pod["spec"]["containers"]}
        if ref.get("containerName") not in named:
            raise VolumeError(f"resourceFieldRef names the container {ref.get('containerName')!r}; there is none")
        return resource_value(ref, named[ref["containerName"]], facts).encode()
    except ConfigError as error:
        raise VolumeError(error.message) from error


def write_files(directory: Path, files: Mapping[str, FileContent]) -> bool:
    """Make `directory` contain exactly `files`; readers see all of the old or all of the new ones.

    The files lie in a hidden directory that the link `..data` points to; a change replaces the link. Returns whether
    anything changed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "..data"
    current = directory / os.readlink(link) if link.is_symlink() else None
    if current is not None and _content(current) == dict(files):
        return False
    fresh = directory / f"..{time.time_ns()}"
    for name, content in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.data)
        path.chmod(content.mode)
    fresh.mkdir(exist_ok=True)
    temporary = directory / "..data_tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(fresh.name)
    temporary.replace(link)
    wanted = {Path(name).parts[0] for name in files}
    for name in wanted:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(Path("..data") / name)
    for entry in directory.iterdir():
        if not entry.name.startswith("..") and entry.name not in wanted:
            entry.unlink()
        elif entry.name.startswith("..") and entry not in (fresh, link):
            shutil.rmtree(entry)
    return True


def _content(directory: Path) -> dict[str, FileContent]:
    return {
        str(path.relative_to(directory)): FileContent(path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in directory.rglob("*")
        if path.is_file()
    }


def host_path(volume: Mapping[str, Any]) -> Path:
    """The host path of a hostPath volume, checked or made as its `type` says.

    Raises:
        VolumeError: It is not there, or not of that type.
    """
    body = volume["hostPath"]
    path, kind = Path(body["path"]), body.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
    checks = {
        "Directory": path.is_dir,
        "DirectoryOrCreate": path.is_dir,
        "File": path.is_file,
        "FileOrCreate": path.is_file,
        "Socket": path.is_socket,
        "CharDevice": path.is_char_device,
        "BlockDevice": path.is_block_device,
    }
    if not path.exists() or (kind and not checks[kind]()):
        raise VolumeError(f"hostPath {path} is not {'there' if not kind else f'a {kind}'} on this machine")
    return path


def claimed_path(claim: str, volume: Mapping[str, Any]) -> Path:
    """The path on this machine of the PersistentVolume that a claim is bound to.

    Raises:
        VolumeError: It is of a type that is no path, or the path is not there.
    """
    spec = volume["spec"]
    for kind in ("hostPath", "local"):
        if kind in spec:
            return host_path({"hostPath": spec[kind]})
    name = volume["metadata"]["name"]
    raise VolumeError(f"claim {claim!r} is bound to {name!r}; local mode can use hostPath and local volumes only")
