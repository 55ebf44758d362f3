"""The scheduler's benchmark drives the real scheduler with a batch and a queue that stay full."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from paceline_bench.__main__ import app
from paceline_bench.scheduling import RULES, loads, percentile, run


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("load", loads(40))
def test_every_step_with_a_full_batch_is_timed(rules: str, load: str) -> None:
    timed = run(RULES[rules], loads(40)[load], running=4, waiting=12, steps=40)
    assert len(timed.schedule) == len(timed.update) == len(timed.whole) == 40
    assert min(timed.whole) > 0


def test_results_have_each_rule_under_both_loads() -> None:
    result = CliRunner().invoke(app, ["scheduling", "--running", "2", "--waiting", "3", "--steps", "10", "-o", "json"])
    rows = json.loads(result.stdout)["rows"]
    assert {(row["params"]["rules"], row["params"]["load"]) for row in rows} == {
        (rules, load) for rules in RULES for load in loads(10)
    }
    assert all(row["work"] == "scheduling" and row["unit"] == "ms" for row in rows)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile(list(range(100)), 99) == 99
    assert percentile([3.0], 99) == 3.0
