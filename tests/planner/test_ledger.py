"""What fits, how many at a time, and where the ceilings are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_models import MODELS

from paceline_planner.accelerators import CATALOGUE, GIB, cpu, find
from paceline_planner.fitting import nearest, serves
from paceline_planner.ledger import (
    BYTES,
    Setup,
    arithmetic,
    bytes_read,
    compute_takes_over,
    decode_ceiling,
    kv_bytes_of_sequence,
    kv_bytes_per_token,
    ledger,
    weight_bytes,
)
from paceline_planner.shapes import shape_of

LLAMA = shape_of(MODELS["Llama-3.1-8B"].config)
LARGE = shape_of(MODELS["Llama-3.1-70B"].config)
DEEPSEEK = shape_of(MODELS["DeepSeek-V3"].config)
GEMMA = shape_of(MODELS["Gemma-2-9B"].config)

setups = st.builds(
    Setup,
    accelerator=st.sampled_from(list(CATALOGUE.values())),
    devices=st.sampled_from([1, 2, 4, 8]),
    weights=st.sampled_from(sorted(BYTES)),
    kv=st.sampled_from(["bf16", "fp8", "int8", "fp32"]),
    kv_scales=st.sampled_from(["tensor", "head", "token"]),
    block_size=st.sampled_from([8, 16, 32, 128]),
)
shapes = st.sampled_from([shape_of(public.config) for public in MODELS.values()])


def test_the_sum_for_an_8b_model_on_an_h100() -> None:
    """80 GiB - 16 GiB margin - 14.96 GiB weights = 49.04 GiB; at 128 KiB a token 25,110 blocks of 16."""
    found = ledger(LLAMA, Setup(find("H100")))
    assert found.memory == 80 * GIB
    assert found.margin == 16 * GIB
    assert found.weights == 2 * 8_030_261_248
    assert found.kv_per_token == 131072
    assert found.blocks == (80 * GIB - 16 * GIB - 2 * 8_030_261_248) // (131072 * 16)
    assert found.concurrency[8192] == found.blocks * 16 // 8192 == 49
    assert found.decode_ceiling[1] == pytest.approx(3350e9 / (2 * (8_030_261_248 - 128256 * 4096) + 2048 * 131072))
    assert found.compute_takes_over == round(2 / 3350e9 * 989e12 / 2)


def test_a_70b_model_does_not_fit_one_h100_and_the_nearest_setups_that_do_are_named() -> None:
    setup = Setup(find("H100"))
    found = ledger(LARGE, setup)
    assert not found.fits
    assert "weights 131.4 GiB (bf16, 70.55 B parameters) + margin 16.0 GiB" in arithmetic(found)
    assert arithmetic(found).endswith("leave -67.4 GiB for the KV cache: it does not fit")
    words = [suggestion.words for suggestion in nearest(LARGE, setup, 8192)]
    assert words == ["4 x H100 (tensor parallel)", "B200", "weights as int4"]


def test_a_context_that_is_too_long_is_shortened_to_what_fits() -> None:
    setup = Setup(find("L4"))
    found = ledger(LLAMA, setup)
    assert found.fits
    assert not serves(found, 131072)
    shorter = next(s for s in nearest(LLAMA, setup, 131072) if s.words.startswith("maxModelLen"))
    assert shorter.words == f"maxModelLen {found.blocks * 16} instead of 131072"


def test_a_sliding_window_holds_no_more_than_the_window_and_its_last_block() -> None:
    setup = Setup(find("H100"))
    per_token = kv_bytes_per_token(GEMMA, "bf16")
    assert kv_bytes_of_sequence(GEMMA, 4096, setup) == 4096 * per_token
    assert kv_bytes_of_sequence(GEMMA, 8192, setup) == round(per_token * (0.5 * 8192 + 0.5 * (4096 + 16)))


def test_a_quantised_cache_counts_its_scales() -> None:
    plain = kv_bytes_per_token(LLAMA, "bf16")
    assert kv_bytes_per_token(LLAMA, "fp8") * 2 == plain
    assert kv_bytes_per_token(LLAMA, "fp8", "token") == plain // 2 + 32 * 8 * 2 * 4
    assert kv_bytes_per_token(DEEPSEEK, "fp8", "token") == 61 * (576 + 4)


def test_more_devices_than_kv_heads_hold_copies() -> None:
    assert kv_bytes_per_token(LLAMA, "bf16", devices=8) == kv_bytes_per_token(LLAMA, "bf16")
    assert kv_bytes_per_token(LLAMA, "bf16", devices=16) == 2 * kv_bytes_per_token(LLAMA, "bf16")
    assert kv_bytes_per_token(DEEPSEEK, "bf16", devices=8) == 8 * 70272, "a latent vector is nobody's share"


def test_int4_weights_count_their_scales() -> None:
    assert weight_bytes(128, "int4") == 64 + 4


def test_what_is_not_known_of_a_cpu_is_not_made_up() -> None:
    setup = Setup(cpu(8 * GIB), weights="fp32", kv="fp32")
    small = shape_of(MODELS["SmolLM2-135M"].config)
    found = ledger(small, setup)
    assert found.fits
    assert set(found.decode_ceiling.values()) == {None}
    assert found.compute_takes_over is None
    measured = Setup(cpu(8 * GIB, bandwidth=20e9), weights="fp32", kv="fp32")
    assert decode_ceiling(small, measured, 1, 128) == pytest.approx(20e9 / bytes_read(small, measured, 1, 128))


def test_a_batch_reads_more_experts_until_it_reads_them_all() -> None:
    setup = Setup(find("H200"), devices=8)
    read = [bytes_read(DEEPSEEK, setup, batch, 16) for batch in (1, 8, 64, 4096)]
    assert read == sorted(read)
    every = 2 * (DEEPSEEK.parameters - 129280 * 7168)
    assert read[-1] - 4096 * kv_bytes_of_sequence(DEEPSEEK, 16, setup) == pytest.approx(every, rel=0.001)


def test_an_accelerator_is_found_however_it_is_written_and_others_are_listed() -> None:
    assert find("nvidia-h100").name == "H100"
    assert find("mi300x").name == "MI300X"
    assert find("A100").memory == 80 * GIB
    with pytest.raises(KeyError, match="H200"):
        find("GTX")


@given(shapes, setups)
def test_what_is_counted_never_passes_the_memory(shape, setup) -> None:  # type: ignore[no-untyped-def]
    found = ledger(shape, setup)
    if found.fits:
        used = found.weights + found.margin + found.blocks * found.kv_per_token * setup.block_size
        assert used <= found.memory
        for context, count in found.concurrency.items():
            assert count * kv_bytes_of_sequence(shape, context, setup) <= found.kv_room
        counts = list(found.concurrency.values())
        assert counts == sorted(counts, reverse=True)
    else:
        assert set(found.concurrency.values()) == {0}
    assert arithmetic(found)
    rate = compute_takes_over(shape, setup)
    assert rate is None or rate >= 1


@given(shapes, setups, st.sampled_from([1024, 8192, 65536]))
def test_every_suggestion_fits(shape, setup, context) -> None:  # type: ignore[no-untyped-def]
    for suggestion in nearest(shape, setup, context):
        assert suggestion.ledger.fits
        assert serves(suggestion.ledger, context) or suggestion.words.startswith("maxModelLen")
