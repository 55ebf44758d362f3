"""Alerts, boards and monitors of the chart, through the real helm; rules through the real promtool."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import run

from paceline_crds import names
from paceline_local import install
from paceline_local.cluster import Cluster, CommandError
from paceline_observability.catalogue import TARGET_LABELS, stored_labels
from paceline_observability.dashboards import BOARDS

pytestmark = pytest.mark.cluster

CHART = str(Path(__file__).parents[2] / "charts" / "paceline")
MONITORING = "monitoring.coreos.com/v1"
OPERATED = tuple(f"--api-versions={MONITORING}/{kind}" for kind in ("PrometheusRule", "PodMonitor"))


def render(cluster: Cluster, *flags: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    text = cluster.helm("template", "paceline", CHART, "--namespace", "paceline-system", *flags)
    return {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(text) if d}


def test_rules_are_a_config_map_that_promtool_accepts(control_plane: Cluster, tmp_path: Path) -> None:
    rules = render(control_plane)["ConfigMap", "paceline-alerts"]["data"]["paceline.rules.yaml"]
    (tmp_path / "rules.yaml").write_text(rules, encoding="utf-8")
    assert "SUCCESS: 9 rules found" in run("check", "rules", "rules.yaml", folder=tmp_path)


def test_where_prometheus_is_operated_the_same_rules_are_an_object_of_its_own(control_plane: Cluster) -> None:
    plain = render(control_plane)["ConfigMap", "paceline-alerts"]["data"]["paceline.rules.yaml"]
    objects = render(control_plane, *OPERATED, "--set", "monitoring.labels.release=stack")
    rule = objects["PrometheusRule", "paceline-alerts"]
    assert rule["apiVersion"] == MONITORING
    assert rule["spec"] == yaml.safe_load(plain)
    assert rule["metadata"]["labels"]["release"] == "stack"
    assert ("ConfigMap", "paceline-alerts") not in objects


def test_runbooks_can_be_anywhere(control_plane: Cluster) -> None:
    at = "https://wiki.example/runbooks/"
    text = render(control_plane, "--set", f"monitoring.runbookURL={at}")["ConfigMap", "paceline-alerts"]["data"]
    rules = yaml.safe_load(text["paceline.rules.yaml"])["groups"][0]["rules"]
    assert {rule["annotations"]["runbook_url"] for rule in rules} == {f"{at}{rule['alert']}.md" for rule in rules}
    with pytest.raises(CommandError, match="runbookURL"):
        render(control_plane, "--set", "monitoring.runbookURL=wiki")


def test_a_page_for_each_alert_is_in_the_cluster_and_each_alert_says_how_to_read_it(control_plane: Cluster) -> None:
    objects = render(control_plane, "--namespace", "elsewhere")
    pages = objects["ConfigMap", "paceline-runbooks"]
    rules = yaml.safe_load(objects["ConfigMap", "paceline-alerts"]["data"]["paceline.rules.yaml"])["groups"][0]["rules"]
    assert pages["data"].keys() == {f"{rule['alert']}.md" for rule in rules}
    control_plane.kubectl("create", "namespace", "elsewhere")
    control_plane.apply(yaml.safe_dump(pages))
    for rule in rules:
        program, *words = shlex.split(rule["annotations"]["runbook"])
        assert program == "kubectl"
        assert control_plane.kubectl(*words).startswith(f"# {rule['alert']}\n")
    control_plane.kubectl("delete", "namespace", "elsewhere", "--wait=false")


def test_boards_are_found_by_grafanas_sidecar(control_plane: Cluster) -> None:
    boards = render(control_plane)["ConfigMap", "paceline-dashboards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        f"paceline-{board.name}.json": board.json() for board in BOARDS
    }


def test_monitors_scrape_what_rules_count_on_as_the_local_prometheus_does(control_plane: Cluster) -> None:
    objects = render(control_plane, *OPERATED)
    replicas = objects["PodMonitor", "paceline-replicas"]["spec"]
    assert replicas["namespaceSelector"] == {"any": True}
    assert replicas["selector"]["matchExpressions"] == [{"key": names.LABEL_SERVICE, "operator": "Exists"}]
    system = objects["PodMonitor", "paceline-system"]["spec"]
    for component in ("operator", "router"):
        pods = objects["Deployment", f"paceline-{component}"]["spec"]["template"]["metadata"]["labels"]
        assert system["selector"]["matchLabels"].items() <= pods.items()
    local = next(d for d in yaml.safe_load_all(install.prometheus_manifest("https://127.0.0.1")) if "data" in d)
    (job,) = yaml.safe_load(local["data"]["prometheus.yml"])["scrape_configs"]
    relabelled = {
        rule["target_label"]: rule["source_labels"] for rule in job["relabel_configs"] if "target_label" in rule
    }
    for monitor in (replicas, system):
        (endpoint,) = monitor["podMetricsEndpoints"]
        assert endpoint["port"] == names.REPLICA_PORT_NAME
        assert endpoint["honorLabels"] is True
        # What Prometheus' operator adds itself is left out.
        given = {rule["targetLabel"]: rule["sourceLabels"] for rule in endpoint["relabelings"]}
        assert given == {label: source for label, source in relabelled.items() if label not in ("namespace", "pod")}
        assert {*given, "namespace", "pod", *TARGET_LABELS} >= stored_labels("paceline_config_info") - {
            "pool_hash",
            "config_hash",
        }


@pytest.mark.parametrize("what", ["alerts", "dashboards", "podMonitors"])
def test_each_can_be_left_out(control_plane: Cluster, what: str) -> None:
    with_it, without = (
        render(control_plane, *OPERATED),
        render(control_plane, *OPERATED, "--set", f"monitoring.{what}=false"),
    )
    left_out = {"alerts": 2, "dashboards": 1, "podMonitors": 2}[what]
    assert len(with_it) - len(without) == left_out
    assert without.keys() < with_it.keys()
