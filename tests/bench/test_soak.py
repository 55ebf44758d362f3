"""The soak: what it calls wrong, and a short one on a real replica."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_bench.__main__ import app
from paceline_bench.soak import command
from paceline_bench.soak.observation import Checkpoint, parse_metrics
from paceline_bench.soak.traffic import Tally
from paceline_bench.soak.verdict import ALLOWED_MIB, faults, growth

GOOD = [
    Checkpoint(
        seconds=60.0 * n,
        requests=1000 * n,
        unexpected=0,
        front_mib=70.0 if n else 60.0,
        core_mib=580.0 if n else 500.0,
        open_files=15,
        open_requests=0,
        blocks_in_use=0,
        received=900 * n,
        accounted=900 * n,
        preemptions=n,
        live=True,
    )
    for n in range(13)
]


def test_a_replica_that_only_warms_up_is_good() -> None:
    assert faults(GOOD, []) == []


def test_memory_that_grows_all_the_time_is_found_in_either_process() -> None:
    leak = ALLOWED_MIB / 3
    front = [replace(at, front_mib=at.front_mib + leak * n) for n, at in enumerate(GOOD)]
    core = [replace(at, core_mib=at.core_mib + leak * n) for n, at in enumerate(GOOD)]
    assert ["memory of the front grew" in words for words in faults(front, [])] == [True]
    assert ["memory of the core grew" in words for words in faults(core, [])] == [True]


def test_a_single_step_of_the_allocator_is_no_leak() -> None:
    stepped = [replace(at, core_mib=at.core_mib + 10 * (n >= 9)) for n, at in enumerate(GOOD)]
    assert growth(stepped, "core_mib") == 10
    assert faults(stepped, []) == []


def test_growth_of_too_short_a_run_is_not_known() -> None:
    assert growth(GOOD[:4], "core_mib") is None
    assert growth(GOOD[:5], "core_mib") == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"open_requests": 2}, "2 requests were open"),
        ({"blocks_in_use": 3}, "3 blocks were in use"),
        ({"accounted": 1}, "requests were received but 1 ended"),
        ({"live": False}, "/health/live was red"),
    ],
)
def test_what_is_left_over_at_any_checkpoint_is_told(change: dict[str, Any], words: str) -> None:
    bad = [*GOOD[:5], replace(GOOD[5], **change), *GOOD[6:]]
    assert [words in fault for fault in faults(bad, [])] == [True]


def test_open_files_and_unexpected_answers_are_told() -> None:
    last = replace(GOOD[-1], open_files=100)
    assert "100 files open" in faults([*GOOD[:-1], last], [])[0]
    assert faults(GOOD, ["short: status 500"]) == ["unexpected: short: status 500"]


def test_all_unexpected_outcomes_are_counted_and_a_few_of_each_kind_told() -> None:
    tally = Tally()
    for n in range(10):
        tally.fault("short", str(n))
    tally.fault("long", "x")
    assert tally.unexpected == 11
    assert tally.faults == ["short: 0", "short: 1", "short: 2", "long: x"]


def test_series_of_one_metric_are_summed() -> None:
    text = '# HELP a A.\n# TYPE a counter\na{code="400"} 2\na{code="503",x="y z"} 3.0\nb 1e-3\n'
    assert parse_metrics(text) == {"a": 5, "b": 0.001}


@pytest.mark.model
def test_a_short_soak_of_a_real_replica(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "STRETCHES", 2)
    arguments = ["soak", "--minutes", "0.1", "--model", "tiny", "--cache", str(cache), "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    kinds = {row["params"]["kind"] for row in rows if row["metric"] == "requests"}
    assert kinds >= {"short", "cancelled", "malformed", "several"}
    ends = {row["metric"]: row["value"] for row in rows if row["params"].get("at") == "end"}
    assert (ends["blocks_in_use"], ends["open_requests"], ends["unexpected"]) == (0, 0, 0)


def test_minutes_and_requests_exclude_each_other() -> None:
    assert CliRunner().invoke(app, ["soak", "--minutes", "1", "--requests", "100"]).exit_code == 2
