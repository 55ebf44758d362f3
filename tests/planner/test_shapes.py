"""Counting models from their configs, against what is published and against HF transformers."""

from __future__ import annotations

from typing import Any

import pytest
from public_models import MODELS

from paceline_planner.ledger import kv_bytes_per_token
from paceline_planner.shapes import UnknownModel, shape_of

EACH = pytest.mark.parametrize("name", MODELS)


@EACH
def test_parameters_are_those_that_the_makers_publish(name: str) -> None:
    public = MODELS[name]
    shape = shape_of(public.config)
    assert shape.parameters / 1e9 == pytest.approx(public.billions, rel=0.005), public.source
    assert shape.assumed == ()


@pytest.mark.parametrize("name", [name for name, public in MODELS.items() if public.active_billions is not None])
def test_active_parameters_are_those_that_the_makers_publish(name: str) -> None:
    public = MODELS[name]
    shape = shape_of(public.config)
    # gpt-oss leaves the table of input embeddings out, the others count it.
    counted = shape.worked_parameters if name == "gpt-oss-20b" else shape.active_parameters
    assert counted / 1e9 == pytest.approx(public.active_billions, rel=0.02), public.source


@EACH
def test_parameters_are_those_of_the_independent_implementation(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**MODELS[name].config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = sum(p.numel() for p in model.parameters())
    # What balances DeepSeek's experts is a buffer there: one value for each expert of 58 layers.
    buffers = 58 * 256 if name == "DeepSeek-V3" else 0
    assert shape_of(MODELS[name].config).parameters == theirs + buffers


@pytest.mark.parametrize("name", [name for name, public in MODELS.items() if public.kv_bytes is not None])
def test_the_cache_of_a_token_is_what_is_published(name: str) -> None:
    public = MODELS[name]
    assert kv_bytes_per_token(shape_of(public.config), "bf16") == public.kv_bytes, public.kv_source


def test_a_model_with_a_head_for_every_query_costs_what_the_requirement_says() -> None:
    """60 layers x 48 heads x 128 in 16 bit: 1.47 MB a token."""
    config = MODELS["Llama-3.1-8B"].config | {
        "num_hidden_layers": 60,
        "num_attention_heads": 48,
        "num_key_value_heads": 48,
        "head_dim": 128,
    }
    assert kv_bytes_per_token(shape_of(config), "fp16") / 1e6 == pytest.approx(1.47, abs=0.005)


def test_sliding_layers_are_found_in_every_way_that_configs_have() -> None:
    base = MODELS["Gemma-2-9B"].config
    assert (shape_of(base).window, shape_of(base).sliding_layers) == (4096, 21)
    named = base | {"layer_types": ["sliding_attention"] * 30 + ["full_attention"] * 12}
    assert shape_of(named).sliding_layers == 30
    every_sixth = base | {"model_type": "gemma3_text", "sliding_window_pattern": 6}
    assert shape_of(every_sixth).sliding_layers == 35
    assert shape_of(MODELS["Qwen2.5-7B"].config).window is None, "use_sliding_window is false"
    assert shape_of(MODELS["Mistral-7B-v0.1"].config).sliding_layers == 32


def test_the_language_half_of_a_model_that_sees_is_counted() -> None:
    inner = MODELS["Llama-3.1-8B"].config
    outer = {"model_type": "llava", "text_config": inner, "vision_config": {"hidden_size": 1}}
    assert shape_of(outer).parameters == shape_of(inner).parameters


def test_an_unknown_family_is_counted_like_llama_and_says_so() -> None:
    shape = shape_of(MODELS["Llama-3.1-8B"].config | {"model_type": "newcomer"})
    assert shape.assumed == ("the family newcomer is counted like Llama",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "no `hidden_size`"),
        ({"num_hidden_layers": "32"}, "whole number"),
        ({"vocab_size": -1}, "whole number"),
        ({"num_attention_heads": True}, "whole number"),
    ],
)
def test_a_config_that_cannot_be_counted_says_what_is_missing(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnknownModel, match=words):
        shape_of(MODELS["Llama-3.1-8B"].config | change)
