"""What is said of samples: medians, ratios taken round by round, equal answers, and a bound that physics sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline_bench.comparison import Case, Sample
from paceline_bench.models import LLAMA40M
from paceline_bench.results import SCHEMA, document, write_document
from paceline_bench.roofline import Shape, tokens_per_second
from paceline_bench.tables import comparison

UNITS = {"tokens_per_s": "1/s"}


def case(**rates: list[float]) -> Case:
    made = Case("llama40m", {"batch": 8, "dtype": "float32"})
    for system, values in rates.items():
        for value in values:
            made.add(system, Sample({"tokens_per_s": value}, [[1, 2], [3, 4 if system != "odd" else 5]]))
    return made


def test_a_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians() -> None:
    # The machine slows down tenfold in the second round, for both.
    rows = list(case(paceline=[300, 30, 310], vllm=[200, 20, 100]).rows(UNITS))
    ratio = next(row for row in rows if row.metric == "tokens_per_s_ratio")
    assert ratio.value == pytest.approx(1.5)
    assert (ratio.system, ratio.params["peer"]) == ("paceline", "vllm")
    assert (ratio.params["min"], ratio.params["max"]) == (pytest.approx(1.5), pytest.approx(3.1))


def test_each_figure_is_a_row_with_the_work_s_own_parameters() -> None:
    rows = [row for row in case(paceline=[3, 1, 2], vllm=[5]).rows(UNITS) if row.metric == "tokens_per_s"]
    assert [(row.work, row.system, row.value, row.unit) for row in rows] == [
        ("llama40m", "paceline", 2, "1/s"),
        ("llama40m", "vllm", 5, "1/s"),
    ]
    assert all(row.params["batch"] == 8 and row.params["dtype"] == "float32" for row in rows)


def test_answers_that_differ_from_ours_are_counted() -> None:
    made = case(paceline=[1, 1], odd=[1, 1], same=[1, 1])
    assert made.same_answers("odd") == (2, 4)
    assert made.same_answers("same") == (4, 4)
    percent = {row.params["peer"]: row.value for row in made.rows(UNITS) if row.metric == "same_answers_percent"}
    assert percent == {"odd": 50, "same": 100}


def test_peers_without_ours_beside_them_get_no_ratio() -> None:
    made = case(vllm=[1], odd=[2])
    assert {row.metric for row in made.rows(UNITS)} == {"tokens_per_s"}
    assert comparison("without ours", [made]).row_count == 2


def test_the_document_follows_the_schema(tmp_path: Path) -> None:
    path = write_document(tmp_path / "out", document(case(paceline=[1]).rows(UNITS), {"vllm": "not installed"}))
    content = json.loads(path.read_text())
    assert set(content) == {"schema", "made", "machine", "versions", "rows"}
    assert content["schema"] == SCHEMA
    assert content["versions"]["vllm"] == "not installed"
    assert set(content["rows"][0]) == {"work", "system", "metric", "value", "unit", "params"}


def bound(batch: int, *, memory: float = 50, gemm: float = 1e9, prompt: int = 64, dtype: str = "float32") -> float:
    return tokens_per_second(
        Shape.of(LLAMA40M),
        dtype,
        batch=batch,
        prompt_tokens=prompt,
        new_tokens=32,
        memory_gb_s=memory,
        gemm_gflop_s=gemm,
    )


def test_where_multiplying_costs_nothing_reading_the_weights_is_the_bound() -> None:
    shape = Shape.of(LLAMA40M)
    weights = shape.layer_weights + shape.head_weights
    assert weights == pytest.approx(40e6, rel=0.01)
    assert bound(1) == pytest.approx(50e9 / (4 * weights), rel=0.02)
    assert bound(1, memory=100) == pytest.approx(2 * bound(1))
    assert bound(1, dtype="bfloat16") == pytest.approx(2 * bound(1))


def test_where_reading_costs_nothing_operations_are_the_bound() -> None:
    shape = Shape.of(LLAMA40M)
    per_token = 2 * (shape.layer_weights + shape.head_weights)
    assert bound(32, memory=1e9, gemm=400, prompt=1) == pytest.approx(400e9 / per_token, rel=0.01)
    assert bound(32, memory=1e9, gemm=400, prompt=640) < bound(32, memory=1e9, gemm=400, prompt=64)
