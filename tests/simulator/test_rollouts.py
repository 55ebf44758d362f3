"""Rollouts whose truth is known: the verdict finds what is clear, and blames nobody for nothing."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from paceline_shadow_traffic.verdict import Verdict
from paceline_simulator.commands import app
from paceline_simulator.rollouts.study import SCENARIOS, run


def test_a_clear_regression_fails_at_the_first_step_and_names_the_gate() -> None:
    found = run(SCENARIOS["TTFT +40 %"], every=20, seed=1)
    assert (found.verdict, found.step) == (Verdict.FAIL, 1)
    assert "TTFTP50" in found.gates


def test_no_change_does_not_fail() -> None:
    assert all(run(SCENARIOS["no change"], every=30, seed=seed).verdict is not Verdict.FAIL for seed in range(3))


def test_thin_traffic_never_passes() -> None:
    assert run(SCENARIOS["no change, thin"], every=30, seed=1).verdict is Verdict.NOT_KNOWN


def test_one_seed_makes_one_rollout() -> None:
    truth = SCENARIOS["errors 0.2 % to 3 %"]
    assert run(truth, every=30, seed=5) == run(truth, every=30, seed=5)


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    arguments = ["rollout", "--scenario", "no change, thin", "--runs", "1", "--every", "60", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["metric"]: row["value"] for row in rows} == {"passed": 0.0, "failed": 0.0, "not_known": 1.0}


def test_an_unknown_scenario_is_refused_with_those_that_there_are() -> None:
    done = CliRunner().invoke(app, ["rollout", "--scenario", "sunshine"])
    assert done.exit_code == 2
    assert "no change" in done.output
