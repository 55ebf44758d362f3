"""The shape of a model, read from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .rope import RopeSpec
from .source import ModelInvalid

# What each architecture has besides the common Llama network.
_QKV_BIAS = {"LlamaForCausalLM": False, "MistralForCausalLM": False, "Qwen2ForCausalLM": True}
SUPPORTED = tuple(_QKV_BIAS)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense decoder of the Llama family. Lengths in tokens, sizes in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: RopeSpec
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelInvalid(f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads")

    def kv_bytes_per_token(self, element_bytes: int, scale_bytes: int = 0) -> int:
        """Bytes of keys and values of one token over all layers: 2 × layers × KV heads × (head size × bytes + scale).

        Args:
            scale_bytes: of the scale that each head of a token has in a quantised cache.
        """
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * element_bytes + scale_bytes)


def from_hf_config(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelSpec:
    """The spec of a `config.json` (and `generation_config.json`, empty where there is none).

    Raises:
        ModelInvalid: if the architecture or one of its options is not supported, or a value is missing.
    """
    names = config.get("architectures") or []
    architecture = names[0] if names else None
    if architecture not in _QKV_BIAS:
        raise ModelInvalid(
            f"the architecture {architecture or 'of this model (config.json names none)'} is not supported; "
            f"supported are {', '.join(SUPPORTED)}"
        )
    if config.get("quantization_config"):
        raise ModelInvalid("the weights are quantised (quantization_config); use the unquantised model or a GGUF file")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelInvalid(f"the activation {activation!r} is not supported; supported is silu")
    max_position = _whole(config, "max_position_embeddings")
    window = config.get("sliding_window")
    windowed = architecture != "Qwen2ForCausalLM" or config.get("use_sliding_window", False)
    if window is not None and windowed and int(window) < max_position:
        raise ModelInvalid(f"sliding-window attention (window {window}) is not supported yet")
    heads = _whole(config, "num_attention_heads")
    hidden = _whole(config, "hidden_size")
    attention_bias = bool(config.get("attention_bias", False))
    return ModelSpec(
        architecture=architecture,
        vocab_size=_whole(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_whole(config, "intermediate_size"),
        num_layers=_whole(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        max_position=max_position,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=RopeSpec.from_hf_config(config),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=_QKV_BIAS[architecture] or attention_bias,
        output_bias=attention_bias and architecture == "LlamaForCausalLM",
        mlp_bias=bool(config.get("mlp_bias", False)),
        eos_token_ids=tuple(sorted({*_ids(config.get("eos_token_id")), *_ids(generation.get("eos_token_id"))})),
        bos_token_id=next(iter(_ids(config.get("bos_token_id"))), None),
    )


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelInvalid(f"config.json: {key} is {value!r}; it has to be a positive whole number")
    return value


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]
