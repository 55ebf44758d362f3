"""Reading models: both formats give the same network, and what cannot be served is refused with words."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paceline_crds.conditions import EXIT_MODEL_INVALID, EXIT_MODEL_NOT_FOUND
from paceline_runtime.model.checkpoint import digest, open_checkpoint
from paceline_runtime.model.rope import RopeSpec, inverse_frequencies
from paceline_runtime.model.source import ModelInvalid, ModelNotFound, locate


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("package://no-such-distribution-here", "not installed here"),
        ("package://pytest", "neither a GGUF file nor a config.json"),
        ("package://pytest/nothing", "has nothing at"),
        ("file:///no/such/folder", "nothing at /no/such/folder"),
        ("file://models/llama", "three slashes"),
        ("s3://org/name", "no model source"),
        ("smollm2", "no model source"),
    ],
)
def test_nothing_at_the_source_is_model_not_found(source: str, words: str) -> None:
    with pytest.raises(ModelNotFound, match=words) as error:
        locate(source)
    assert error.value.exit_code == EXIT_MODEL_NOT_FOUND


def copy(folder: Path, tmp_path: Path, **config: Any) -> Path:
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    path = target / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return target


def refused(folder: Path, words: str) -> None:
    with pytest.raises(ModelInvalid, match=words) as error:
        open_checkpoint(locate(folder.as_uri()))
    assert error.value.exit_code == EXIT_MODEL_INVALID


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported; supported are LlamaForCausalLM"),
        ({"architectures": None}, "names none"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, "sliding-window"),
    ],
)
def test_what_the_network_cannot_do_is_refused(
    tiny_model_dir: Path, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    refused(copy(tiny_model_dir, tmp_path, **config), words)


def test_damaged_and_missing_files_are_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = copy(tiny_model_dir, tmp_path)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) - 1000])
    refused(folder, r"model\.safetensors cannot be read")
    weights.unlink()
    refused(folder, "no .safetensors weights")
    (folder / "config.json").write_text("{")
    weights.write_bytes(content)
    refused(folder, "is not JSON")
    (folder / "config.json").unlink()
    refused(folder, "has no config.json")


def test_a_shard_that_is_missing_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = copy(tiny_model_dir, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, members in halves.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    (folder / "model.safetensors").unlink()
    weight_map = {name: shard for shard, members in halves.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = open_checkpoint(locate(folder.as_uri()))
    assert all(torch.equal(checkpoint.read(name), tensors[name]) for name in names)
    (folder / "b.safetensors").unlink()
    refused(folder, "missing: b.safetensors")


def test_a_tensor_of_the_wrong_shape_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(locate(copy(tiny_model_dir, tmp_path).as_uri()))
    with pytest.raises(ModelInvalid, match=r"model\.norm\.weight has shape \[64\]; the configuration asks for \[65\]"):
        checkpoint.tensor("model.norm.weight", 65)
    with pytest.raises(ModelInvalid, match="no tensor lm_head"):
        checkpoint.read("lm_head.weight")


def test_the_digest_follows_content_and_configuration_not_the_place(tiny_model_dir: Path, tmp_path: Path) -> None:
    same = copy(tiny_model_dir, tmp_path)
    (same / "config.json").write_bytes((tiny_model_dir / "config.json").read_bytes())
    before = digest(locate(tiny_model_dir.as_uri()))
    assert before.startswith("sha256:")
    assert digest(locate(same.as_uri())) == before
    weights = same / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert digest(locate(same.as_uri())) != before


def test_files_that_have_not_changed_are_hashed_once(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = locate(copy(tiny_model_dir, tmp_path).as_uri())
    first = digest(files)
    monkeypatch.setattr("paceline_runtime.model.checkpoint._hash", lambda parts: "sha256:again")
    assert digest(locate(files.path.as_uri())) == first
    os.utime(files.weights[0], (1, 1))
    assert digest(files) == "sha256:again"


def write_gguf(path: Path, folder: Path, quantised: bool = False) -> dict[str, torch.Tensor]:
    """The tiny model as llama.cpp's converter writes it; the tensors as they come out again."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_token_list(["<a>", "<b>", "ü"])
    writer.add_eos_token_id(2)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    expected: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        stem = name.removesuffix(".weight")
        layer = stem.split(".")[2] if stem.startswith("model.layers.") else None
        stem = stem.removeprefix(f"model.layers.{layer}.")
        target = f"blk.{layer}.{names[stem]}.weight" if layer is not None else f"{names[stem]}.weight"
        array = value.numpy()
        for projection, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if projection in name:
                rows, columns = array.shape
                array = array.reshape(count, 2, rows // count // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        if quantised and array.ndim == 2 and "q_proj" not in name and "k_proj" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quants.quantize(array, kind)
            writer.add_tensor(target, packed, raw_dtype=kind)
            expected[name] = torch.from_numpy(gguf.quants.dequantize(packed, kind))
        else:
            writer.add_tensor(target, np.ascontiguousarray(array))
            expected[name] = value
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.mark.parametrize("quantised", [False, True])
def test_gguf_gives_the_weights_and_the_spec_of_the_safetensors(
    tiny_model_dir: Path, tmp_path: Path, quantised: bool
) -> None:
    path = tmp_path / "tiny.gguf"
    expected = write_gguf(path, tiny_model_dir, quantised)
    checkpoint = open_checkpoint(locate(path.as_uri()))
    for name, value in expected.items():
        assert checkpoint.has(name)
        assert torch.equal(checkpoint.read(name), value), name
    other = open_checkpoint(locate(tiny_model_dir.as_uri())).spec
    for field in ("vocab_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "max_position", "rope"):
        if field == "rope":
            assert checkpoint.spec.rope.theta == other.rope.theta
        else:
            assert getattr(checkpoint.spec, field) == getattr(other, field), field
    assert checkpoint.spec.tied_embeddings
    assert checkpoint.spec.eos_token_ids == (2,)


def test_a_damaged_gguf_file_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model_dir)
    content = path.read_bytes()
    for keep in (3, 30, 200, len(content) // 2, len(content) - 4):
        path.write_bytes(content[:keep])
        with pytest.raises(ModelInvalid, match=r"tiny\.gguf"):
            open_checkpoint(locate(path.as_uri()))
    path.write_bytes(b"GGUX" + content[4:])
    with pytest.raises(ModelInvalid, match=r"tiny\.gguf cannot be read"):
        open_checkpoint(locate(path.as_uri()))
    path.write_bytes(content.replace(b"llama", b"mamba"))
    with pytest.raises(ModelInvalid, match="'mamba' is not supported"):
        open_checkpoint(locate(path.as_uri()))


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 5e5},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 2048},
        {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
            "attention_factor": 1.5,
            "beta_fast": 16,
        },
    ],
    ids=lambda p: p["rope_type"],
)
def test_rope_frequencies_are_those_of_transformers(parameters: dict[str, Any]) -> None:
    config = LlamaConfig(head_dim=64, max_position_embeddings=131072, rope_parameters=parameters)
    reference = LlamaRotaryEmbedding(config)
    ours, scale = inverse_frequencies(RopeSpec.from_hf_config(config.to_dict()), 64)
    torch.testing.assert_close(ours, reference.inv_freq, rtol=1e-6, atol=0)
    assert scale == pytest.approx(reference.attention_scaling)


@pytest.mark.model
def test_the_demo_models_weights_are_those_that_transformers_reads(smollm2_source: str, smollm2_reference: Any) -> None:
    checkpoint = open_checkpoint(locate(smollm2_source))
    compared = 0
    for name, value in smollm2_reference.state_dict().items():
        if name == "lm_head.weight":
            continue  # the embedding again
        assert torch.equal(checkpoint.read(name), value), name
        compared += value.numel()
    assert compared == 134_515_008
    assert checkpoint.spec.eos_token_ids == (2,)


def test_factory_options_reach_the_spec(tiny_model_factory: Callable[..., Path]) -> None:
    spec = open_checkpoint(locate(tiny_model_factory(tie_word_embeddings=False, attention_bias=True).as_uri())).spec
    assert not spec.tied_embeddings
    assert spec.qkv_bias
    assert spec.output_bias
