"""What knobs that follow load are worth, on a computed replica."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_simulator.commands import app
from paceline_simulator.engine import Request
from paceline_simulator.exact import EngineReplica
from paceline_simulator.tuning.load import LOADS, PHASE, requests
from paceline_simulator.tuning.study import METRICS, RANGES, SYSTEMS, figures, run
from paceline_simulator.tuning.tuner import Tuner

SECONDS = PHASE + 400.0
LIMIT = 0.05


@pytest.mark.parametrize("name", LOADS)
def test_a_load_is_in_order_and_has_documents_only_in_their_phases(name: str) -> None:
    made = requests(name, 2.0 * PHASE, 0)
    assert [one.arrival for one in made] == sorted(one.arrival for one in made)
    assert [one.number for one in made] == list(range(len(made)))
    documents = [one for one in made if one.prompt_tokens > 4000]
    assert all(one.arrival >= PHASE for one in documents)
    assert bool(documents) == (name != "chat")


@dataclass
class Ran:
    """One run: its requests, the tuner, and what its replica was told."""

    made: list[Request]
    tuner: Tuner
    told: list[dict[str, int]]

    @property
    def figures(self) -> dict[str, float]:
        return figures(self.made, LIMIT, 5.0, self.tuner)


@pytest.fixture(scope="module")
def ran() -> dict[str, Ran]:
    found = {}
    real = EngineReplica.tune
    for system in ("as started", "following"):
        told: list[dict[str, int]] = []

        def tune(self: EngineReplica, at: Any, knobs: dict[str, int], told: list[dict[str, int]] = told) -> None:
            told.append(knobs)
            real(self, at, knobs)

        made = requests("documents", SECONDS, 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EngineReplica, "tune", tune)
            found[system] = Ran(made, run(system, made, LIMIT), told)
    return found


def test_knobs_move_only_where_they_follow_and_only_within_their_ranges(ran: dict[str, Ran]) -> None:
    assert not ran["as started"].tuner.moves
    moves = ran["following"].tuner.moves
    assert moves
    for _, decision in moves:
        for knob, value in decision.knobs.items():
            assert RANGES[knob].least <= value <= RANGES[knob].most


def test_the_replica_is_told_every_move_with_all_its_knobs(ran: dict[str, Ran]) -> None:
    moves = ran["following"].tuner.moves
    assert ran["following"].told == [{knob.value: value for knob, value in one.knobs.items()} for _, one in moves]
    assert ran["as started"].told == []


def test_knobs_that_follow_make_nobody_wait_much_longer_where_documents_come_in_a_rush(ran: dict[str, Ran]) -> None:
    """Fewer places and smaller pieces once made a queue of hundreds, and two minutes to the first token."""
    for metric in ("ttft_p90", "ttft_p99"):
        assert ran["following"].figures[metric] <= 1.25 * ran["as started"].figures[metric]


def test_the_command_writes_every_system_and_refuses_an_unknown_load(tmp_path: Path) -> None:
    asked = ["tuning", "--load", "chat", "--hours", "0.1", "--seeds", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["system"] for row in rows} == set(SYSTEMS)
    assert {row["metric"] for row in rows} == set(METRICS)
    both = CliRunner().invoke(app, ["tuning", "--load", "chat, poems"])
    assert "there is no 'poems'" in both.output
    refused = CliRunner().invoke(app, ["tuning", "--load", "poems"])
    assert refused.exit_code == 2
    assert "chat" in refused.output
