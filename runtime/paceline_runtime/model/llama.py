"""The Llama network (and Mistral and Qwen2, which differ by a bias) over a paged cache, on any device.

What is not a matrix product is a kernel's (`kernels.interface`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from paceline_runtime.kernels.interface import AttentionOptions, Kernels, KVCache
from paceline_runtime.kernels.plan import AttentionPlan

from .checkpoint import Checkpoint
from .linear import Linear
from .rope import RotaryTable


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Weights on one device, in one type.

    Projections that read the same input are one matrix. A tied output matrix is held twice on the CPU: rows for the
    look-up, and the layout of `Linear` for the product.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        kernels: Kernels,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        max_position: int,
    ) -> None:
        self.spec = spec = checkpoint.spec
        self.num_parameters = 0
        self._kernels, self._options = kernels, AttentionOptions.plain(spec.head_dim)
        self._device, self._dtype, self._weight_dtype = device, dtype, weight_dtype
        hidden, q_size, kv_size = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self._embedding = self._load(checkpoint, "model.embed_tokens.weight", spec.vocab_size, hidden)
        self._layers: list[_Layer] = []
        for index in range(spec.num_layers):
            prefix = f"model.layers.{index}."

            def linear(module: str, rows: tuple[int, ...], columns: int, bias: bool, at: str = prefix) -> Linear:
                parent, *names = module.split(" ")
                pairs = list(zip(names, rows, strict=True))
                weights = [self._load(checkpoint, f"{at}{parent}.{n}.weight", size, columns) for n, size in pairs]
                biases = [self._load(checkpoint, f"{at}{parent}.{n}.bias", size) for n, size in pairs] if bias else None
                return Linear(torch.cat(weights), torch.cat(biases) if biases else None)

            self._layers.append(
                _Layer(
                    attention_norm=self._load(checkpoint, prefix + "input_layernorm.weight", hidden),
                    qkv=linear("self_attn q_proj k_proj v_proj", (q_size, kv_size, kv_size), hidden, spec.qkv_bias),
                    output=linear("self_attn o_proj", (hidden,), q_size, spec.output_bias),
                    mlp_norm=self._load(checkpoint, prefix + "post_attention_layernorm.weight", hidden),
                    gate_up=linear("mlp gate_proj up_proj", (spec.intermediate_size,) * 2, hidden, spec.mlp_bias),
                    down=linear("mlp down_proj", (hidden,), spec.intermediate_size, spec.mlp_bias),
                )
            )
        self._final_norm = self._load(checkpoint, "model.norm.weight", hidden)
        if spec.tied_embeddings:
            self._head = Linear(self._embedding)
        else:
            self._head = Linear(self._load(checkpoint, "lm_head.weight", spec.vocab_size, hidden))
        self._rotary = RotaryTable(spec.rope, spec.head_dim, max_position, device)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: Sequence[KVCache],
        slot_mapping: torch.Tensor,
        plan: AttentionPlan,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [R, vocab] (float32) of one step; see `hidden` and `logits`."""
        return self.logits(self.hidden(token_ids, positions, kv_cache, slot_mapping, plan, logit_rows))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] → [R, vocab], float32."""
        return self._head(hidden).float()

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: Sequence[KVCache],
        slot_mapping: torch.Tensor,
        plan: AttentionPlan,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Run one step up to its last norm; keys and values of the new tokens are written into the cache.

        Args:
            token_ids: [T].
            positions: [T], each token's place in its sequence.
            kv_cache: of each layer.
            slot_mapping: [T], where the keys and values go.
            plan: of this step.
            logit_rows: [R], the rows of T whose next token is asked for.

        Returns:
            [R, hidden].
        """
        spec, kernels, eps = self.spec, self._kernels, self.spec.rms_norm_eps
        rotated = spec.num_heads + spec.num_kv_heads
        residual = F.embedding(token_ids, self._embedding)
        x = kernels.rms_norm(residual, self._layers[0].attention_norm, eps)
        # The sum that a layer ends with and the next one's norm are one kernel.
        norms_after = [*(layer.attention_norm for layer in self._layers[1:]), self._final_norm]
        for layer, cache, norm_after in zip(self._layers, kv_cache, norms_after, strict=True):
            heads = layer.qkv(x).view(-1, rotated + spec.num_kv_heads, spec.head_dim)
            kernels.rotate(heads[:, :rotated], positions, self._rotary.cos, self._rotary.sin)
            kernels.write_kv(heads[:, spec.num_heads : rotated], heads[:, rotated:], cache, slot_mapping)
            query = heads[:, : spec.num_heads]
            attended = torch.empty_like(query, memory_format=torch.contiguous_format)
            kernels.decode_attention(query, cache, plan, self._options, attended)
            kernels.varlen_attention(query, cache, plan, self._options, attended)
            x = kernels.add_rms_norm(layer.output(attended.flatten(1)), residual, layer.mlp_norm, eps)
            x = kernels.silu_and_mul(layer.gate_up(x))
            x = kernels.add_rms_norm(layer.down(x), residual, norm_after, eps)
        return x.index_select(0, logit_rows)

    def _load(self, checkpoint: Checkpoint, name: str, *shape: int) -> torch.Tensor:
        value = checkpoint.tensor(name, *shape)
        if len(shape) == 2:
            # Rounded to the weights' type, then kept as what it is multiplied with.
            value = value.to(self._weight_dtype)
        value = value.to(device=self._device, dtype=self._dtype)
        self.num_parameters += value.numel()
        return value
