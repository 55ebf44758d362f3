"""A long check that was cut short goes on where it was, unless what it checks is something else by now."""

from __future__ import annotations

from pathlib import Path

from paceline_runtime.kernels.check.progress import Progress, found_with


def test_what_was_found_is_there_again_and_a_line_cut_off_is_not(tmp_path: Path) -> None:
    path, basis = tmp_path / "found.jsonl", found_with(triton="3.9")
    first = Progress(path, basis)
    assert first.found == {}
    first.add("a", {"error": float("inf")})
    first.add("b", {"error": 1.0})
    path.write_text(path.read_text()[:-5])
    second = Progress(path, basis)
    assert second.found == {"a": {"error": float("inf")}}
    second.add("b", {"error": 2.0})
    # What was cut off ends its line, so that nothing is written behind it.
    assert Progress(path, basis).found == {"a": {"error": float("inf")}, "b": {"error": 2.0}}


def test_other_versions_or_sources_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    Progress(path, found_with(triton="3.6")).add("a", {})
    assert Progress(path, found_with(triton="3.9")).found == {}
    assert Progress(path, {**found_with(triton="3.9"), "sources": "others"}).found == {}


def test_nothing_is_kept_without_a_file() -> None:
    progress = Progress(None, {})
    progress.add("a", {"error": 0.0})
    assert progress.found == {"a": {"error": 0.0}}
