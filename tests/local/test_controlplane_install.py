"""What is put into a cluster: Prometheus' manifest, and where the router is expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_local import install
from paceline_local.cluster import PROMETHEUS_SERVICE, Cluster
from paceline_local.errors import LocalError


def documents(server: str = "https://127.64.0.1:6443") -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(install.prometheus_manifest(server))}


def scrape_config(server: str = "https://127.64.0.1:6443") -> dict[str, Any]:
    config = yaml.safe_load(documents(server)["ConfigMap"]["data"]["prometheus.yml"])
    (job,) = config["scrape_configs"]
    found: dict[str, Any] = job
    return found


def test_prometheus_finds_pods_through_the_clusters_own_api_server_with_its_ca() -> None:
    (discovery,) = scrape_config("https://127.70.0.1:6443")["kubernetes_sd_configs"]
    assert discovery["role"] == "pod"
    assert discovery["api_server"] == "https://127.70.0.1:6443"
    # Relative names: they hold wherever the volume is mounted.
    assert discovery["authorization"] == {"credentials_file": "token"}
    assert discovery["tls_config"] == {"ca_file": "ca.crt"}
    paths = set()
    for source in documents()["Deployment"]["spec"]["template"]["spec"]["volumes"][1]["projected"]["sources"]:
        if "serviceAccountToken" in source:
            paths.add(source["serviceAccountToken"]["path"])
        else:
            paths |= {item["path"] for item in source["configMap"].get("items", [])}
    assert paths == {"token", "ca.crt"}


def test_only_ports_named_metrics_are_scraped_and_pods_labels_become_series_labels() -> None:
    rules = scrape_config()["relabel_configs"]
    assert rules[0] == {
        "source_labels": ["__meta_kubernetes_pod_container_port_name"],
        "regex": "metrics",
        "action": "keep",
    }
    targets = {rule["target_label"]: rule["source_labels"] for rule in rules if "target_label" in rule}
    assert set(targets) >= {"namespace", "pod", "service", "pool", "revision"}
    assert targets["revision"] == ["__meta_kubernetes_pod_label_paceline_io_pool_hash"]


def test_another_configuration_is_another_pod() -> None:
    def checksum(server: str) -> str:
        template = documents(server)["Deployment"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["paceline.io/config-checksum"])

    assert checksum("https://127.64.0.1:6443") == checksum("https://127.64.0.1:6443")
    assert checksum("https://127.64.0.1:6443") != checksum("https://127.65.0.1:6443")


def test_the_charts_alerts_are_a_file_of_prometheus_and_other_ones_another_pod() -> None:
    def with_rules(rules: str | None) -> dict[str, dict[str, Any]]:
        text = install.prometheus_manifest("https://127.64.0.1:6443", rules)
        return {document["kind"]: document for document in yaml.safe_load_all(text)}

    some, others, none = (with_rules(rules) for rules in ("groups: []", "groups: [{}]", None))
    config = yaml.safe_load(some["ConfigMap"]["data"]["prometheus.yml"])
    (file,) = config["rule_files"]
    assert some["ConfigMap"]["data"][file] == "groups: []"
    assert "rule_files" not in yaml.safe_load(none["ConfigMap"]["data"]["prometheus.yml"])
    sums = {json.dumps(one["Deployment"]["spec"]["template"]["metadata"]) for one in (some, others, none)}
    assert len(sums) == 3


def test_prometheus_may_read_pods_and_nothing_else() -> None:
    assert documents()["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]


def test_its_service_is_where_it_is_looked_for() -> None:
    metadata = documents()["Service"]["metadata"]
    assert f"{metadata['namespace']}/{metadata['name']}" == PROMETHEUS_SERVICE


def test_a_checkout_without_the_chart_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.paths, "checkout_root", lambda: tmp_path)
    cluster = Cluster(tmp_path, "https://127.64.0.1:6443", tmp_path, tmp_path, tmp_path)
    with pytest.raises(LocalError, match=r"no chart in .*`--bare` brings the cluster up without"):
        install.install_paceline(cluster)


def test_the_router_is_expected_at_the_first_address_for_services(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "https://127.99.0.1:6443", tmp_path, tmp_path, tmp_path)
    assert install.expected_router_url(cluster) == "http://127.99.250.1:8080"
