"""How fast this machine could do the work at best: weights read once a step, matrices multiplied as fast as probed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Shape:
    """What of a dense Llama costs time.

    Attributes:
        layer_weights: weights of all layers' matrices.
        head_weights: weights of the matrix to the vocabulary.
        kv_values: numbers that one token of context has in the cache.
    """

    layer_weights: int
    head_weights: int
    kv_values: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> Shape:
        """From a model's `config.json`."""
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
        q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
        return Shape(
            layer_weights=layers * (2 * hidden * q + 2 * hidden * kv + 3 * hidden * config["intermediate_size"]),
            head_weights=hidden * config["vocab_size"],
            kv_values=layers * 2 * kv,
        )


def tokens_per_second(
    shape: Shape,
    dtype: str,
    *,
    batch: int,
    prompt_tokens: int,
    new_tokens: int,
    memory_gb_s: float,
    gemm_gflop_s: float,
) -> float:
    """The most new tokens per second of a batch, prefill included.

    The prompts cost their matrix products (2 operations per weight and token; the vocabulary for the last one only).
    Each further token is one step that reads all weights and the context once, or multiplies, whichever takes longer.

    Args:
        shape: of the model.
        dtype: of weights and cache, `float32` or `bfloat16`.
        batch: sequences.
        prompt_tokens: of each.
        new_tokens: of each; the first comes from the prefill.
        memory_gb_s: measured rate of reading, 1e9 bytes per second.
        gemm_gflop_s: measured rate of matrix products in this dtype, 1e9 operations per second.
    """
    memory, gemm, size = memory_gb_s * 1e9, gemm_gflop_s * 1e9, BYTES[dtype]
    weights = shape.layer_weights + shape.head_weights
    prefill = 2 * batch * (prompt_tokens * shape.layer_weights + shape.head_weights) / gemm
    seconds = max(prefill, weights * size / memory)
    for made in range(1, new_tokens):
        read = (weights + batch * shape.kv_values * (prompt_tokens + made)) * size / memory
        seconds += max(read, 2 * batch * weights / gemm)
    return batch * new_tokens / seconds
