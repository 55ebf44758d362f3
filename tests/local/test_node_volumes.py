"""What volumes contain, and how a change reaches a running container."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_local.node.env import Facts, Ref
from paceline_local.node.errors import VolumeError
from paceline_local.node.volumes import (
    FileContent,
    TokenRef,
    claimed_path,
    host_path,
    token_references,
    volume_files,
    volume_references,
    write_files,
)

FACTS = Facts("127.64.1.2", "127.64.1.1", "node-0", {"cpu": "4"})
POD = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c"}]},
}
SECRET = {"data": {"key": base64.b64encode(b"\x00\xff").decode()}}
CONFIG = {"data": {"a.yaml": "x: 1", "b": "2"}, "binaryData": {"bin": base64.b64encode(b"\x01").decode()}}
OBJECTS = {Ref("ConfigMap", "cm"): CONFIG, Ref("Secret", "s"): SECRET, Ref("ConfigMap", "gone"): None}


def files(volume: dict) -> dict[str, tuple[bytes, int]]:
    found = volume_files({"name": "v", **volume}, POD, OBJECTS, {TokenRef("aud", 600): "tok"}, FACTS)
    return {path: (content.data, content.mode) for path, content in found.items()}


def test_a_config_map_volume_has_all_keys_or_the_chosen_ones() -> None:
    everything = {"a.yaml": (b"x: 1", 0o644), "b": (b"2", 0o644), "bin": (b"\x01", 0o644)}
    assert files({"configMap": {"name": "cm"}}) == everything
    chosen = {"name": "cm", "defaultMode": 0o600, "items": [{"key": "b", "path": "dir/b", "mode": 0o400}]}
    assert files({"configMap": chosen}) == {"dir/b": (b"2", 0o400)}
    assert files({"secret": {"secretName": "s", "defaultMode": 0o440}}) == {"key": (b"\x00\xff", 0o440)}


def test_what_is_missing_is_an_error_unless_optional() -> None:
    with pytest.raises(VolumeError, match='configmap "gone" not found'):
        files({"configMap": {"name": "gone"}})
    assert files({"configMap": {"name": "gone", "optional": True}}) == {}
    with pytest.raises(VolumeError, match="has no key 'z'"):
        files({"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}})


def test_projected_volumes_join_their_sources() -> None:
    sources = [
        {"serviceAccountToken": {"path": "token", "audience": "aud", "expirationSeconds": 600}},
        {"configMap": {"name": "cm", "items": [{"key": "b", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        {"secret": {"name": "s"}},
    ]
    volume = {"projected": {"sources": sources, "defaultMode": 0o444}}
    assert files(volume) == {
        "token": (b"tok", 0o444),
        "ca.crt": (b"2", 0o444),
        "namespace": (b"ns", 0o444),
        "key": (b"\x00\xff", 0o444),
    }
    pod = {"spec": {"volumes": [{"name": "v", **volume}, {"name": "e", "emptyDir": {}}]}}
    assert volume_references(pod) == {Ref("ConfigMap", "cm"), Ref("Secret", "s")}
    assert token_references(pod) == {TokenRef("aud", 600)}


def test_the_downward_api_volume_tells_of_resources() -> None:
    items = [{"path": "cpus", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}}]
    assert files({"downwardAPI": {"items": items}}) == {"cpus": (b"4", 0o644)}


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b"])
def test_no_file_leaves_its_volume(path: str) -> None:
    with pytest.raises(VolumeError, match="leads out of the volume"):
        files({"configMap": {"name": "cm", "items": [{"key": "b", "path": path}]}})


names = st.sampled_from(["a", "b", "d/x", "d/y", "e/f/g"])
contents = st.dictionaries(names, st.builds(FileContent, st.binary(max_size=5), st.sampled_from([0o644, 0o400])))


def read(directory: Path) -> dict[str, FileContent]:
    shown = {}
    for top in directory.iterdir():
        if top.name.startswith(".."):
            continue
        for path in [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file()]:
            relative = str(path.relative_to(directory))
            shown[relative] = FileContent(path.read_bytes(), path.stat().st_mode & 0o777)
    return shown


@settings(max_examples=40)
@given(st.lists(contents, min_size=1, max_size=4))
def test_a_volume_shows_exactly_the_last_content(tmp_path_factory: pytest.TempPathFactory, steps: list[dict]) -> None:
    directory = tmp_path_factory.mktemp("volume") / "v"
    before: dict[str, FileContent] | None = None
    for step in steps:
        assert write_files(directory, step) is (step != before)
        assert read(directory) == step
        before = step
    assert sum(entry.name.startswith("..") for entry in directory.iterdir()) == 2


def test_an_open_directory_of_the_old_content_stays_whole(tmp_path: Path) -> None:
    write_files(tmp_path / "v", {"a": FileContent(b"1", 0o644), "b": FileContent(b"1", 0o644)})
    link = os.readlink(tmp_path / "v" / "..data")
    write_files(tmp_path / "v", {"a": FileContent(b"2", 0o644), "b": FileContent(b"2", 0o644)})
    assert os.readlink(tmp_path / "v" / "..data") != link
    assert (tmp_path / "v" / "a").read_bytes() == b"2"


def test_host_paths_are_checked_and_made_as_their_type_says(tmp_path: Path) -> None:
    def at(name: str, kind: str) -> Path:
        return host_path({"hostPath": {"path": str(tmp_path / name), "type": kind}})

    assert at("d", "DirectoryOrCreate").is_dir()
    assert at("f", "FileOrCreate").is_file()
    assert at("d", "") == tmp_path / "d"
    for name, kind in (("f", "Directory"), ("d", "File"), ("none", ""), ("f", "Socket")):
        with pytest.raises(VolumeError, match="on this machine"):
            at(name, kind)


def test_a_claim_leads_to_the_path_of_its_volume(tmp_path: Path) -> None:
    def volume(**spec: object) -> dict:
        return {"metadata": {"name": "pv"}, "spec": spec}

    assert claimed_path("c", volume(hostPath={"path": str(tmp_path)})) == tmp_path
    assert claimed_path("c", volume(local={"path": str(tmp_path)})) == tmp_path
    with pytest.raises(VolumeError, match="hostPath and local volumes only"):
        claimed_path("c", volume(csi={"driver": "d"}))
