from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_cli.main import COMMANDS, build

runner = CliRunner()


def test_help_lists_every_command() -> None:
    result = runner.invoke(build(["--help"]), ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)


def test_help_imports_no_component() -> None:
    code = (
        "import sys; from paceline_cli.main import build; build(['--help']); "
        "print([m for m in sys.modules if m.startswith('paceline_') and not m.startswith('paceline_cli')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = runner.invoke(build([name]), [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "xample" in result.output


def test_an_unknown_command_is_wrong_use() -> None:
    assert runner.invoke(build(["nonsense"]), ["nonsense"]).exit_code == 2


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    for module in [m for m in sys.modules if m.startswith("paceline_crds")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(SystemExit) as stop:
        build(["crds"])
    assert stop.value.code == 2
    assert "'yaml'" in capsys.readouterr().err
