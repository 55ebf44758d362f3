"""What the network and the sampler ask of the kernels, whatever the device.

`gpu`, `cpu` and `reference` are modules with these functions; type checking holds them to one signature.

Letters in shapes: T tokens and B sequences in a step, H query heads, K key-value heads (each serves H / K neighbouring
query heads), D elements of a head, R rows of logits, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline_runtime.kernels.plan import AttentionPlan

FP8_MAX = 448.0
"""Largest finite number of e4m3 (OCP 8-bit floating point, 2023): 1.75 × 2⁸."""
INT8_MAX = 127.0

QUANTISED = (torch.float8_e4m3fn, torch.int8)
"""Types of a cache in 8 bits."""
SCALE_BYTES = 4
"""Of a scale (float32)."""


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer.

    Attributes:
        key, value: [blocks, block_size, K, D], D contiguous, both with the same strides. Their type says how they are
            kept: that of the activations, `float8_e4m3fn` or `int8`.
        key_scale, value_scale: float32, only with 8-bit types, contiguous; a stored number times its scale is the
            value. [K]: given beforehand, one for each head (equal ones: one for the tensor). [blocks, block_size, K]:
            `write_kv` sets one for each token and head, from the largest of the D numbers.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.key.shape != self.value.shape or self.key.stride() != self.value.stride():
            raise ValueError(f"keys {tuple(self.key.shape)} and values {tuple(self.value.shape)} need one layout")
        if self.key.dtype != self.value.dtype or self.key.stride(-1) != 1:
            raise ValueError("keys and values need one type, and heads that are contiguous")
        scales = (self.key_scale, self.value_scale)
        if not self.quantised:
            if scales != (None, None):
                raise ValueError(f"a cache of {self.key.dtype} has no scales")
            return
        heads = self.key.shape[2:3]
        for scale in scales:
            if scale is None or scale.dtype != torch.float32 or not scale.is_contiguous():
                raise ValueError(f"a cache of {self.key.dtype} needs contiguous float32 scales for keys and values")
            if scale.shape not in (heads, self.key.shape[:3]):
                raise ValueError(
                    f"scales {tuple(scale.shape)}; they have to be {tuple(heads)} or {tuple(self.key.shape[:3])}"
                )
        if (
            self.key_scale is not None
            and self.value_scale is not None
            and self.key_scale.dim() != self.value_scale.dim()
        ):
            raise ValueError("scales of keys and values have to be of one kind: for each head, or for each token")

    @property
    def quantised(self) -> bool:
        """Kept in 8 bits."""
        return self.key.dtype in QUANTISED

    @property
    def scaled_by_token(self) -> bool:
        """Scales are set when tokens are written."""
        return self.key_scale is not None and self.key_scale.dim() == 3


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What differs from layer to layer.

    Attributes:
        scale: factor on query · key.
        window: a token sees itself and the window - 1 tokens before it; 0 is all of them (Mistral's and HF's
            `sliding_window`).
        soft_cap: scores become cap × tanh(score / cap) before the mask (Gemma 2); 0 is none.
    """

    scale: float
    window: int = 0
    soft_cap: float = 0.0

    def __post_init__(self) -> None:
        if self.window < 0 or self.soft_cap < 0 or not math.isfinite(self.scale):
            raise ValueError(f"window and soft cap are 0 (none) or more, the scale is finite: {self}")

    @classmethod
    def plain(cls, head_dim: int) -> AttentionOptions:
        """Scaled by 1/√head_dim, all tokens seen."""
        return cls(1.0 / math.sqrt(head_dim))


class Kernels(Protocol):
    """The functions of `gpu`, `cpu` and `reference`."""

    def decode_attention(
        self,
        query: torch.Tensor,
        cache: KVCache,
        plan: AttentionPlan,
        options: AttentionOptions,
        out: torch.Tensor,
    ) -> None:
        """Attention of the sequences in `plan.decodes`, one new token each, into their rows of `out` [T, H, D].

        A sequence without tokens (a padded place of a captured graph) gets zeros. Other rows are left alone.

        Args:
            query: [T, H, D], D contiguous.
        """
        ...

    def varlen_attention(
        self,
        query: torch.Tensor,
        cache: KVCache,
        plan: AttentionPlan,
        options: AttentionOptions,
        out: torch.Tensor,
    ) -> None:
        """Causal attention of the sequences with several new tokens (`plan.tiles`), into their rows of `out`.

        The new tokens are a sequence's last ones; their keys and values are in the cache already.
        """
        ...

    def write_kv(self, key: torch.Tensor, value: torch.Tensor, cache: KVCache, slot_mapping: torch.Tensor) -> None:
        """Put keys and values of new tokens into the cache, and quantise them on the way where it is kept in 8 bits.

        Quantising: value / scale, held to the type's range, rounded to the nearest (ties to even). A scale set here is
        the largest magnitude over the type's largest number, 1 where all are zero, NaN where one is no number: then the
        token shows as such in whatever sees it.

        Args:
            key, value: [T, K, D], D contiguous.
            slot_mapping: [T] int64, block × block_size + offset; -1 writes nothing.
        """
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / √(mean(x²) + eps) × weight over the last dimension [..., N]; float32 inside, rounded once."""
        ...

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Add x to `residual` in place (both [..., N], rounded to its type), then `rms_norm` of that sum."""
        ...

    def rotate(self, heads: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate heads [T, heads, D] in place by their token's position; pairs are (i, i + D/2).

        Args:
            positions: [T] int64.
            cos, sin: [positions, D/2] float32, see `RotaryTable`.
        """
        ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2N] → [T, N]: silu of the first half times the second; float32 inside, rounded once."""
        ...

    def sample(
        self,
        scaled: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
    ) -> torch.Tensor:
        """Draw a token [R] (int64) for each row, with top-k, top-p and min-p.

        Tokens are ranked by logit, equal ones by id; in a row that keeps all of them they are taken by id alone, as the
        sampler does (`model.sampling.draw`). Of the first top-k those stay before which less than top_p of
        their sum has passed (the first always does), and of these the ones with at least min_p of the first's weight.
        The token drawn is the one where the running sum passes uniform × the sum of what stays.

        Args:
            scaled: [R, V] float32, contiguous: logits over temperature. A row with a NaN, or without a finite maximum,
                gives any token.
            top_k: [R] int64, at least 1; V or more is all.
            top_p, min_p: [R] float64; 1 and 0 keep all.
            uniform: [R] float64 from [0, 1).
        """
        ...


def select(device: torch.device) -> Kernels:
    """Triton on a GPU, PyTorch on a CPU.

    Raises:
        ValueError: for another kind of device.
    """
    if device.type == "cuda":
        from paceline_runtime.kernels import gpu

        return gpu
    if device.type == "cpu":
        from paceline_runtime.kernels import cpu

        return cpu
    raise ValueError(f"there are kernels for cuda and cpu, none for {device.type}")
