"""What Prometheus' own promtool says of rules: the shipped ones, on series that a test writes down."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from paceline_local import build
from paceline_observability.alerts import Windows, rule_file

STEP = "15s"
"""Between the values of a series: the interval of scrapes in the clusters that the rules are for."""

CHAT = 'namespace="demo", service="chat"'
POD = f'{CHAT}, pool="default", pod="chat-0"'
MODEL = f'{POD}, model_name="m"'

WELL = {
    'paceline_router_table_synced{pod="router-0"}': "1x400",
    'paceline_operator_leader{pod="operator-0"}': "1x400",
}
"""A Paceline that is there and quiet; without it PacelineMetricsMissing tells of that."""

MINUTE = "1m"
"""Between values that are about hours."""


def run(*arguments: str, folder: Path) -> str:
    """Standard output of promtool; an assertion error with all it said where it is not content."""
    tool = build.ensure_built(build.PROMETHEUS) / "promtool"
    done = subprocess.run([tool, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"promtool {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def firing(series: Mapping[str, str], expected: Mapping[str, Mapping[str, Sequence[str]]], step: str = STEP) -> None:
    """Hold what fires at certain times, and that nothing else does.

    Args:
        series: values by series, in promtool's notation, every `step`. A scrape that fails is `stale`, since `_` is
            only a missing sample.
        expected: by time and by the alert's name, the labels of each that fires, `severity` left out.
    """
    checks = [
        {
            "expr": 'max without (alertstate, severity) (ALERTS{alertstate="firing"})',
            "eval_time": time,
            "exp_samples": [
                {"labels": f'{{alertname="{name}"{", " + labels if labels else ""}}}', "value": 1}
                for name, several in alerts.items()
                for labels in several
            ],
        }
        for time, alerts in expected.items()
    ]
    _test({"promql_expr_test": checks}, series, step)


def told(
    series: Mapping[str, str], at: str, alert: str, labels: Mapping[str, str], summary: str, step: str = STEP
) -> None:
    """Hold all labels and words of the one alert of a name that fires at a time."""
    read = f"kubectl get configmap paceline-runbooks -n paceline-system -o jsonpath='{{.data.{alert}\\.md}}'"
    annotations = {"summary": summary, "runbook_url": f"docs/runbooks/{alert}.md", "runbook": read}
    one = {"exp_labels": dict(labels), "exp_annotations": annotations}
    _test({"alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": [one]}]}, series, step)


def _test(checks: Mapping[str, Any], series: Mapping[str, str], step: str) -> None:
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": step, "input_series": given, **checks}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rules.yaml").write_text(rule_file(Windows()), encoding="utf-8")
        document = {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": "30s" if step == STEP else step,
            "tests": [test],
        }
        (Path(folder) / "test.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        run("test", "rules", "test.yaml", folder=Path(folder))
