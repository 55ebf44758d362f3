"""The Llama network in PyTorch with its cache: the reference for the native kernels, and what runs on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .attention import AttentionMetadata, TorchAttention
from .checkpoint import Checkpoint
from .inputs import SequenceInput
from .llama import LlamaModel


@dataclass(frozen=True, slots=True)
class TorchStep:
    """One step's tensors, on the device."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetadata
    attention: TorchAttention
    logit_rows: torch.Tensor


class TorchLlama:
    """Weights and cache on one device; activations and cache in `dtype`."""

    mapped_bytes = 0

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        block_size: int,
        max_position: int,
    ) -> None:
        self._device, self._dtype, self._block_size = device, dtype, block_size
        self._model = LlamaModel(
            checkpoint, device=device, dtype=dtype, weight_dtype=weight_dtype, max_position=max_position
        )
        self.spec = checkpoint.spec
        self.num_parameters = self._model.num_parameters
        self._cache: list[tuple[torch.Tensor, torch.Tensor]] = []

    def allocate_cache(self, num_blocks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values [blocks, block_size, kv_heads, head_dim] of each layer."""
        shape = (num_blocks, self._block_size, self.spec.num_kv_heads, self.spec.head_dim)

        def zeros() -> torch.Tensor:
            # Written, not merely reserved: a padded row of a block table reads block 0, and memory that is not there
            # should fail now, not under load.
            return torch.empty(shape, dtype=self._dtype, device=self._device).zero_()

        self._cache = [(zeros(), zeros()) for _ in range(self.spec.num_layers)]
        return self._cache

    def prepare(self, seqs: Sequence[SequenceInput]) -> TorchStep:
        """Tensors for one step of these sequences."""
        query_lens = np.array([len(seq.tokens) for seq in seqs], dtype=np.int32)
        seq_lens = np.array([seq.start + len(seq.tokens) for seq in seqs], dtype=np.int32)
        ends = np.cumsum(query_lens)
        table = np.zeros((len(seqs), max(len(seq.blocks) for seq in seqs)), dtype=np.int32)
        positions = np.empty(int(ends[-1]), dtype=np.int64)
        slots = np.empty_like(positions)
        for row, seq in enumerate(seqs):
            table[row, : len(seq.blocks)] = seq.blocks
            where = np.arange(seq.start, int(seq_lens[row]))
            span = slice(int(ends[row] - query_lens[row]), int(ends[row]))
            positions[span] = where
            slots[span] = table[row, where // self._block_size] * np.int64(self._block_size) + where % self._block_size
        tokens = np.fromiter((token for seq in seqs for token in seq.tokens), dtype=np.int64, count=len(positions))
        wanted = [np.arange(end - seq.num_logits, end) for end, seq in zip(ends.tolist(), seqs, strict=True)]
        metadata = AttentionMetadata(
            block_table=self._to_device(table),
            seq_lens=self._to_device(seq_lens),
            query_start_loc=self._to_device(np.concatenate(([0], ends)).astype(np.int32)),
            slot_mapping=self._to_device(slots),
            host_seq_lens=seq_lens,
            host_query_lens=query_lens,
        )
        return TorchStep(
            token_ids=self._to_device(tokens),
            positions=self._to_device(positions),
            metadata=metadata,
            attention=TorchAttention(metadata, self._block_size),
            logit_rows=self._to_device(np.concatenate(wanted).astype(np.int64)),
        )

    @torch.inference_mode()
    def forward(self, step: TorchStep) -> torch.Tensor:
        """Logits [R, vocab], float32."""
        return self._model.forward(
            step.token_ids,
            step.positions,
            self._cache,
            step.metadata.slot_mapping,
            step.attention,
            step.logit_rows,
        )

    def greedy_tokens(self, step: TorchStep) -> list[tuple[int, float]]:
        """For each row of logits the highest and its token; NaN if any of them is."""
        best = self.forward(step).max(dim=-1)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def _to_device(self, array: NDArray[np.int64] | NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
