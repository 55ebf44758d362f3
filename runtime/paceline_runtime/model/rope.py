"""Rotary position embedding: the frequencies of each kind of scaling, and the rotation.

Formulas: Su et al. 2021 (RoPE), Peng et al. 2023 (YaRN), Llama 3.1's published frequency smoothing. The rotation pairs
dimension i with i + head_dim/2, as the safetensors checkpoints of the Llama family expect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .source import ModelInvalid


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Base and scaling.

    Attributes:
        kind: `default`, `linear`, `llama3` or `yarn`.
        factors: divisors of the single frequencies, where the model's file lists them (GGUF's `rope_freqs`).
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    factors: tuple[float, ...] = field(default=())

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> RopeSpec:
        """Read `rope_parameters` (or the older `rope_theta` and `rope_scaling`).

        Raises:
            ModelInvalid: for a kind of scaling that is not supported.
        """
        parameters: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        theta = float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))
        kind = str(parameters.get("rope_type", parameters.get("type", "default")))
        if kind not in ("default", "linear", "llama3", "yarn"):
            raise ModelInvalid(f"RoPE scaling {kind!r} is not supported; supported are linear, llama3 and yarn")
        if config.get("partial_rotary_factor", parameters.get("partial_rotary_factor", 1.0)) not in (None, 1, 1.0):
            raise ModelInvalid("partial rotary embedding is not supported")
        if kind == "yarn" and (parameters.get("mscale") or parameters.get("mscale_all_dim")):
            raise ModelInvalid("RoPE scaling yarn with mscale is not supported")
        try:
            factor = float(parameters.get("factor", 1.0 if kind == "default" else parameters["factor"]))
            original = int(
                parameters.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 0
            )
            attention = parameters.get("attention_factor")
            return cls(
                theta=theta,
                kind=kind,
                factor=factor,
                original_max_position=original,
                low_freq_factor=float(parameters.get("low_freq_factor", 1.0)),
                high_freq_factor=float(parameters.get("high_freq_factor", 4.0)),
                beta_fast=float(parameters.get("beta_fast") or 32.0),
                beta_slow=float(parameters.get("beta_slow") or 1.0),
                attention_factor=None if attention is None else float(attention),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelInvalid(f"RoPE scaling {kind!r} lacks or has a wrong value: {error}") from error


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position of each of the `head_dim`/2 pairs (float32), and the factor on sine and cosine."""
    base = 1.0 / spec.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if spec.factors:
        if len(spec.factors) != head_dim // 2:
            raise ModelInvalid(f"the file lists {len(spec.factors)} RoPE factors, the model has {head_dim // 2} pairs")
        base = base / torch.tensor(spec.factors, dtype=torch.float32)
    if spec.kind == "linear":
        return base / spec.factor, 1.0
    if spec.kind == "llama3":
        return _llama3(spec, base), 1.0
    if spec.kind == "yarn":
        attention = spec.attention_factor
        if attention is None:
            attention = 0.1 * math.log(spec.factor) + 1.0 if spec.factor > 1 else 1.0
        return _yarn(spec, base, head_dim), attention
    return base, 1.0


def _llama3(spec: RopeSpec, base: torch.Tensor) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended."""
    wavelength = 2 * math.pi / base
    rotations = spec.original_max_position / wavelength
    blend = ((rotations - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)).clamp(0, 1)
    return (1 - blend) * base / spec.factor + blend * base


def _yarn(spec: RopeSpec, base: torch.Tensor, head_dim: int) -> torch.Tensor:
    def pair_of(rotations: float) -> float:
        """The pair that turns this often over the original length."""
        length = spec.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(spec.theta))

    low = max(math.floor(pair_of(spec.beta_fast)), 0)
    high = min(math.ceil(pair_of(spec.beta_slow)), head_dim - 1)
    span = max(high - low, 0.001)
    interpolated = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return base / spec.factor * interpolated + base * (1 - interpolated)


class RotaryTable:
    """Cosines and sines of every position below `max_position`, each [max_position, head_dim/2], in float32."""

    def __init__(self, spec: RopeSpec, head_dim: int, max_position: int, device: torch.device) -> None:
        frequencies, scale = inverse_frequencies(spec, head_dim)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)
        self.cos = (angles.cos() * scale).to(device).contiguous()
        self.sin = (angles.sin() * scale).to(device).contiguous()
