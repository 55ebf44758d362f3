"""What is made of all metrics together: the page, and the labels that queries may use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_crds import metrics
from paceline_crds.metrics import ROUTER, RUNTIME, Metric
from paceline_observability.catalogue import BY_NAME, BY_SERIES, CATALOGUE, series, stored_labels
from paceline_observability.catalogue.page import markdown
from paceline_operator.rollout.state import Phase
from paceline_router.report.labels import OTHER
from paceline_router.report.service import REFUSALS, RETRY_REASONS
from paceline_router.shadow.counts import OUTCOMES, PAIRS, SKIPPED
from paceline_router.table.pools import Spill
from paceline_runtime.engine.story import PreemptionReason, WaitReason
from paceline_runtime.messages import StepPhases
from paceline_shadow_traffic.recorder.recorder import RECEIVED
from paceline_shadow_traffic.recorder.replaying import OUTCOMES as REPLAYS
from paceline_shadow_traffic.verdict import Verdict

PAGE = Path("docs/reference/metrics.md")
ROOT = Path(__file__).parents[2]


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline_observability", "--write", str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_the_committed_page_is_the_one_the_catalogue_generates() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == markdown(), "run `make crds`"


def test_the_command_writes_the_page_where_it_is_committed(tmp_path: Path) -> None:
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).touch()
    assert str(tmp_path / PAGE) in run(tmp_path).stdout.splitlines()
    assert (tmp_path / PAGE).read_text(encoding="utf-8") == (ROOT / PAGE).read_text(encoding="utf-8")


def test_nothing_is_written_outside_a_checkout(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nonexistent"):
        done = run(folder)
        assert done.returncode == 2
        assert "checkout" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_page_has_a_row_for_every_metric() -> None:
    rows = re.findall(r"^\| `(.+?)` \|", markdown(), re.MULTILINE)
    assert rows == [metric.name for metric in CATALOGUE]


def test_every_series_leads_to_its_metric() -> None:
    assert {metric.name for metric in BY_SERIES.values()} == BY_NAME.keys()
    for metric in CATALOGUE:
        assert all(BY_SERIES[name] is metric for name in series(metric))
    assert "paceline_router_ttft_seconds" not in BY_SERIES
    assert BY_SERIES["paceline_router_ttft_seconds_bucket"].name == "paceline_router_ttft_seconds"


def test_a_bucket_has_its_bound_and_nothing_else_has_one() -> None:
    for name in BY_SERIES:
        assert ("le" in stored_labels(name)) == name.endswith("_bucket")


def test_scraping_tells_the_replica_of_its_own_series_only() -> None:
    for metric in RUNTIME:
        assert all(
            {"namespace", "service", "pool", "revision", "pod"} <= stored_labels(name) for name in series(metric)
        )
    in_flight = stored_labels("paceline_router_requests_in_flight")
    assert {"namespace", "service", "pod"} <= in_flight
    assert not {"pool", "revision"} & in_flight
    assert all({"namespace", "pod"} <= stored_labels(name) for metric in ROUTER for name in series(metric))


def test_a_series_that_nobody_makes_is_told() -> None:
    with pytest.raises(KeyError, match="made_up"):
        stored_labels("made_up")


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        (metrics.RUNTIME_WAITING_BY_REASON, list(WaitReason)),
        (metrics.RUNTIME_PREEMPTIONS_BY, list(PreemptionReason)),
        (metrics.RUNTIME_STEP_PHASE, StepPhases.__struct_fields__),
        (metrics.ROUTER_RETRIES, RETRY_REASONS),
        (metrics.ROUTER_REFUSED, [reason for reason in REFUSALS if reason != OTHER]),
        (metrics.ROUTER_SPILLS, [spill.label for spill in Spill if spill]),
        (metrics.ROUTER_SHADOW_COPIES, OUTCOMES),
        (metrics.ROUTER_SHADOW_SKIPPED, SKIPPED),
        (metrics.ROUTER_SHADOW_PAIRS, PAIRS),
        (metrics.OPERATOR_ROLLOUT_PHASE, list(Phase)),
        (metrics.OPERATOR_ROLLOUT_VERDICT, list(Verdict)),
        (metrics.RECORDER_PAIRS, RECEIVED),
        (metrics.RECORDER_REPLAYS, REPLAYS),
    ],
    ids=lambda value: value.name if isinstance(value, Metric) else "",
)
def test_the_meaning_of_a_metric_names_every_value_that_its_label_can_have(metric: Metric, values: list[str]) -> None:
    words = set(re.findall(r"\w+", metric.help))
    assert set(map(str, values)) <= words
