"""A file that anybody may have written is refused before it costs time or memory, and read while requests go on."""

from __future__ import annotations

import os
import pickle
from collections.abc import Set
from pathlib import Path

import pytest

from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings
from paceline_router.table import apart, reading
from paceline_router.table.file import RoutesFileError, read_table
from paceline_router.table.file_source import SMALL_BYTES, STEP, FileSource
from paceline_router.table.reading import read_apart
from paceline_router.table.records import Table
from paceline_router.table.yaml_file import MAX_BYTES, MAX_DEPTH, MAX_WRITTEN_OUT, FileFault, mark_of, read_yaml

GOOD = "services: [{name: demo/chat, replicas: [{url: 'http://127.0.0.1:1'}]}]\n"


def bomb() -> str:
    """Ten to the ninth values in a few lines."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for number in range(1, 9):
        lines.append(f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]")
    return "\n".join([*lines, "services: [*a8]\n"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(), "aliases"),
        (f"a: &a {'x' * 1_000_000}\nb: [{', '.join(['*a'] * 100)}]\n", "aliases"),
        ("services: &s [*s]\n", "stands for nothing"),
        ("services: [*s]\n", "stands for nothing"),
        ("[" * 20_000, "deeper|nesting depth"),
        ("- " * 20_000, "deeper|nesting depth"),
        ("{a: " * 20_000, "deeper|nesting depth"),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 100)), "deeper"),
    ],
    ids=["bomb", "long text", "self", "unknown", "lists", "block lists", "mappings", "depth by aliases"],
)
def test_what_would_grow_is_refused_in_words_before_it_is_built(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    with pytest.raises(FileFault, match=words):
        read_yaml(path)


def test_aliases_within_bounds_are_written_out(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}], "c": {"x": 1, "y": 2}}
    path.write_text("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    read_yaml(path)


def test_only_a_regular_file_of_a_bounded_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    os.mkfifo(path)
    with pytest.raises(RoutesFileError, match="no regular file"):
        read_table(path)
    with pytest.raises(RoutesFileError, match="directory"):
        read_table(tmp_path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(RoutesFileError, match="16 MiB"):
        read_table(path)
    assert MAX_WRITTEN_OUT > MAX_BYTES


@pytest.mark.parametrize("kind", ["fifo", "folder", "gone", "bomb", "wrong"])
async def test_a_file_that_turns_bad_leaves_the_table_and_one_that_comes_back_is_used(
    tmp_path: Path, kind: str
) -> None:
    path, aside = tmp_path / "routes.yaml", tmp_path / "aside.yaml"
    path.write_text(GOOD)
    used: list[Table] = []
    source = FileSource(path, lambda table, changed: used.append(table))
    await source.load()
    path.rename(aside)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "gone":
        path.write_text(bomb() if kind == "bomb" else "services: 5")
    await source.look()
    assert source.error is not None
    assert set(used[-1].services) == {"demo/chat"}
    if kind == "folder":
        path.rmdir()
    aside.rename(path)
    await source.look()
    assert source.error is None
    assert set(used[-1].services) == {"demo/chat"}


async def test_a_reader_that_dies_or_takes_for_ever_is_a_reason_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(GOOD)
    assert set(await read_apart(path)) == {"demo/chat"}
    monkeypatch.setattr(apart, "READ_SECONDS", 0.0)
    with pytest.raises(RoutesFileError, match="longer than"):
        await read_apart(path)
    monkeypatch.undo()
    monkeypatch.setattr(apart.sys, "executable", "/bin/false")
    with pytest.raises(RoutesFileError, match="ended with code 1"):
        await read_apart(path)


async def test_a_file_that_could_not_be_read_to_an_end_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(GOOD)
    used: list[Table] = []
    source = FileSource(path, lambda table, _: used.append(table))
    await source.load()
    path.write_text(GOOD.replace("chat", "other"))
    for executable in ("/bin/false", "/nowhere"):
        monkeypatch.setattr(apart.sys, "executable", executable)
        await source.look()
        assert source.error
        assert set(used[-1].services) == {"demo/chat"}
    monkeypatch.undo()
    await source.look()
    assert source.error is None
    assert set(used[-1].services) == {"demo/other"}


def test_a_file_that_was_made_readable_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(GOOD)
    before = mark_of(path.stat())
    mode = 0
    while mark_of(path.stat()) == before:  # clocks of file systems are coarse
        mode ^= 0o040
        path.chmod(0o600 | mode)
    assert path.read_text() == GOOD


def services(names: list[str]) -> str:
    entries = (
        f"- name: big/{name}\n  replicas: [{{url: 'http://127.0.0.1:{n + 1}'}}]\n" for n, name in enumerate(names)
    )
    return "services:\n" + "".join(entries)


async def test_a_large_file_is_taken_over_in_steps_and_only_what_differs(tmp_path: Path) -> None:
    names = [f"s{number}-{'x' * 40}" for number in range(700)]
    path = tmp_path / "routes.yaml"
    path.write_text(services(names))
    assert path.stat().st_size > SMALL_BYTES
    steps: list[Set[str]] = []
    plane = DataPlane(Settings())

    def use(table: Table, changed: Set[str]) -> None:
        steps.append(changed)
        plane.use(table, changed)

    source = FileSource(path, use)
    await source.load()
    assert max(map(len, steps)) <= STEP
    assert plane.table == read_table(path)
    assert set(plane.living) == set(plane.routes.by_key) == {f"big/{name}" for name in names}
    kept = plane.living[f"big/{names[0]}"].route

    steps.clear()
    path.write_text(services([*names[:-2], "new", "other"]))
    await source.look()
    assert source.error is None
    assert [set(step) for step in steps] == [{f"big/{name}" for name in (*names[-2:], "new", "other")}]
    assert plane.table == read_table(path)
    assert plane.living[f"big/{names[0]}"].route is kept

    path.write_text(services(["new"]))
    await source.look()
    assert plane.table == read_table(path)
    assert (list(plane.living), len(plane.backends)) == (["big/new"], 1)


def test_equal_entries_are_equal_parts(tmp_path: Path) -> None:
    """Or each reload of a large file would take over all of it."""
    path = tmp_path / "routes.yaml"
    path.write_text(GOOD)
    first = reading.parts_of(path)
    assert reading.parts_of(path) == first
    assert pickle.loads(first["demo/chat"])[0].key == "demo/chat"
