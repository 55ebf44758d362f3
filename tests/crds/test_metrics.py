from __future__ import annotations

import re
import subprocess
import sys

import pytest

from paceline_crds import metrics
from paceline_crds.metrics import CATALOGUE, Metric

every_metric = pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)


def test_every_component_has_its_part_and_the_parts_are_the_whole() -> None:
    parts = (metrics.RUNTIME, metrics.ROUTER, metrics.OPERATOR, metrics.RECORDER)
    assert all(parts)
    assert sum(parts, ()) == CATALOGUE


def test_no_two_families_share_a_series() -> None:
    def series(metric: Metric) -> list[str]:
        if metric.kind == "histogram":
            return [metric.name + suffix for suffix in ("", "_bucket", "_sum", "_count")]
        return [metric.name]

    names = [name for metric in CATALOGUE for name in series(metric)]
    assert len(names) == len(set(names))


@every_metric
def test_names_follow_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"(vllm:)?[a-z][a-z0-9_]*", metric.name)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in metric.labels)
    assert len(set(metric.labels)) == len(metric.labels)
    # The one histogram of vLLM that is named like a counter keeps its name.
    assert metric.name.endswith("_total") == (metric.kind == "counter" or metric.name == "vllm:iteration_tokens_total")
    assert not metric.name.endswith(("_bucket", "_sum", "_count", "_created"))
    for unit in ("seconds", "bytes"):
        assert (re.search(rf"_{unit}(_total)?$", metric.name) is not None) == (metric.unit == unit)


@every_metric
def test_help_fits_a_table_and_the_exposition(metric: Metric) -> None:
    assert metric.help
    assert not set(metric.help) & set('|\\\n"')


@pytest.mark.parametrize("metric", metrics.RUNTIME, ids=lambda metric: metric.name)
def test_the_engine_leaves_to_scraping_what_scraping_adds(metric: Metric) -> None:
    assert not set(metric.labels) & set(metrics.SCRAPE_LABELS)


@pytest.mark.parametrize("metric", [m for m in CATALOGUE if m.kind == "histogram"], ids=lambda metric: metric.name)
def test_a_histogram_has_a_shape_or_a_tenant_but_not_both(metric: Metric) -> None:
    assert not {"shape", "tenant"} <= set(metric.labels)
    assert "prompt_version" not in metric.labels


def test_reading_the_catalogue_brings_no_library_along() -> None:
    code = (
        "import sys; before = set(sys.modules); import paceline_crds.metrics;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said.split() == ["paceline_crds"]
