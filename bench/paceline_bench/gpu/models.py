"""Random Llamas: small ones for parity, and one of about a billion weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paceline_runtime.model.checkpoint import Checkpoint
from paceline_runtime.model.source import ModelInvalid
from paceline_runtime.model.spec import from_hf_config

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    # Wide enough that the likeliest token is clearly the likeliest.
    "initializer_range": 0.1,
}
"""Takes a moment on a CPU, too."""

BILLION: dict[str, Any] = {
    **SMALL,
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "initializer_range": 0.02,
}
"""1.24 billion weights, in the sizes of Llama 3.2 1B."""


def write_small(folder: Path) -> Path:
    """The small model as transformers saves it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(folder)
    return folder


class RandomCheckpoint(Checkpoint):
    """Random weights, made on the device when they are asked for."""

    def __init__(self, config: dict[str, Any], device: torch.device) -> None:
        self.spec = from_hf_config(config, {})
        self._deviation, self._device = config["initializer_range"], device

    def has(self, name: str) -> bool:
        """Every name."""
        return True

    def read(self, name: str) -> torch.Tensor:
        """None: the shape is not known."""
        raise ModelInvalid(f"{name} has no file")

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """See `Checkpoint`."""
        if len(shape) == 1:
            return torch.ones(shape, device=self._device)
        deviation: float = self._deviation
        return torch.randn(shape, device=self._device).mul_(deviation)
