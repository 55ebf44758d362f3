"""What `paceline bench fleet` counts, and what it says of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_bench.__main__ import app
from paceline_bench.fleet.command import rows_of
from paceline_bench.fleet.counting import calls
from paceline_bench.fleet.measure import Figures
from paceline_bench.fleet.nodes import ready

SECOND = "2026-11-30T10:00:%02d.500000Z"


def line(second: int, verb: str, resource: str, stage: str = "ResponseComplete", **about: str) -> dict[str, Any]:
    return {
        "verb": verb,
        "stage": stage,
        "requestURI": "/x",
        "objectRef": {"resource": resource, **about},
        "requestReceivedTimestamp": SECOND % second,
    }


@pytest.fixture
def log(tmp_path: Path) -> Path:
    lines = [
        line(1, "get", "leases"),
        line(2, "patch", "inferenceservices", subresource="status"),
        line(3, "watch", "pods", "ResponseStarted"),
        line(3, "watch", "pods"),
        line(9, "get", "leases"),
    ]
    path = tmp_path / "audit.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def test_calls_within_the_window_are_counted_and_a_watch_once(log: Path) -> None:
    begin = 1796032800.0  # 10:00:00
    found = calls(log, begin + 1, begin + 9)
    assert found == {"get leases": 1, "patch inferenceservices/status": 1, "watch pods": 1}


def test_the_lease_is_apart_from_the_calls_about_the_fleet() -> None:
    steady = Counter({"get leases": 20, "update leases": 20, "list pods": 1})
    figures = Figures(5.0, 2.0, 1000, Counter(), 60.0, steady, 0.01, 3.0, 1.0, 90.0)
    rows = {(row.metric, row.params.get("call")): row for row in rows_of("paceline", figures, {"services": 50})}
    assert rows["steady_api_calls_per_hour", None].value == 60
    assert rows["steady_lease_calls_per_hour", None].value == 2400
    assert rows["cpu_ms_per_event", None].value == 2.0
    assert rows["steady_api_calls", "list pods"].value == 1
    assert rows["steady_api_calls_per_hour", None].params == {"services": 50, "window_s": 60.0}


def test_a_simulated_pod_is_ready_for_everybody_who_looks() -> None:
    status = ready("127.96.0.1")
    assert status["podIP"] == "127.96.0.1"
    assert {"type": "Ready", "status": "True"} in status["conditions"]


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--system", "helm"], "none of paceline, kopf-only"), (["--profile"], "give --out")]
)
def test_wrong_use_is_refused_before_anything_starts(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["fleet", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert words in result.output
