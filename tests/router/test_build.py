"""Source and compiled build of the router are told apart, and the list of compiled modules is true."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paceline_router.build import SOURCE, build, version, words
from paceline_router.flow.dataplane import DataPlane
from paceline_router.report.admin import metrics_page
from paceline_router.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
WANTED = os.environ.get("PACELINE_ROUTER_BUILD", SOURCE)
"""Set by `make test-router-compiled`."""


@pytest.fixture(scope="module")
def compiling() -> ModuleType:
    spec = importlib.util.spec_from_file_location("router_compile", ROOT / "router" / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_these_tests_run_on_the_build_that_was_asked_for() -> None:
    assert build() == WANTED


def test_the_command_says_version_and_build() -> None:
    command = [sys.executable, "-m", "paceline_router", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == words()
    assert f"({WANTED} build, Python 3." in done.stdout


class Source:
    error = None

    def age(self) -> float | None:
        return 0.0


def test_metrics_say_it() -> None:
    text = metrics_page(DataPlane(Settings()), Source())
    assert f'paceline_router_build_info{{version="{version()}",build="{WANTED}"}} 1\n' in text


def test_every_module_of_the_compiled_list_is_there(compiling: ModuleType) -> None:
    for room, names in compiling.HOT.items():
        for name in names.split():
            assert (compiling.PACKAGE / room / f"{name}.py").is_file(), f"{room}/{name}"


def test_a_build_of_other_source_is_not_current(compiling: ModuleType, tmp_path: Path) -> None:
    assert not compiling.is_current(tmp_path)
    (tmp_path / compiling.STAMP).write_text(compiling.source_hash())
    assert compiling.is_current(tmp_path)
    (tmp_path / compiling.STAMP).write_text("0" * 64)
    assert not compiling.is_current(tmp_path)


def compile_into(out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "router" / "compile.py"), str(out)]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    done = compile_into(tmp_path / "new", CC="no-such-compiler")
    assert done.returncode == 2
    assert "install gcc, or run the router as it is" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = compile_into(tmp_path)
    assert done.returncode == 2
    assert "name a folder that may be replaced" in done.stderr
    assert (tmp_path / "thesis.txt").exists()
