"""Getting the kernels: built once, kept, and where they cannot be had the reference serves and says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline_runtime import native
from paceline_runtime.config import ConfigError
from paceline_runtime.model.checkpoint import open_checkpoint
from paceline_runtime.model.runner import ModelRunner
from paceline_runtime.model.source import locate
from paceline_runtime.native.build import NativeUnavailable, library_path, pick_isa


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    native._load.cache_clear()
    yield tmp_path
    native._load.cache_clear()


def script(folder: Path, body: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def make_runner(folder: Path) -> ModelRunner:
    return ModelRunner(
        open_checkpoint(locate(folder.as_uri())),
        device=torch.device("cpu"),
        dtype=torch.float32,
        block_size=16,
        max_model_len=64,
    )


def test_several_processes_build_once_and_the_next_finds_it(empty_cache: Path) -> None:
    code = "from paceline_runtime import native; print(native.load().lanes)"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert len({process.communicate(timeout=120)[0] for process in started}) == 1
    (made,) = empty_cache.glob("native/*/*.so")
    before = made.stat()
    assert library_path(pick_isa()) == made
    assert made.stat().st_mtime_ns == before.st_mtime_ns
    assert sorted(path.name for path in made.parent.iterdir()) == [made.name]


def test_without_a_compiler_the_reference_serves_and_says_so(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tiny_model_dir: Path
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert make_runner(tiny_model_dir).kernels == "torch"
    (record,) = caplog.records
    assert "there is no C++ compiler; install g++, or name one in CXX" in record.getMessage()


def test_what_the_compiler_says_is_told(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model_dir: Path
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, 'echo "x.cpp:1: error: omp.h not found" >&2; exit 1'))
    with pytest.raises(NativeUnavailable, match=r"could not build the kernels: x\.cpp:1: error: omp\.h not found"):
        native.load()
    assert make_runner(tiny_model_dir).kernels == "torch"
    assert not list(empty_cache.glob("native/*/*"))


def test_where_nothing_can_be_kept_it_is_built_for_this_process(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "native").touch()
    path = library_path(pick_isa())
    assert not path.is_relative_to(tmp_path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert native.open_library(path, "here").lanes in (8, 16)
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OSError, match="name a folder in PACELINE_CACHE"):
        native.cache_root()


def test_a_slow_build_says_so(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline_runtime.native.build.QUIET_SECONDS", 0.01)
    monkeypatch.setenv("CXX", script(tmp_path, 'sleep 0.5; exec g++ "$@"'))
    assert native.load().lanes in (8, 16)
    assert "building the CPU kernels" in capfd.readouterr().err


def test_a_library_that_is_none_is_not_used(empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = 'for last; do :; done; case "$last" in *.so) echo junk > "$last";; esac'
    monkeypatch.setenv("CXX", script(tmp_path, body))
    with pytest.raises(NativeUnavailable, match="cannot be loaded"):
        native.load()


def test_the_switches_are_heard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    with pytest.raises(NativeUnavailable, match="switched off by PACELINE_NATIVE=0"):
        native.load()
    monkeypatch.setenv("PACELINE_NATIVE", "1")
    monkeypatch.setenv("PACELINE_NATIVE_ISA", "sse9")
    with pytest.raises(ConfigError, match="'sse9'; write one of avx512bf16, avx512, avx2"):
        native.load()
    old = tmp_path / "cpuinfo"
    old.write_text("processor: 0\nflags: fpu sse2 avx\n")
    monkeypatch.setenv("PACELINE_NATIVE_ISA", "avx2")
    with pytest.raises(NativeUnavailable, match="avx2, which this processor does not have"):
        pick_isa(old)
    monkeypatch.delenv("PACELINE_NATIVE_ISA")
    with pytest.raises(NativeUnavailable, match="AVX2 and FMA"):
        pick_isa(old)
    laptop = tmp_path / "laptop"
    laptop.write_text("flags\t\t: fpu avx2 fma bmi2 f16c avx512f\n")
    assert pick_isa(laptop) == "avx2"
