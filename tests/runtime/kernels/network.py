"""A small network on the Triton kernels in the interpreter, beside the same one on the CPU's: prints the differences.

Run by `test_network.py`, in a process of its own.
"""

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from paceline_runtime.kernels import cpu, gpu
from paceline_runtime.kernels.interface import Kernels, KVCache
from paceline_runtime.kernels.plan import AttentionShape, plan_attention
from paceline_runtime.model.checkpoint import Checkpoint
from paceline_runtime.model.llama import LlamaModel
from paceline_runtime.model.spec import ModelSpec, from_hf_config

BLOCK_SIZE = 8
SPEC = from_hf_config(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    {},
)
TABLE = np.array([[3, 9, 1, 4, 10], [20, 2, 11, 6, 13], [7, 8, 5, 0, 21]], dtype=np.int32)
STEPS = [
    [(0, 33), (0, 0), (0, 0)],
    [(33, 1), (0, 17), (0, 0)],
    [(34, 1), (17, 9), (0, 16)],
    [(35, 1), (26, 1), (16, 1)],
]
"""For each of three sequences of each step: tokens in the cache already, and new ones."""


class RandomCheckpoint(Checkpoint):
    """Random weights, the same ones for the same name."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    def has(self, name: str) -> bool:
        return True

    def read(self, name: str) -> torch.Tensor:
        raise NotImplementedError(name)

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        value = torch.randn(shape, generator=torch.Generator().manual_seed(sum(map(ord, name))))
        return 1 + 0.2 * value if len(shape) == 1 else value / shape[1] ** 0.5


@torch.inference_mode()
def logits(kernels: Kernels) -> list[torch.Tensor]:
    """Of every new token of every step."""
    device, dtype = torch.device("cpu"), torch.float32
    model = LlamaModel(
        RandomCheckpoint(SPEC), kernels, device=device, dtype=dtype, weight_dtype=dtype, max_position=128
    )
    shape = (24, BLOCK_SIZE, SPEC.num_kv_heads, SPEC.head_dim)
    caches = [KVCache(torch.zeros(shape), torch.zeros(shape)) for _ in range(SPEC.num_layers)]
    made = []
    for step in STEPS:
        new = np.array([count for _, count in step], dtype=np.int32)
        lengths = new + np.array([before for before, _ in step], dtype=np.int32)
        positions = [np.arange(before, before + count) for before, count in step]
        slots = [TABLE[row, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for row, at in enumerate(positions)]
        plan = plan_attention(
            torch.from_numpy(TABLE),
            torch.from_numpy(lengths),
            torch.from_numpy(np.concatenate(([0], np.cumsum(new))).astype(np.int32)),
            host_seq_lens=lengths,
            host_query_lens=new,
            shape=AttentionShape(SPEC.num_heads, SPEC.num_kv_heads, SPEC.head_dim, 4),
            processors=4,
            to_device=torch.from_numpy,
            num_splits=2,
        )
        at = torch.from_numpy(np.concatenate(positions))
        rows = torch.arange(len(at))
        tokens = (at * 7 + rows) % SPEC.vocab_size
        made.append(model.forward(tokens, at, caches, torch.from_numpy(np.concatenate(slots)).long(), plan, rows))
    return made


if __name__ == "__main__":
    torch.set_num_threads(1)
    pairs = list(zip(logits(gpu), logits(cpu), strict=True))
    print(json.dumps([[float((a - b).abs().max()), float(b.abs().max())] for a, b in pairs]))
